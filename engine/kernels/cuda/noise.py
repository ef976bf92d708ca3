"""The noise of engine/sampling.py, bit for bit: Philox4x32-10, then two specified logarithms.

Kernels that use it are compiled with `enable_fp_fusion=False`: a fused multiply-add rounds once
where the rule rounds twice.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def philox_word(seed_low, seed_high, position, token_ids):
    """Word `id & 3` of counter (id >> 2, position, 0, 0); uint64 below 2^32, as all values here."""
    word = tl.full([1], 0xFFFFFFFF, tl.uint64)
    c0 = (token_ids >> 2).to(tl.uint64)
    c1 = tl.zeros_like(c0) + position.to(tl.uint64)
    c2, c3 = tl.zeros_like(c0), tl.zeros_like(c0)
    k0, k1 = seed_low.to(tl.uint64), seed_high.to(tl.uint64)
    for _ in tl.static_range(10):
        p0 = c0 * tl.full([1], 0xD2511F53, tl.uint64)
        p1 = c2 * tl.full([1], 0xCD9E8D57, tl.uint64)
        c0 = (p1 >> 32) ^ c1 ^ k0
        c2 = (p0 >> 32) ^ c3 ^ k1
        c1, c3 = p1 & word, p0 & word
        k0 = (k0 + tl.full([1], 0x9E3779B9, tl.uint64)) & word
        k1 = (k1 + tl.full([1], 0xBB67AE85, tl.uint64)) & word
    lane = token_ids & 3
    return tl.where(lane == 0, c0, tl.where(lane == 1, c1, tl.where(lane == 2, c2, c3)))


@triton.jit
def natural_log(x):
    """ln(x) of normal float64 x > 0, in the order of operations that the rule names."""
    bits = x.to(tl.int64, bitcast=True)
    exponent = ((bits >> 52) & 0x7FF) - 1022
    fraction = (bits & 0xFFFFFFFFFFFFF) | (tl.full([1], 1022, tl.int64) << 52)
    mantissa = fraction.to(tl.float64, bitcast=True)  # [0.5, 1)
    low = mantissa < tl.full([1], 0.7071067811865476, tl.float64)
    mantissa = tl.where(low, mantissa * 2, mantissa)
    exponent = exponent - low.to(tl.int64)
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    one = tl.full([1], 1.0, tl.float64)
    series = tl.zeros_like(s) + one / 23
    for n in tl.static_range(11):
        series = series * square + one / (21 - 2 * n)
    return 2 * s * series + exponent.to(tl.float64) * tl.full([1], 0.6931471805599453, tl.float64)


@triton.jit
def gumbel(seed_low, seed_high, position, token_ids):
    """g(seed, position, id) of each id, float64."""
    word = philox_word(seed_low, seed_high, position, token_ids)
    scale = tl.full([1], 2.3283064365386963e-10, tl.float64)  # 2^-32
    u = (word.to(tl.int64).to(tl.float64) + 0.5) * scale
    return -natural_log(-natural_log(u))
