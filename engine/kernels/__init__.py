"""Which product a numeric level uses; `cpu/` holds one operation per file.

A product is y = x W^T for one stored matrix. Levels, by what a decode step reads per weight:

    fp32  4 bytes    the values of the file, the reference for everything else
    bf16  2 bytes
    fp8   1 byte     e4m3 with one scale per 128 x 128; exact codes of an FP8 checkpoint. A reference:
                     small in memory, slow on a processor
    int8  1 byte     one scale per row
    int4  0.625 byte groups of 32; exact codes of a Q4_1 file. The head stays at int8.
    native           the file's own 4- and 8-bit codes and scales: 0.625 and 1.06 bytes. No product
                     but a whole step in C++ (engine/runtime/native.py), where it can be built

How fine they are, on SmolLM2-135M (Q4_1) against float32: FIB opens with the two best logits 0.07
apart, CAP with 0.09, COUNT never comes below 1.96 (tests/engine/references.py).

    bf16  all three answers; gaps 0.003, 0.20, 1.88
    int8  COUNT and CAP (0.20, 1.77); FIB leaves the reference at token 22 of 40, at a gap of 0.05
    int4  all three; gaps 0.003, 0.20, 1.89. It is finer than int8 here because it keeps the file's
          codes, where int8 rounds every row anew; so it is the default for such files.

    native  all three. Kullback-Leibler divergence from float32 over 400 positions of held-out text
          7e-8, beside 1.2e-3 of int4 and 3.5e-3 of llama.cpp, which rounds activations to 8 bits

FIB's first choice passes by 0.003 only, in every level that prefills in bfloat16: near ties like it
are no promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from engine.kernels.cpu.block_fp8 import pack_block_fp8
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


class WeightProduct(Product, Protocol):
    """One whose weight can also be had, for products in other forms."""

    def weight(self) -> Tensor:
        """[N, K] in a floating type; not to be written to."""
        ...


NATIVE = "native"

KERNELS: Mapping[str, Callable[[Rows], Product]] = {
    "fp32": dense_float32,
    "bf16": dense_bfloat16,
    "fp8": pack_block_fp8,
    "int8": pack_int8,
    "int4": pack_int4,
}

# Of these, products whose weight can also be had.
WEIGHT_KERNELS: Mapping[str, Callable[[Rows], WeightProduct]] = {
    "fp32": dense_float32,
    "bf16": dense_bfloat16,
    "fp8": pack_block_fp8,
}

LEVELS = (NATIVE, *KERNELS)
