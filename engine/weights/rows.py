"""Matrices of a checkpoint as the packers want them: stacked, and with their own 4-bit codes.

Several tensors that multiply the same input (queries, keys and values; gate and up) become one
matrix, one product instead of three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.checkpoint import Checkpoint, check_finite, no_numbers
from engine.weights.fp8 import BlockFp8, StoresBlockFp8, quantise_blocks

GROUP = 32
# bytes of a block, and how many float16 it begins with
BLOCKS = {"Q4_0": (18, 1), "Q4_1": (20, 2), "Q8_0": (34, 1)}


@dataclass(frozen=True, slots=True)
class Groups4Bit:
    """A matrix in groups of G = 32 neighbours of a row: w = code * scale + minimum."""

    codes: Tensor  # [N, K] uint8, 0..15
    scale: Tensor  # [N, K / G] float32
    minimum: Tensor  # [N, K / G] float32


class Rows:
    """Weights of one checkpoint on top of each other; read when asked for, held by nobody here."""

    def __init__(
        self, checkpoint: Checkpoint, names: Sequence[str], shape: tuple[int, int]
    ) -> None:
        """Raises ModelFileError when the weights together are not of this shape [N, K]."""
        self._checkpoint = checkpoint
        self._names = tuple(names)
        self.shape = shape
        found = [checkpoint.shape(name) for name in names if name in checkpoint]
        whole = (sum(part[0] for part in found), shape[1])
        if len(found) != len(names) or any(part[1:] != shape[1:] for part in found):
            whole = None
        if whole != shape:
            raise ModelFileError(
                f"{', '.join(names)} in {checkpoint.path} have the shapes {found}, which do not make "
                f"{shape}. Download or convert the model again."
            )

    @property
    def types(self) -> set[str]:
        """What the weights are stored as."""
        return {self._checkpoint.stored_as(name) for name in self._names}

    def float32(self) -> Tensor:
        """[N, K] float32, exactly the values the file stands for."""
        parts = [self._tensor(name) for name in self._names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def groups_4bit(self) -> Groups4Bit:
        """The file's own codes where it stores Q4_1, the nearest such codes elsewhere."""
        parts = [self._groups_of(name) for name in self._names]
        return Groups4Bit(
            torch.cat([part.codes for part in parts]),
            torch.cat([part.scale for part in parts]),
            torch.cat([part.minimum for part in parts]),
        )

    def blocks(self) -> Iterator[tuple[str, np.ndarray]]:
        """Type and blocks [rows, bytes of a row] uint8 of each tensor, for products that read those.

        Q4_0 and Q4_1 as the file has them where all tensors are such; otherwise all of them as
        Q8_0, which is what the file has or the nearest to it.
        """
        four = self.types <= set(UNPACK_4BIT)
        for name in self._names:
            kind = self._checkpoint.stored_as(name)
            if four or kind == "Q8_0":
                packed = self._checkpoint.packed(name)
                self._check_scales(packed, kind, name)
                yield kind, packed
            else:
                yield "Q8_0", quantise_q8_0(self._tensor(name).numpy())

    def _check_scales(self, packed: np.ndarray, kind: str, name: str) -> None:
        """Each block begins with its float16 scale, in Q4_1 with a minimum behind it."""
        size_bytes, floats = BLOCKS[kind]
        starts = packed.reshape(-1, size_bytes)[:, : 2 * floats]
        scales = torch.from_numpy(np.ascontiguousarray(starts).view(np.float16))
        check_finite(scales, name, self._checkpoint.path)

    def blocks_fp8(self) -> list[BlockFp8]:
        """e4m3 codes and scales of each tensor: those of the file where it stores such."""
        return [self._blocks_fp8_of(name) for name in self._names]

    def _blocks_fp8_of(self, name: str) -> BlockFp8:
        if isinstance(self._checkpoint, StoresBlockFp8):
            stored = self._checkpoint.block_fp8(name)
            if stored is not None:
                self._check_blocks(stored, name)
                return stored
        return quantise_blocks(self._tensor(name))

    def _check_blocks(self, stored: BlockFp8, name: str) -> None:
        check_finite(stored.scales, name, self._checkpoint.path)
        # e4m3 has no infinity, and one NaN of each sign
        if ((stored.codes.view(torch.uint8) & 0x7F) == 0x7F).any():
            raise no_numbers(name, self._checkpoint.path)

    def _tensor(self, name: str) -> Tensor:
        weight = self._checkpoint.tensor(name)
        check_finite(weight, name, self._checkpoint.path)
        return weight

    def _groups_of(self, name: str) -> Groups4Bit:
        unpack = UNPACK_4BIT.get(self._checkpoint.stored_as(name))
        if unpack is not None:
            packed = self._checkpoint.packed(name)
            groups = unpack(np.array(packed), len(packed))
            for part in (groups.scale, groups.minimum):
                check_finite(part, name, self._checkpoint.path)
            return groups
        return quantise_4bit(self._tensor(name))


def unpack_q4_0(raw: np.ndarray, rows: int) -> Groups4Bit:
    """Blocks of 18 bytes: float16 scale, 16 bytes of nibbles; 8 steps below zero is the least."""
    blocks = torch.from_numpy(raw).view(rows, -1, 18)
    scale = _float16(blocks[..., :2]).squeeze(-1)
    return Groups4Bit(_nibbles(blocks[..., 2:]), scale, -8 * scale)


def unpack_q4_1(raw: np.ndarray, rows: int) -> Groups4Bit:
    """Blocks of 20 bytes: float16 scale, float16 minimum, 16 bytes of nibbles."""
    blocks = torch.from_numpy(raw).view(rows, -1, 20)
    scale, minimum = _float16(blocks[..., :4]).unbind(-1)
    return Groups4Bit(_nibbles(blocks[..., 4:]), scale, minimum)


# Formats whose own codes the 4-bit product can hold.
UNPACK_4BIT = {"Q4_0": unpack_q4_0, "Q4_1": unpack_q4_1}


def _float16(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float16).to(torch.float32)


def _nibbles(packed: Tensor) -> Tensor:
    """[N, K / G, 16] bytes -> [N, K]: the low halves of a group first, then the high ones."""
    return torch.cat([packed & 15, packed >> 4], dim=-1).flatten(-2)


def quantise_4bit(weight: Tensor) -> Groups4Bit:
    """[N, K] float32 -> the 16 even steps between each group's least and largest value."""
    groups = weight.unflatten(-1, (-1, GROUP))
    minimum = groups.amin(-1)
    scale = (groups.amax(-1) - minimum) / 15
    steps = (groups - minimum.unsqueeze(-1)) / scale.clamp_min(1e-30).unsqueeze(-1)
    codes = steps.round_().clamp_(0, 15).to(torch.uint8)
    return Groups4Bit(codes.flatten(-2), scale, minimum)


def quantise_q8_0(weight: np.ndarray) -> np.ndarray:
    """[N, K] float32 -> Q8_0 blocks [N, K / 32 * 34] uint8: float16 scale, 32 signed bytes."""
    groups = weight.reshape(len(weight), -1, GROUP)
    scale = (np.abs(groups).max(-1) / 127).astype(np.float16)
    steps = groups / np.maximum(scale.astype(np.float32), 1e-30)[..., None]
    codes = np.clip(np.rint(steps), -127, 127).astype(np.int8).view(np.uint8)
    blocks = np.concatenate([scale[..., None].view(np.uint8), codes], axis=-1)
    return blocks.reshape(len(weight), -1)
