"""The noise of the sampling rule, bit by bit: a function of seed, position and token id alone.

* word(seed, t, id): Philox4x32-10 (Salmon et al. 2011) with counter (id >> 2, t, 0, 0) and key
  (seed mod 2^32, seed >> 32 mod 2^32); of its four words number id & 3.
* u = (word + 0.5) * 2^-32 in float64: exact, and strictly between 0 and 1.
* g = -ln(-ln(u)) with `natural_log` below: additions, multiplications and divisions in a fixed
  order, which IEEE 754 makes the same everywhere (on a GPU: without fused multiply-add).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # each below 2^32; 64 bits so that products fit
Floats = NDArray[np.float64]
Ids = NDArray[np.intp]

_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> list[Words]:
    """Ten rounds over arrays of counters that broadcast together. Returns the four words."""
    c0, c1, c2, c3 = counter
    for n in range(_ROUNDS):
        k0, k1 = (np.uint64((k + n * w) & 0xFFFFFFFF) for k, w in zip(key, _WEYL, strict=True))
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p1 >> _HALF) ^ (c1 ^ k0),
            p1 & _WORD,
            (p0 >> _HALF) ^ (c3 ^ k1),
            p0 & _WORD,
        )
    return [c0, c1, c2, c3]


def uniforms(seed: int, position: int, token_ids: Ids) -> Floats:
    """u of each token id [n], strictly between 0 and 1."""
    blocks = (token_ids >> 2).astype(np.uint64)
    words = _philox_blocks(seed, position, blocks)  # [4, n]
    chosen = np.take_along_axis(words, (token_ids & 3)[None], axis=0)[0]
    return _to_unit(chosen)


def all_uniforms(seed: int, position: int, vocabulary: int) -> Floats:
    """The same as `uniforms` for ids 0..vocabulary - 1, a quarter of the work."""
    words = _philox_blocks(seed, position, np.arange(-(-vocabulary // 4), dtype=np.uint64))
    return _to_unit(words.T.reshape(-1)[:vocabulary])


def natural_log(x: Floats) -> Floats:
    """ln(x) for finite x > 0: 2 artanh((m - 1) / (m + 1)) + e ln 2 with x = m 2^e, m in [0.7, 1.42).

    Twelve terms of the series leave less than 1e-17; the sum runs from the smallest term up.
    """
    mantissa, exponent = np.frexp(x)  # [0.5, 1)
    low = mantissa < 0.7071067811865476
    mantissa = np.where(low, mantissa * 2, mantissa)
    exponent = exponent - low
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = np.full_like(s, 1 / 23)
    for odd in range(21, 0, -2):
        series = series * square + 1 / odd
    return 2 * s * series + exponent * 0.6931471805599453


def gumbel(seed: int, position: int, token_ids: Ids) -> Floats:
    """The noise g(seed, position, id) of each token id [n]."""
    return -natural_log(-natural_log(uniforms(seed, position, token_ids)))


def _philox_blocks(seed: int, position: int, blocks: Words) -> Words:
    """[4, n] words below 2^32 for block numbers [n]."""
    zero = np.zeros(1, dtype=np.uint64)
    counter = (blocks, zero + np.uint64(position), zero, zero)
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    return np.stack(np.broadcast_arrays(*philox4x32(counter, key)))


def _to_unit(words: Words) -> Floats:
    return (words.astype(np.float64) + 0.5) * 2.0**-32
