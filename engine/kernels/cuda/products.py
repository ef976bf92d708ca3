"""Matrix times vector: every weight is read once, every vector comes from the caches.

One program takes ROWS rows over their whole length, so that all of its weights can be in flight
before it has to wait for the vector. Sums are float32; weights may be bfloat16 or float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.cuda.launch import start_next, wait_for_last


@triton.jit
def load_tile(weight, ROWS: tl.constexpr, BLOCK: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """This program's [ROWS, BLOCK] of weight [N, K]; read once, so it should not push others out.

    One 64-bit address a program and 32-bit distances from it: a tile of addresses would take more
    registers than the weights themselves.
    """
    first = tl.program_id(0) * ROWS
    rows, columns = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (rows < N - first)[:, None] & (columns < K)[None, :]
    places = weight + first.to(tl.int64) * K + (rows[:, None] * K + columns[None, :])
    return tl.load(places, mask=inside, other=0.0, eviction_policy="evict_first")


@triton.jit
def weighted(hidden, gain, columns, eps, K: tl.constexpr):
    """hidden * gain [BLOCK] and 1 / rms(hidden): the norm's two factors.

    Apart, because the sum over hidden^2 and the product's own sums can then run side by side.
    """
    x = tl.load(hidden + columns, mask=columns < K, other=0.0)
    return x * gain, 1.0 / tl.sqrt_rn(tl.sum(x * x) / K + eps)


@triton.jit
def norm_product(
    hidden,  # [K] float32
    gain,  # [K] float32
    weight,  # [N, K]
    out,  # [N] float32
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two, at least K
    HOLD: tl.constexpr,  # start the next kernel only when the last one is complete
    PDL: tl.constexpr,
):
    """out = weight @ rms_norm(hidden)."""
    if not HOLD:
        start_next(PDL)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    tile = load_tile(weight, ROWS, BLOCK, N, K)
    scale = tl.load(gain + columns, mask=columns < K, other=0.0)
    wait_for_last(PDL)
    if HOLD:
        start_next(PDL)
    x, inverse_rms = weighted(hidden, scale, columns, eps, K)
    y = tl.sum(tile.to(tl.float32) * x[None, :], axis=1)
    tl.store(out + rows, y * inverse_rms, mask=rows < N)


@triton.jit
def norm_swiglu(
    hidden,  # [K] float32
    gain,  # [K] float32
    weight,  # [2 N, K], the gate's half first
    out,  # [N] float32
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """out = silu(gate) * up with gate, up = weight @ rms_norm(hidden)."""
    start_next(PDL)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    gate_tile = load_tile(weight, ROWS, BLOCK, N, K)
    up_tile = load_tile(weight + N * K, ROWS, BLOCK, N, K)
    scale = tl.load(gain + columns, mask=columns < K, other=0.0)
    wait_for_last(PDL)
    x, inverse_rms = weighted(hidden, scale, columns, eps, K)
    gate = tl.sum(gate_tile.to(tl.float32) * x[None, :], axis=1) * inverse_rms
    up = tl.sum(up_tile.to(tl.float32) * x[None, :], axis=1) * inverse_rms
    tl.store(out + rows, gate / (1.0 + tl.exp(-gate)) * up, mask=rows < N)


@triton.jit
def product_add(
    vector,  # [K] float32
    weight,  # [N, K]
    hidden,  # [N] float32, in place
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """hidden += weight @ vector."""
    start_next(PDL)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    tile = load_tile(weight, ROWS, BLOCK, N, K)
    wait_for_last(PDL)
    x = tl.load(vector + columns, mask=columns < K, other=0.0)
    before = tl.load(hidden + rows, mask=rows < N, other=0.0)
    y = tl.sum(tile.to(tl.float32) * x[None, :], axis=1)
    tl.store(hidden + rows, before + y, mask=rows < N)
