"""Logits to token on the device, by exactly the rule of engine/sampling.py.

`survey` looks at all logits at once, block by block: the largest logit, the largest sum of x and
noise, and the block's share of the softmax. `decide` is one program that picks the token.

top_k, top_p and min_p keep a run of the order "larger x first, lower id first". So `decide` needs no
sorting: it takes the token with the largest sum, counts and weighs what stands before it in that
order, and if it is not kept, nothing behind it is either: the search goes on among what stands
before it. A draw falls into the kept run with the run's own probability, so one look is the rule.
Only top_k and top_p together need the k-th largest logit first (a search by four histograms).

Sums of weights run in another order than on the CPU: a cut may differ where a sum of
probabilities comes within about 1e-14 of top_p, and nowhere else.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.cuda.launch import start_next, wait_for_last
from engine.kernels.cuda.noise import gumbel

NO_ID = tl.constexpr(0x7FFFFFFF)
# What stands in `ints` and in `reals`.
TOP_K, SEED_LOW, SEED_HIGH, NEXT, POSITION = (tl.constexpr(n) for n in range(5))
# LOG_MIN_P: ln(min_p), -infinity where it keeps all
TEMPERATURE, TOP_P, LOG_MIN_P = (tl.constexpr(n) for n in range(3))


@triton.jit
def survey(
    logits,  # [V] float32
    ints,
    reals,
    scores,  # [V] float64: x + noise, for `decide`; untouched at temperature 0
    best_logit,  # [B] float32; infinity where a logit is no number
    best_id,  # [B] int32
    best_score,  # [B] float64
    score_id,  # [B] int32
    weight,  # [B] float64: sum of exp(x - the block's largest x)
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    block = tl.program_id(0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < V
    start_next(PDL)
    wait_for_last(PDL)
    row = tl.load(logits + ids, mask=inside, other=float("-inf"))
    broken = tl.max((row != row).to(tl.int32))
    largest = tl.where(broken > 0, float("inf"), tl.max(row))
    tl.store(best_logit + block, largest)
    tl.store(best_id + block, tl.min(tl.where(row == largest, ids, NO_ID)))
    temperature = tl.load(reals + TEMPERATURE)
    if temperature > 0:
        x = row.to(tl.float64) / temperature
        low, high = tl.load(ints + SEED_LOW), tl.load(ints + SEED_HIGH)
        score = x + gumbel(low, high, tl.load(ints + NEXT), ids)
        tl.store(scores + ids, score, mask=inside)
        winner = tl.max(score)
        tl.store(best_score + block, winner)
        tl.store(score_id + block, tl.min(tl.where(score == winner, ids, NO_ID)))
        tl.store(weight + block, tl.sum(tl.exp(x - tl.max(x))))


@triton.jit
def decide(
    logits,
    ints,
    reals,
    scores,
    best_logit,
    best_id,
    best_score,
    score_id,
    weight,
    table,  # [V, D]: embedding
    hidden,  # [D] float32: the chosen token's embedding
    seen,  # [S] int32, memory of the host that the device can write: token by position; -1: broken
    V: tl.constexpr,
    B: tl.constexpr,
    BLOCKS: tl.constexpr,  # a power of two, at least B
    TILE: tl.constexpr,
    D: tl.constexpr,
    WIDTH: tl.constexpr,  # a power of two, at least D
    PDL: tl.constexpr,
):
    start_next(PDL)
    wait_for_last(PDL)
    blocks = tl.arange(0, BLOCKS)
    there = blocks < B
    maxima = tl.load(best_logit + blocks, mask=there, other=float("-inf"))
    largest = tl.max(maxima)
    firsts = tl.load(best_id + blocks, mask=there, other=NO_ID)
    token = tl.min(tl.where(maxima == largest, firsts, NO_ID))
    temperature = tl.load(reals + TEMPERATURE)
    sound = (largest < float("inf")) & (largest > float("-inf"))
    if sound & (temperature > 0):
        sums = tl.load(best_score + blocks, mask=there, other=float("-inf"))
        winners = tl.load(score_id + blocks, mask=there, other=NO_ID)
        token = tl.min(tl.where(sums == tl.max(sums), winners, NO_ID))
        top_k = tl.load(ints + TOP_K).to(tl.int32)
        top_k = tl.where((top_k <= 0) | (top_k > V), V, top_k)
        top_p = tl.load(reals + TOP_P)
        log_min_p = tl.load(reals + LOG_MIN_P)
        if (top_k < V) | (top_p < 1) | (log_min_p > float("-inf")):
            top = largest.to(tl.float64) / temperature
            shares = tl.load(weight + blocks, mask=there, other=0.0)
            distance = tl.where(there, maxima.to(tl.float64) / temperature - top, 0.0)
            total = tl.sum(shares * tl.exp(distance))
            if (top_k < V) & (top_p < 1):
                total = weight_of_top_k(logits, temperature, top, top_k, V, TILE)
            least = top + log_min_p
            token = kept(
                logits, scores, token, temperature, top, top_k, top_p, least, total, V, TILE
            )
    position = tl.load(ints + NEXT)
    tl.store(seen + position, tl.where(sound, token, -1))
    tl.store(ints + POSITION, position)
    tl.store(ints + NEXT, position + 1)
    # a broken row names no token; the pass goes on with the first, and the host throws it away
    cells, token = tl.arange(0, WIDTH), tl.where(sound, token, 0)
    row = tl.load(table + token.to(tl.int64) * D + cells, mask=cells < D, other=0.0)
    tl.store(hidden + cells, row.to(tl.float32), mask=cells < D)


@triton.jit
def kept(
    logits,
    scores,
    token,
    temperature,
    top,
    top_k,
    top_p,
    least,
    total,
    V: tl.constexpr,
    TILE: tl.constexpr,
):
    """`token` if the cuts keep it, else the best of those before it, and so on.

    least: the smallest x that min_p keeps.
    """
    settled = False
    while not settled:
        pivot = tl.load(logits + token)
        count = tl.zeros([TILE], tl.int32)
        weight = tl.zeros([TILE], tl.float64)
        best = tl.full([TILE], float("-inf"), tl.float64)
        best_id = tl.full([TILE], NO_ID, tl.int32)
        for start in range(0, V, TILE):
            ids = start + tl.arange(0, TILE)
            row = tl.load(logits + ids, mask=ids < V, other=float("-inf"))
            before = (ids < V) & ((row > pivot) | ((row == pivot) & (ids < token)))
            count += before.to(tl.int32)
            if tl.max(before.to(tl.int32)) > 0:
                share = tl.exp(row.to(tl.float64) / temperature - top)
                weight += tl.where(before, share, 0.0)
                score = tl.load(scores + ids, mask=before, other=float("-inf"))
                better = score > best
                best = tl.where(better, score, best)
                best_id = tl.where(better, ids, best_id)
        ahead = tl.sum(count)
        enough = (ahead < top_k) & ((top_p >= 1) | (tl.sum(weight) < top_p * total))
        enough = enough & (pivot.to(tl.float64) / temperature >= least)
        settled = (ahead == 0) | enough
        if not settled:
            token = tl.min(tl.where(best == tl.max(best), best_id, NO_ID))
    return token


@triton.jit
def ordered(row):
    """float32 -> int64 in 0..2^32 - 1 with the same order; both zeros are one number."""
    bits = (row + 0.0).to(tl.int32, bitcast=True).to(tl.int64)
    bits = tl.where(bits < 0, bits & 0xFFFFFFFF, bits)
    return tl.where(bits >= 0x80000000, 0xFFFFFFFF - bits, bits + 0x80000000)


@triton.jit
def weight_of_top_k(logits, temperature, top, top_k, V: tl.constexpr, TILE: tl.constexpr):
    """Sum of exp(x - top) over the top_k largest; equals share one weight, so ids do not matter."""
    low = tl.full([], 0, tl.int64)  # the key of the k-th largest, eight bits at a time
    wanted = top_k
    digits = tl.arange(0, 256)
    for level in tl.static_range(4):
        shift = 24 - 8 * level
        bins = tl.zeros([256], tl.int32)
        for start in range(0, V, TILE):
            ids = start + tl.arange(0, TILE)
            row = tl.load(logits + ids, mask=ids < V, other=float("-inf"))
            key = ordered(row)
            alike = (ids < V) & ((key >> (shift + 8)) == (low >> (shift + 8)))
            bins += tl.histogram(((key >> shift) & 255).to(tl.int32), 256, mask=alike)
        reached = tl.cumsum(bins, 0, reverse=True)
        digit = tl.max(tl.where(reached >= wanted, digits, 0))
        wanted -= tl.sum(tl.where(digits > digit, bins, 0))
        low += digit.to(tl.int64) << shift
    count = tl.zeros([TILE], tl.int32)
    weight = tl.zeros([TILE], tl.float64)
    least = tl.full([TILE], float("inf"), tl.float32)
    for start in range(0, V, TILE):
        ids = start + tl.arange(0, TILE)
        row = tl.load(logits + ids, mask=ids < V, other=float("-inf"))
        above = (ids < V) & (ordered(row) > low)
        count += above.to(tl.int32)
        weight += tl.where(above, tl.exp(row.to(tl.float64) / temperature - top), 0.0)
        least = tl.minimum(least, tl.where((ids < V) & (ordered(row) == low), row, float("inf")))
    last = tl.exp(tl.min(least).to(tl.float64) / temperature - top)
    return tl.sum(weight) + (top_k - tl.sum(count)).to(tl.float64) * last
