"""Guesses from a smaller model with the same vocabulary.

It chooses by the same rule, with the same noise at the same position, so it is right whenever its
logits lead to the same token, at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.memory import memory_for
from engine.models import Model
from engine.sampling import choose
from engine.types import SamplingParams

# More tokens than that are read as a prompt is, fewer one after the other.
CATCH_UP_TOKENS = 8
CHUNK_TOKENS = 128


class ModelDrafter:
    """A model with a cache of its own, which is brought up to the text only when it has to guess."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._cache = model.new_cache()
        self._text: list[int] = []
        self._sampling = SamplingParams()
        # so many tokens of the cache are known to be the text's; behind them stand own guesses
        self._sure = 0

    def begin(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> None:
        self._cache.keep_prefix(prompt_ids)
        self._sure = self._cache.length
        self._text = list(prompt_ids)
        self._sampling = sampling

    def extend(self, token_ids: Sequence[int], hidden: Tensor) -> None:
        self._text += token_ids

    def kind(self) -> str | None:
        """`model`, until its own context is full."""
        return "model" if len(self._text) < self._model.context_tokens else None

    def propose(self, most: int) -> Sequence[int]:
        """Raises OutOfMemoryError."""
        most = min(most, self._model.context_tokens - len(self._text))
        with memory_for("the drafter's text"):
            hidden = self._catch_up()
            drafts = [self._choose(hidden)]
            while len(drafts) < most:
                drafts.append(self._choose(self._model.decode(drafts[-1:], self._cache)))
        return drafts

    def forget(self) -> None:
        self._cache.wipe()
        self._text, self._sure = [], 0

    def close(self) -> None:
        """The model is this drafter's own."""
        self.forget()
        self._model.close()

    def _catch_up(self) -> Tensor:
        """Read what the text has on top of the cache, its last token at least."""
        text, held = self._text, self._cache.tokens
        last = len(text) - 1
        while self._sure < min(len(held), last) and held[self._sure] == text[self._sure]:
            self._sure += 1
        self._cache.truncate(self._sure)
        missing = text[self._sure :]
        self._sure = len(text)
        if len(missing) <= CATCH_UP_TOKENS:
            return self._model.decode(missing, self._cache)[-1:]
        chunks = range(0, len(missing), CHUNK_TOKENS)
        states = [
            self._model.prefill(missing[at : at + CHUNK_TOKENS], self._cache) for at in chunks
        ]
        return states[-1]

    def _choose(self, hidden: Tensor) -> int:
        (logits,) = self._model.logits(hidden)
        return choose(logits, self._sampling, self._cache.length)
