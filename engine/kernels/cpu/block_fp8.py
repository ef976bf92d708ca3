"""Products with weights kept as e4m3 in blocks with one scale each: one byte a weight in memory.

The reference path: the weight is brought to float32 for each product and dropped after it. What
rows share a pass share that work, so drafts pay here, and a chunk of prefill needs no second copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.layers.rows import linear
from engine.weights.fp8 import BlockFp8
from engine.weights.rows import Rows


class BlockFp8Product:
    """y = x W^T with W [N, K] as codes and scales, or several such parts on top of each other."""

    def __init__(self, parts: list[BlockFp8]) -> None:
        self._parts = parts

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self._parts)

    def weight(self) -> Tensor:
        """[N, K] float32."""
        made = [part.float32() for part in self._parts]
        return made[0] if len(made) == 1 else torch.cat(made)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] float32 -> [T, N] float32."""
        return linear(x, self.weight())


def pack_block_fp8(rows: Rows) -> BlockFp8Product:
    """The stored codes where the checkpoint has such; other weights are rounded to FP8 here."""
    return BlockFp8Product(rows.blocks_fp8())
