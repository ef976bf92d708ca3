"""Holding an answer to a grammar: which tokens may come next, token by token."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from numpy.typing import NDArray

from engine.grammar import matcher
from engine.tokenizer import Tokenizer
from engine.types import Grammar, GrammarError

# One mask takes some 50 us, a hard one a few milliseconds. A grammar whose masks take this long
# holds up cancel, and the node's owner waits for nothing.
MASK_SECONDS = 2.0


class Grammars:
    """What one model's grammars have in common: its vocabulary, read at the first use (0.2 s)."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = sorted(end_ids)
        self._known: LLTokenizer | None = None

    def matcher(self, grammar: Grammar) -> Matching:
        """Raises GrammarError."""
        if self._known is None:
            self._known = _vocabulary(self._tokenizer, self._end_ids)
        return Matching(matcher(grammar, self._known))


class Matching:
    """One answer's place in its grammar."""

    def __init__(self, made: LLMatcher) -> None:
        self._matcher = made

    @property
    def is_complete(self) -> bool:
        """The text is whole, and nothing can follow it."""
        return self._matcher.is_stopped()

    def allowed(self, vocabulary: int) -> NDArray[np.bool_]:
        """[V]: the tokens that may come next; those that end an answer once it may end.

        Raises GrammarError when no token can, or finding out takes too long.
        """
        began_s = time.perf_counter()
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask = np.zeros(vocabulary, np.bool_)
        known = np.unpackbits(bits, count=min(vocabulary, 8 * len(bits)), bitorder="little")
        mask[: len(known)] = known
        if self._matcher.is_error() or not mask.any():
            raise GrammarError(
                "The answer cannot go on within the grammar, schema or expression: "
                f"{' '.join(self._matcher.get_error().split())[:200] or 'no token fits'}. "
                "Simplify it."
            )
        if time.perf_counter() - began_s > MASK_SECONDS:
            raise GrammarError(
                "The grammar, schema or expression is too hard to follow in time. Simplify it: "
                "fewer repetitions inside each other."
            )
        return mask

    def take(self, token_id: int) -> bool:
        """Go on behind this token; False where the grammar has no place for it."""
        return self._matcher.consume_token(token_id)


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, end_ids: Sequence[int]) -> None:
        self.eos_token_id = end_ids[0] if end_ids else None
        self.bos_token_id = None
        self.special_token_ids = sorted(tokenizer.special_tokens.values())
        self.tokens = tokenizer.token_bytes
        self._encode = tokenizer.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _vocabulary(tokenizer: Tokenizer, end_ids: Sequence[int]) -> LLTokenizer:
    if not end_ids:
        raise GrammarError(
            "This model has no token that ends an answer, so it cannot be held to a grammar."
        )
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, end_ids)), eos_token=list(end_ids))
