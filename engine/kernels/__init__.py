"""Which product a numeric level uses; `cpu/` holds one operation per file.

A product is y = x W^T for one stored matrix. Levels, by what a decode step reads per weight:

    fp32  4 bytes    the values of the file, the reference for everything else
    bf16  2 bytes
    int8  1 byte     one scale per row
    int4  0.625 byte groups of 32; exact codes of a Q4_1 file. The head stays at int8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from engine.kernels.cpu.dense import dense_bfloat16, dense_float32
from engine.kernels.cpu.int4 import pack_int4
from engine.kernels.cpu.int8 import pack_int8
from engine.weights.rows import Rows


class Product(Protocol):
    """A matrix ready to be multiplied with."""

    @property
    def size_bytes(self) -> int:
        """Bytes that one row of x makes the kernel read."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] float32 -> [T, N] in the kernel's own type."""
        ...


KERNELS: Mapping[str, Callable[[Rows], Product]] = {
    "fp32": dense_float32,
    "bf16": dense_bfloat16,
    "int8": pack_int8,
    "int4": pack_int4,
}
