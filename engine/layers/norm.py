"""RMS norm: y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.layers.rows import APART_ROWS

Norm = Callable[[Tensor, Tensor, float], Tensor]

_ZERO = torch.zeros(1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, D] float32, weight [D] float32 -> [T, D] float32, all rows in one pass."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rms_norm_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same, each row by itself: its sum never depends on how many there are.

    For one row this is also less than half the time: three operations instead of torch's eight.
    """
    rows = [_rms_norm_row(x[t : t + 1], weight, eps) for t in range(len(x))]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _rms_norm_row(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [1, D] -> [1, D]."""
    row = x[0]
    inverse_rms = 1 / math.sqrt(torch.dot(row, row).item() / len(row) + eps)
    return torch.addcmul(_ZERO, x, weight, value=inverse_rms)


def short_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows apart in a short pass, together in a long one."""
    return (rms_norm_rows if len(x) <= APART_ROWS else rms_norm)(x, weight, eps)


def head_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [T, H, E] float32, each head by itself; weight [H, E] -> [T, H, E], all rows in one pass."""
    return F.rms_norm(x, (x.shape[-1],), None, eps) * weight


def head_norm_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same row by row, in calls whose shape does not depend on how many there are."""
    return torch.stack([head_norm(row, weight, eps) for row in x])
