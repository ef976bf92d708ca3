"""Keys and values of one text: grown in steps, shared between the turns of one lease, wiped after.

The cache knows which token stands at each position. A position counts only after the pass that
computed it is complete (`claim`), so a prefill that was cancelled never claims too much.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.memory import memory_for

GROW_POSITIONS = 512


class KvCache:
    """[2, K, S, E] per layer: keys at 0, values at 1. S grows up to `context_tokens`."""

    def __init__(
        self, layers: int, kv_heads: int, head_width: int, context_tokens: int, dtype: torch.dtype
    ) -> None:
        self.context_tokens = context_tokens
        self._shape = (2, kv_heads, 0, head_width)
        self._dtype = dtype
        self.layers: list[Tensor] = [torch.zeros(self._shape, dtype=dtype) for _ in range(layers)]
        self._tokens: list[int] = []

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids whose keys and values are here, in order."""
        return tuple(self._tokens)

    @property
    def length(self) -> int:
        return len(self._tokens)

    @property
    def capacity(self) -> int:
        """Positions there is room for without growing."""
        return self.layers[0].shape[2]

    @property
    def size_bytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def reserve(self, positions: int) -> None:
        """Make room for positions 0..positions - 1.

        Raises OutOfMemoryError when the machine has none; the cache is then as it was.
        """
        if positions <= self.capacity:
            return
        steps = -(-positions // GROW_POSITIONS)
        capacity = min(max(steps * GROW_POSITIONS, positions), max(self.context_tokens, positions))
        kind, kv_heads, _, head_width = self._shape
        with memory_for(f"a cache of {capacity} positions"):
            grown = [
                torch.zeros(kind, kv_heads, capacity, head_width, dtype=self._dtype)
                for _ in self.layers
            ]
        for old, new in zip(self.layers, grown, strict=True):
            new[:, :, : self.length] = old[:, :, : self.length]
            old.zero_()
        self.layers = grown

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

    def claim(self, token_ids: Sequence[int]) -> None:
        """These tokens' keys and values are computed in every layer."""
        self._tokens.extend(token_ids)

    def wipe(self) -> None:
        """Forget everything, in memory too: the next seat must find nothing of this one."""
        self._tokens.clear()
        for layer in self.layers:
            layer.zero_()
