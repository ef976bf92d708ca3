"""What the C++ computes, in plain numpy: for the tests, and to read first.

Norm, SwiGLU, rotation and attention are those of `engine/layers`; here is what only this level has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.weights.rows import GROUP, Rows

STEPS = 32512  # 127 * 256: what the largest of a group becomes


class Activations(NamedTuple):
    """x [K] as integers: x ~ scale * (256 high + low)."""

    high: NDArray[np.int8]  # [K]
    low: NDArray[np.int8]  # [K]
    scale: NDArray[np.float32]  # [K / 32]
    sum: NDArray[np.float32]  # [K / 32]
    total: NDArray[np.int32]  # [K / 32]


def quantise(x: NDArray[np.float32]) -> Activations:
    """x [K] float32, K a multiple of 32."""
    groups = x.reshape(-1, GROUP)
    most = np.abs(groups).max(-1)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(STEPS) / most
    inverse = np.where(inverse < 3e38, inverse, 0).astype(np.float32)
    steps = np.rint(groups * inverse[:, None]).astype(np.int32)
    high = (steps + 128) >> 8
    low = steps - (high << 8)
    scale = most / np.float32(STEPS)
    total = steps.sum(-1, dtype=np.int32)
    sums = scale * total.astype(np.float32)
    return Activations(
        high.astype(np.int8).ravel(), low.astype(np.int8).ravel(), scale, sums, total
    )


def product(rows: Rows, x: Activations) -> NDArray[np.float64]:
    """W x [N] in float64 on what `rows.blocks` stands for and what x stands for."""
    weight = np.concatenate([_values(kind, raw) for kind, raw in rows.blocks()])
    steps = 256 * x.high.astype(np.float64) + x.low
    return weight @ (steps.reshape(-1, GROUP) * x.scale.astype(np.float64)[:, None]).ravel()


def _values(kind: str, raw: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Blocks [N, bytes of a row] -> [N, K]."""
    header = 4 if kind == "Q4_1" else 2
    size = header + (32 if kind == "Q8_0" else 16)
    blocks = raw.reshape(len(raw), -1, size)
    halves = np.ascontiguousarray(blocks[..., :header]).view(np.float16).astype(np.float64)
    scale = halves[..., :1]
    codes = blocks[..., header:]
    if kind == "Q8_0":
        values = codes.view(np.int8) * scale
    else:
        minimum = halves[..., 1:] if kind == "Q4_1" else -8 * scale
        values = np.concatenate([codes & 15, codes >> 4], axis=-1) * scale + minimum
    return values.reshape(len(raw), -1)
