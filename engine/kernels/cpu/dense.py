"""Products with unpacked weights: float32 is the reference, bfloat16 is what prefill uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.weights.rows import Rows


class DenseProduct:
    """y = x W^T with W [N, K] in its own type. Rows that share a pass may share rounding too:

    the library picks another order of sums for other row counts (measured for float32).
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @property
    def size_bytes(self) -> int:
        return self._weight.nbytes

    def weight(self) -> Tensor:
        """[N, K] in its own type; not to be written to."""
        return self._weight

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] float32 -> [T, N] in the weight's type."""
        return F.linear(x.to(self._weight.dtype), self._weight)


def dense_float32(rows: Rows) -> DenseProduct:
    return DenseProduct(rows.float32())


def dense_bfloat16(rows: Rows) -> DenseProduct:
    return DenseProduct(rows.float32().to(torch.bfloat16))
