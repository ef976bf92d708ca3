"""The choice of one answer's tokens: the rule of `engine/sampling.py` with all that it remembers.

Every token of the answer passes through `take`, in order, wherever it was made; so whatever the
choice depends on is a function of the tokens before it. Rows of one pass are chosen one after the
other, each behind the `take` of the one before: drafts change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from torch import Tensor

from engine.adjusting import Adjustment, Logits
from engine.matching import Grammars, Matching
from engine.sampling import check_numbers, choose_adjusted
from engine.types import EngineError, GenerateRequest, ModelCard, SamplingParams, TokenLogprobs

# what stands for the logarithm of nothing, as OpenAI does it
LEAST_LOGPROB = -9999.0

_THINK, _THOUGHT = "<think>", "</think>"


class Chooser:
    """Chooses, and remembers what was chosen."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        end_ids: Collection[int] = (),
        matching: Matching | None = None,
        thought_id: int | None = None,
    ) -> None:
        """end_ids: the model's own; matching: the grammar, from the token behind `thought_id` on."""
        # tokens that end the answer
        self.end_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.end_ids |= frozenset(end_ids)
        self._params = params
        self._adjustment = Adjustment(params, prompt_ids)
        self._matching = matching
        self._thought_id = thought_id if matching is not None else None
        self._tokens = 0
        self._told: list[TokenLogprobs] = []

    @classmethod
    def of(cls, request: GenerateRequest, card: ModelCard, grammars: Grammars) -> Chooser:
        """Raises GrammarError."""
        params = request.sampling
        matching = grammars.matcher(params.grammar) if params.grammar is not None else None
        thought_id = open_thought(request.prompt_ids, card.special_tokens)
        return cls(params, request.prompt_ids, card.stop_token_ids, matching, thought_id)

    @property
    def is_plain(self) -> bool:
        """Whether temperature, the three cuts and the seed are all that it depends on: what a
        `Writer` chooses by."""
        p = self._params
        return (
            self._adjustment.is_none
            and self._matching is None
            and p.min_tokens == 0
            and p.top_logprobs is None
        )

    @property
    def is_complete(self) -> bool:
        """The grammar wants nothing more."""
        return (
            self._matching is not None and self._thought_id is None and self._matching.is_complete
        )

    def choose(self, logits: Tensor, position: int) -> int:
        """The next token. logits [V] float32.

        Raises ModelFileError when the logits are not numbers, GrammarError.
        """
        values: Logits = logits.numpy()
        check_numbers(values)
        token_id = choose_adjusted(self._adjusted(values), self._params, position)
        if self._params.top_logprobs is not None:
            self._told.append(logprobs_of(values, token_id, self._params.top_logprobs))
        return token_id

    def take(self, token_id: int) -> None:
        """This token stands in the answer now. Raises EngineError where the grammar has no such."""
        self._tokens += 1
        self._adjustment.take(token_id)
        if self._matching is None:
            return
        if self._thought_id is not None:
            if token_id == self._thought_id:
                self._thought_id = None
        elif not self._matching.take(token_id):
            raise EngineError(
                "What is written of this answer does not fit its grammar, so it cannot be "
                "continued here. Ask again."
            )

    def told(self) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the tokens chosen since the last call."""
        told, self._told = self._told, []
        return tuple(told)

    def _adjusted(self, logits: Logits) -> Logits:
        """Steps 1 to 4."""
        if not self._adjustment.is_none:
            logits = self._adjustment.apply(logits)
        if self._matching is not None and self._thought_id is None:
            allowed = self._matching.allowed(len(logits))
            logits = np.where(allowed, logits, np.float32(-np.inf))
        if self._tokens < self._params.min_tokens or self._thought_id is not None:
            longer = logits.copy()
            longer[[token_id for token_id in self.end_ids if token_id < len(logits)]] = -np.inf
            if longer.max() > -np.inf:
                return longer
        return logits


def open_thought(prompt_ids: Sequence[int], special_tokens: Mapping[str, int]) -> int | None:
    """The token that ends the thoughts which the prompt leaves open; None where it opens none."""
    think, thought = special_tokens.get(_THINK), special_tokens.get(_THOUGHT)
    if think is None or thought is None:
        return None
    for token_id in reversed(prompt_ids):
        if token_id in (think, thought):
            return thought if token_id == think else None
    return None


def logprobs_of(logits: Logits, token_id: int, count: int) -> TokenLogprobs:
    """ln softmax(logits) of one token, and of the `count` likeliest."""
    values = logits.astype(np.float64)
    largest = values.max()
    total = largest + math.log(np.exp(values - largest).sum())

    def of(which: int) -> float:
        return max(LEAST_LOGPROB, float(values[which] - total))

    top: list[int] = []
    if count > 0:
        count = min(count, len(values))
        # all that equal the last one too, so that the lowest ids of them can be taken
        likely = np.flatnonzero(values >= np.partition(values, -count)[-count])
        top = likely[np.argsort(-values[likely], kind="stable")][:count].tolist()
    return TokenLogprobs(of(token_id), tuple((which, of(which)) for which in top))
