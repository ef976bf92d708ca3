"""Block formats of GGUF tensors, turned into float32.

A quantised row is a run of blocks of 32 or 256 weights. All formats here are affine per group:
weight = scale x integer (+ or - offset); they differ in how scale, offset and the integer's bits
are packed. Layouts and the order of the float operations follow ggml's reference functions
(`dequantize_row_*` in ggml-quants.c), so results equal the `gguf` package bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# numpy's stubs widen uint8 under bit operators, so arrays in the making carry no type
Bytes = NDArray[Any]
Floats = NDArray[np.float32]

# Blocks are converted in pieces of about this many raw bytes, so temporaries stay in the cache.
_PIECE_BYTES = 256 * 1024


def _f16(columns: Bytes) -> Floats:
    """[n, 2k] bytes -> [n, k] float32."""
    return np.ascontiguousarray(columns).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, b] bytes -> [n, 2b]: all low halves first, then all high halves."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """[n, 4] bytes of one little-endian 32-bit word -> [n, 32] with the bit at value 16."""
    return np.unpackbits(packed, axis=1, bitorder="little") << 4


def _f32(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view(np.float32)


def _bf16(raw: Bytes) -> Floats:
    words = np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32)
    return (words << 16).view(np.float32)


def _q8_0(raw: Bytes) -> Floats:
    return _f16(raw[:, :2]) * np.ascontiguousarray(raw[:, 2:]).view(np.int8).astype(np.float32)


def _q4_0(raw: Bytes) -> Floats:
    return _f16(raw[:, :2]) * (_nibbles(raw[:, 2:]).view(np.int8) - 8).astype(np.float32)


def _q4_1(raw: Bytes) -> Floats:
    return _f16(raw[:, :2]) * _nibbles(raw[:, 4:]).astype(np.float32) + _f16(raw[:, 2:4])


def _q5_0(raw: Bytes) -> Floats:
    integers = (_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])).view(np.int8) - 16
    return _f16(raw[:, :2]) * integers.astype(np.float32)


def _q5_1(raw: Bytes) -> Floats:
    integers = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
    return _f16(raw[:, :2]) * integers.astype(np.float32) + _f16(raw[:, 2:4])


def _k_scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """[n, 12] bytes -> two [n, 8] arrays of 6-bit integers.

    Bytes 0-3 and 4-7 hold scales and minima of groups 0-3 in their low six bits; the top two bits
    there, with the nibbles of bytes 8-11, are those of groups 4-7.
    """
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 0x3F, (high & 0x0F) | ((low >> 2) & 0x30)], axis=1)
    minima = np.concatenate([middle & 0x3F, (high >> 4) | ((middle >> 2) & 0x30)], axis=1)
    return scales, minima


def _k_affine(raw: Bytes, integers: Bytes) -> Floats:
    """Eight groups of 32 per block: d x scale x integer - dmin x minimum. integers [n, 8, 32]."""
    scales, minima = _k_scales_and_minima(raw[:, 4:16])
    scale: Bytes = _f16(raw[:, 0:2]) * scales.astype(np.float32)
    minimum: Bytes = _f16(raw[:, 2:4]) * minima.astype(np.float32)
    values: Floats = scale[:, :, None] * integers.astype(np.float32) - minimum[:, :, None]
    return values.reshape(len(raw), 256)


def _pairs_of_groups(packed: Bytes) -> Bytes:
    """[n, 128] bytes -> [n, 8, 32] nibbles; 32 bytes carry one group low and the next one high."""
    quarters = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([quarters & 0x0F, quarters >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(raw: Bytes) -> Floats:
    return _k_affine(raw, _pairs_of_groups(raw[:, 16:144]))


def _q5_k(raw: Bytes) -> Floats:
    bit = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = ((raw[:, None, 16:48] >> bit) & 1) << 4
    return _k_affine(raw, _pairs_of_groups(raw[:, 48:176]) | fifth)


def _q6_k(raw: Bytes) -> Floats:
    """128 bytes of low nibbles, 64 of high bit pairs, 16 scales, one f16; two halves of 128."""
    n = len(raw)
    low = raw[:, 0:128].reshape(n, 2, 1, 64)
    low = np.concatenate([low & 0x0F, low >> 4], axis=2).reshape(n, 8, 32)
    shift = np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]
    high = ((raw[:, 128:192].reshape(n, 2, 1, 32) >> shift) & 3).reshape(n, 8, 32)
    integers = ((low | (high << 4)).view(np.int8) - 32).reshape(n, 16, 16)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    scale = _f16(raw[:, 208:210]) * scales
    return (scale[:, :, None] * integers.astype(np.float32)).reshape(n, 256)


@dataclass(frozen=True, slots=True)
class QuantType:
    """How a tensor's weights are packed."""

    name: str
    # weights in one block, and the bytes that they take; 0 and 0 for a type that cannot be read
    block_weights: int
    block_bytes: int
    # [n, block_bytes] uint8 -> [n, block_weights] float32
    convert: Callable[[Bytes], Floats] | None

    @property
    def readable(self) -> bool:
        return self.convert is not None


# Keyed by ggml's type number, as it stands in the file.
QUANT_TYPES: dict[int, QuantType] = {
    0: QuantType("F32", 1, 4, _f32),
    1: QuantType("F16", 1, 2, _f16),
    2: QuantType("Q4_0", 32, 18, _q4_0),
    3: QuantType("Q4_1", 32, 20, _q4_1),
    6: QuantType("Q5_0", 32, 22, _q5_0),
    7: QuantType("Q5_1", 32, 24, _q5_1),
    8: QuantType("Q8_0", 32, 34, _q8_0),
    12: QuantType("Q4_K", 256, 144, _q4_k),
    13: QuantType("Q5_K", 256, 176, _q5_k),
    14: QuantType("Q6_K", 256, 210, _q6_k),
    30: QuantType("BF16", 1, 2, _bf16),
}


def quant_type(number: int) -> QuantType:
    """The type with this number; an unreadable one for a number that we do not know."""
    return QUANT_TYPES.get(number) or QuantType(f"ggml type {number}", 0, 0, None)


def dequantise(raw: Bytes, kind: QuantType) -> Floats:
    """Raw bytes of whole blocks (flat uint8) -> flat float32. `kind` must be readable."""
    if kind.convert is None:
        raise ValueError(f"{kind.name} cannot be read")
    blocks = raw.reshape(-1, kind.block_bytes)
    out = np.empty((len(blocks), kind.block_weights), dtype=np.float32)
    piece = max(1, _PIECE_BYTES // kind.block_bytes)
    # damaged scales may be infinite; that is the data's property, not a fault of the arithmetic
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), piece):
            out[start : start + piece] = kind.convert(blocks[start : start + piece])
    return out.reshape(-1)
