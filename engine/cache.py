"""Keys and values of one text: grown in steps, shared between the turns of one lease, wiped after.

The cache knows which token stands at each position. A position counts only after the pass that
computed it is complete (`claim`), so a prefill that was cancelled never claims too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.memory import memory_for

GROW_POSITIONS = 512

Views = tuple[Tensor, ...]


def grown_capacity(positions: int, context_tokens: int) -> int:
    """Room to make for `positions`: whole steps, but not beyond the context."""
    steps = -(-positions // GROW_POSITIONS)
    return min(max(steps * GROW_POSITIONS, positions), max(context_tokens, positions))


class Cache(Protocol):
    """What the engine's loop needs of a cache. What it stores is between it and its model."""

    @property
    def tokens(self) -> tuple[int, ...]: ...

    @property
    def length(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def reserve(self, positions: int) -> None: ...

    def keep_prefix(self, prompt_ids: Sequence[int]) -> int: ...

    def truncate(self, length: int) -> None: ...

    def claim(self, token_ids: Sequence[int]) -> None: ...

    def wipe(self) -> None: ...


class CachedText:
    """The tokens of a cache: which stand at its positions, and which of them a prompt keeps."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids whose keys and values are here, in order."""
        return tuple(self._tokens)

    @property
    def length(self) -> int:
        return len(self._tokens)

    def keep_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Keep what `prompt_ids` shares with the text here and drop the rest.

        Returns the number of positions kept: never the whole prompt, because its last token must
        run again to give the logits of the answer's first.
        """
        shared = 0
        for mine, theirs in zip(self._tokens, prompt_ids[:-1], strict=False):
            if mine != theirs:
                break
            shared += 1
        del self._tokens[shared:]
        return shared

    def truncate(self, length: int) -> None:
        """Drop what stands at positions `length` and beyond: drafts that were not right."""
        del self._tokens[length:]

    def claim(self, token_ids: Sequence[int]) -> None:
        """These tokens' keys and values are computed in every layer."""
        self._tokens.extend(token_ids)


class KvCache(CachedText):
    """One tensor [L, 2, K, S, E]: keys at 0, values at 1. S grows up to `context_tokens`."""

    def __init__(
        self, layers: int, kv_heads: int, head_width: int, context_tokens: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.context_tokens = context_tokens
        self._data = torch.zeros(layers, 2, kv_heads, 0, head_width, dtype=dtype)

    @property
    def capacity(self) -> int:
        """Positions there is room for without growing."""
        return self._data.shape[3]

    @property
    def address(self) -> int:
        """Where the tensor begins in memory; another one after `reserve` had to grow it."""
        return self._data.data_ptr()

    @property
    def size_bytes(self) -> int:
        return self._data.nbytes

    def reserve(self, positions: int) -> None:
        """Make room for positions 0..positions - 1.

        Raises OutOfMemoryError when the machine has none; the cache is then as it was.
        """
        if positions <= self.capacity:
            return
        capacity = grown_capacity(positions, self.context_tokens)
        layers, two, kv_heads, _, head_width = self._data.shape
        with memory_for(f"a cache of {capacity} positions"):
            grown = torch.zeros(layers, two, kv_heads, capacity, head_width, dtype=self._data.dtype)
        grown[:, :, :, : self.length] = self._data[:, :, :, : self.length]
        self._data.zero_()
        self._data = grown

    def views(self, start: int, end: int) -> tuple[Views, Views, Views]:
        """For each layer: where positions start..end - 1 are written, and keys and values to end.

        Shapes [T, 2, K, E], [K, end, E] and [K, end, E].
        """
        slots = self._data[:, :, :, start:end].permute(0, 3, 1, 2, 4).unbind(0)
        readable = self._data[:, :, :, :end]
        return slots, readable[:, 0].unbind(0), readable[:, 1].unbind(0)

    def wipe(self) -> None:
        """Forget everything, in memory too: the next seat must find nothing of this one."""
        self._tokens.clear()
        self._data.zero_()
