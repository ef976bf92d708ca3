"""Product with 4-bit weights in groups of G = 32 along a row, and bfloat16 activations.

    w[n, k] = (code[n, k] - 8) * scale[n, k / G] + zero[n, k / G]

That is the form of GGUF's Q4_1 (code * d + m) with zero = m + 8 d, so such a file keeps its own
codes; only d and zero are rounded from float16 to bfloat16, 2^-9 relative. Every row of x has its
own sums: measured equal to the bit for 1 to 8 rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.weights.rows import GROUP, Rows

# By this name the call costs half of what it costs through torch.ops.
_multiply = torch._weight_int4pack_mm_for_cpu  # pyright: ignore[reportPrivateImportUsage] - the only name it has


class Int4Product:
    """Weights of N * K / 2 bytes and 4 bytes per group."""

    def __init__(self, packed: Tensor, scale_zero: Tensor) -> None:
        self._packed = packed  # opaque, N * K / 2 bytes
        self._scale_zero = scale_zero  # [K / G, N, 2] bfloat16

    @property
    def size_bytes(self) -> int:
        return self._packed.nbytes + self._scale_zero.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] float32 -> [T, N] bfloat16."""
        return _multiply(x.bfloat16(), self._packed, GROUP, self._scale_zero)


def pack_int4(rows: Rows) -> Int4Product:
    groups = rows.groups_4bit()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(groups.codes.to(torch.int32), 1)
    scale = groups.scale
    scale_zero = torch.stack([scale, groups.minimum + 8 * scale], dim=-1)  # [N, K / G, 2]
    return Int4Product(packed, scale_zero.transpose(0, 1).contiguous().to(torch.bfloat16))


def int4_reference(rows: Rows, x: Tensor) -> Tensor:
    """The same product in plain float32 on the same codes; what the kernel is tested by."""
    groups = rows.groups_4bit()
    scale = groups.scale.to(torch.bfloat16).to(torch.float32).unsqueeze(-1)
    zero = groups.minimum + 8 * groups.scale
    zero = zero.to(torch.bfloat16).to(torch.float32).unsqueeze(-1)
    codes = groups.codes.unflatten(-1, (-1, GROUP)).to(torch.float32)
    weight = ((codes - 8) * scale + zero).flatten(-2)
    return x.to(torch.bfloat16).to(torch.float32) @ weight.T
