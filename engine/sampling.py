"""How the next token is chosen: one rule, the same on every machine and for every drafter.

At absolute position t (the number of tokens before the one to choose), from logits l [V]:

1. temperature 0: the largest logit; the lowest id among equals. Nothing below applies.
2. x = l / temperature, in float64. What lies more than 45 below the largest x is left out: all
   together it has less than 1e-14 of the probability.
3. top_k: keep the k largest x; among equals the lower id goes first. 0 keeps all.
4. top_p: of those, the shortest run from the largest down whose probabilities (softmax over what
   step 3 kept) sum to at least top_p; never less than one token.
5. The answer is the kept token with the largest x + g(seed, t, id); the lowest id among equals.

Adding Gumbel noise and taking the largest draws from softmax(x) exactly (Gumbel 1954; Maddison et
al. 2014, arXiv:1411.0030). g depends on nothing but its three arguments, so an answer can be
repeated, and a draft is right exactly when the rule would have chosen it.

The noise, bit by bit:

* word(seed, t, id): Philox4x32-10 (Salmon et al. 2011) with counter (id >> 2, t, 0, 0) and key
  (seed mod 2^32, seed >> 32 mod 2^32); of its four words number id & 3.
* u = (word + 0.5) * 2^-32 in float64: exact, and strictly between 0 and 1.
* g = -ln(-ln(u)) with `natural_log` below: additions, multiplications and divisions in a fixed
  order, which IEEE 754 makes the same everywhere (on a GPU: without fused multiply-add).

Cost on one core, V = 49152: greedy 5 us; temperature 0.2 with top_p 0.9 0.2 ms; top_k 40 0.6 ms;
nothing cut 0.8 ms; temperature 1 with top_p 0.9, where thousands are kept, 1.5 ms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.types import ModelFileError, SamplingParams

Words = NDArray[np.uint64]  # each below 2^32; 64 bits so that products fit
Floats = NDArray[np.float64]
Ids = NDArray[np.intp]

_WORD = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

# With g in -3.13 .. 22.9 a token that far below the largest could not win either.
_NEGLIGIBLE = 45.0
# Far more than the library's logarithm and ours can differ by in g.
_LOG_MARGIN = 1e-6


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


def choose(logits: Tensor, params: SamplingParams, position: int) -> int:
    """The token at `position` by the rule above. logits [V] float32.

    Raises ModelFileError when the logits are not numbers.
    """
    values = logits.numpy()
    best = int(values.argmax())  # the first among equals
    if not math.isfinite(values[best]):
        raise ModelFileError("The model computes values that are not numbers; its file is damaged.")
    if params.temperature == 0:
        return best
    token_ids, scaled = _kept(values, params)
    if len(token_ids) == 1:
        return best
    if len(token_ids) * 4 < len(values):
        return _noisy_best(scaled, token_ids, params.seed, position)
    return _noisy_best_of_many(scaled, token_ids, params.seed, position, len(values))


def kept_tokens(logits: Tensor, params: SamplingParams) -> set[int]:
    """Ids that can be chosen at all: what steps 3 and 4 leave over."""
    return set(_kept(logits.numpy(), params)[0].tolist())


def _kept(logits: NDArray[np.float32], params: SamplingParams) -> tuple[Ids, Floats]:
    """Token ids and x of what steps 2 to 4 leave over."""
    least = float(logits.max()) - _NEGLIGIBLE * params.temperature
    token_ids = np.flatnonzero(logits >= least)  # ascending
    scaled = logits[token_ids].astype(np.float64) / params.temperature
    if 0 < params.top_k < len(token_ids):
        kept = _largest(scaled, params.top_k)
        token_ids, scaled = token_ids[kept], scaled[kept]
    if params.top_p < 1:
        kept = _nucleus(scaled, params.top_p)
        token_ids, scaled = token_ids[kept], scaled[kept]
    return token_ids, scaled


def _largest(scaled: Floats, count: int) -> Ids:
    """Places of the `count` largest; of those that equal the last, the first ones."""
    least = np.partition(scaled, -count)[-count]
    above, equal = np.flatnonzero(scaled > least), np.flatnonzero(scaled == least)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def _nucleus(scaled: Floats, top_p: float) -> Ids:
    """Places of the shortest run, from the largest down, that reaches `top_p`."""
    weights = np.exp(scaled - scaled.max())
    total = weights.sum()
    # All that are smaller than this sum to less than 1 - top_p, so the run ends before them.
    candidates = np.flatnonzero(weights >= total * (1 - top_p) / len(weights))
    order = candidates[np.argsort(-scaled[candidates], kind="stable")]
    reached = np.cumsum(weights[order])
    return order[: 1 + np.count_nonzero(reached[:-1] < top_p * total)]


def _noisy_best(scaled: Floats, token_ids: Ids, seed: int, position: int) -> int:
    """Step 5. scaled, token_ids [n]."""
    scores = scaled + gumbel(seed, position, token_ids)
    return int(token_ids[scores == scores.max()].min())


def _noisy_best_of_many(
    scaled: Floats, token_ids: Ids, seed: int, position: int, vocabulary: int
) -> int:
    """Step 5 over much of the vocabulary: a quick look first, the exact rule on what is close."""
    u = all_uniforms(seed, position, vocabulary)
    if len(token_ids) < vocabulary:
        u = u[token_ids]
    rough = scaled - np.log(-np.log(u))
    close = np.flatnonzero(rough >= rough.max() - _LOG_MARGIN)
    return _noisy_best(scaled[close], token_ids[close], seed, position)


def _philox_blocks(seed: int, position: int, blocks: Words) -> Words:
    """[4, n] words below 2^32 for block numbers [n]."""
    zero = np.zeros(1, dtype=np.uint64)
    counter = (blocks, zero + np.uint64(position), zero, zero)
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    return np.stack(np.broadcast_arrays(*philox4x32(counter, key)))


def _to_unit(words: Words) -> Floats:
    return (words.astype(np.float64) + 0.5) * 2.0**-32
