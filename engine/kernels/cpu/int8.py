"""Product with 8-bit weights, one scale per row, and bfloat16 activations.

    y[n] = scale[n] * sum_k x[k] * code[n, k]

Each scale is rounded to bfloat16 before the codes are chosen, so the kernel's own rounding of the
scales costs nothing. Every row of x has its own sums: measured equal to the bit for 1 to 8 rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.weights.rows import Rows

# By this name the call costs half of what it costs through torch.ops.
_multiply = torch._weight_int8pack_mm  # pyright: ignore[reportPrivateImportUsage] - the only name it has


class Int8Product:
    """Weights of N * K bytes and 2 N bytes of scales."""

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self._codes = codes  # [N, K] int8
        self._scale = scale  # [N] bfloat16

    @property
    def size_bytes(self) -> int:
        return self._codes.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] float32 -> [T, N] bfloat16."""
        return _multiply(x.bfloat16(), self._codes, self._scale)

    def reference(self, x: Tensor) -> Tensor:
        """The same product in plain float32 on the same codes; what the kernel is tested by."""
        weight = self._codes.to(torch.float32) * self._scale.to(torch.float32).unsqueeze(-1)
        return x.to(torch.bfloat16).to(torch.float32) @ weight.T


def pack_int8(rows: Rows) -> Int8Product:
    weight = rows.float32()
    # Rounded up, so that the largest weight of a row still fits into 127 steps.
    scale = (weight.abs().amax(-1) / 127 * (1 + 2**-8)).to(torch.bfloat16)
    steps = weight / scale.to(torch.float32).clamp_min(1e-30).unsqueeze(-1)
    return Int8Product(steps.round_().clamp_(-127, 127).to(torch.int8), scale)
