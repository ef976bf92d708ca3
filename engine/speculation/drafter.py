"""What guesses tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

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

    def kind(self) -> str | None:
        """What the next guess would rest on, in microseconds; None: there is none.

        Guesses of one kind are about equally often right; that is counted by kind.
        """
        ...

    def propose(self, most: int) -> Sequence[int]:
        """1 to `most` (>= 1) tokens that may come next, in order; asked only after a `kind`."""
        ...

    def forget(self) -> None:
        """Wipe what is known of the text: the next seat must find nothing of this one."""
        ...

    def close(self) -> None:
        """Free what it holds; nothing is asked of it any more."""
        ...


@runtime_checkable
class DraftsItself(Protocol):
    """A model whose checkpoint brings a drafter of its own (multi-token prediction)."""

    def drafter(self) -> Drafter | None: ...
