"""Speculation: guess tokens, check them in one pass, keep those that would have come anyway.

Lossless by construction: a token is always chosen by `engine/sampling.py` from its own row's
logits, rows do not see each other, and a draft is kept only where it is what was chosen. So the
text is the plain one, token for token, at any temperature; only the number of passes changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from engine.types import SamplingParams


class Drafter(Protocol):
    """Guesses how a text goes on. It follows one text at a time, as the cache does."""

    def begin(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> None:
        """A new answer starts behind this prompt; often it begins like the text before."""
        ...

    def extend(self, token_ids: Sequence[int], hidden: Tensor) -> None:
        """These tokens stand at the end of the text now; never a draft that was refused.

        hidden [T, D]: row i is the state from which token i was chosen.
        """
        ...

    def propose(self, most: int) -> Sequence[int]:
        """At most `most` (>= 1) tokens that may come next, best guess in order; often none."""
        ...

    def forget(self) -> None:
        """Wipe what is known of the text: the next seat must find nothing of this one."""
        ...
