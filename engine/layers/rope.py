"""Rotary positions (Su et al. 2021, arXiv:2104.09864), for neighbouring pairs (2i, 2i + 1).

A pair is one complex number and the rotation one complex product. Checkpoints that pair the first
half of a head with the second half are brought into this order by their loader: scores do not see
the order, because queries and keys share it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rope_frequencies(head_width: int, base: float, factors: Tensor | None = None) -> Tensor:
    """Radians per position of each pair, [E / 2] float32.

    `factors` [E / 2] divides them: how Llama 3 stretches its long waves, worked out by the
    converter and stored in the file as `rope_freqs.weight`.
    """
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32) / head_width
    frequencies = 1.0 / base**exponents
    return frequencies if factors is None else frequencies / factors


def llama3_factors(
    frequencies: Tensor, factor: float, low: float, high: float, original_tokens: float
) -> Tensor:
    """What Llama 3 divides its frequencies [E / 2] by: long waves by `factor`, short ones by 1.

    Waves that turn between `low` and `high` times within the original context are blended
    linearly (transformers' `_compute_llama3_parameters`).
    """
    turns = original_tokens * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - blend) / factor + blend)


def rope_table(frequencies: Tensor, positions: int) -> Tensor:
    """One rotation per position and pair, [positions, 1, E / 2] complex64."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def rotate(x: Tensor, rotations: Tensor) -> None:
    """Rotate the first columns of x [T, N] float32 in place by rotations [T, M <= N / 2] complex64.

    Head after head, each as E / 2 pairs; columns behind the rotations stay as they are.
    """
    x.view(torch.complex64)[:, : rotations.shape[1]].mul_(rotations)


def turn(x: Tensor, rotations: Tensor) -> Tensor:
    """x [T, H, E] float32, each head's neighbours rotated by rotations [T, E / 2] complex64."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())  # [T, H, E / 2]
    return torch.view_as_real(pairs * rotations.unsqueeze(1)).flatten(-2)
