"""Matrices that stay in block FP8 in memory: half of bfloat16's bytes, a quarter of float32's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from engine.weights.block_fp8 import block_grid, dequantise_blocks

# what a checkpoint calls them
FP8 = "F8_E4M3"
# What a checkpoint without blocks of its own is rounded in, and the largest number of e4m3.
BLOCK = (128, 128)
_LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class BlockFp8:
    """A matrix as it is stored."""

    codes: Tensor  # [N, K] float8_e4m3fn
    scales: Tensor  # [ceil(N / block), ceil(K / block)] float32
    block: tuple[int, int]

    @property
    def size_bytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def float32(self) -> Tensor:
        """[N, K]."""
        return dequantise_blocks(self.codes, self.scales, self.block)


@runtime_checkable
class StoresBlockFp8(Protocol):
    """A checkpoint that may hold such matrices."""

    def block_fp8(self, name: str) -> BlockFp8 | None:
        """None for a weight stored otherwise. Raises ModelFileError."""
        ...


def quantise_blocks(weight: Tensor, block: tuple[int, int] = BLOCK) -> BlockFp8:
    """[N, K] float32 -> the nearest codes, each block's largest number at the end of e4m3's range.

    Scales are powers of two, rounded up before the codes are made (the reference's `ue8m0`): so
    they cost no precision of their own.
    """
    rows, columns = weight.shape
    grid = block_grid((rows, columns), block)
    padded = torch.zeros(grid[0] * block[0], grid[1] * block[1])
    padded[:rows, :columns] = weight
    largest = padded.view(grid[0], block[0], grid[1], block[1]).abs().amax((1, 3))
    scales = torch.exp2(torch.ceil(torch.log2(largest.clamp_min(1e-4) / _LARGEST)))
    wide = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    codes = (weight / wide[:rows, :columns]).to(torch.float8_e4m3fn)
    return BlockFp8(codes, scales, block)
