"""One query position against its cache: rotation, append, attention, in one kernel.

The positions are split among SPLITS programs for each key head (Flash-Decoding, Dao et al. 2023).
How many of them have work follows from the position, which is device data, so a captured graph
serves every length. The program that finishes last combines the others' parts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.kernels.cuda.choice import POSITION
from engine.kernels.cuda.launch import start_next, wait_for_last


@triton.jit
def rotated(vector, cells, inside, cosine, sine):
    """vector[cells] in neighbouring pairs, each turned by its angle."""
    own = tl.load(vector + cells, mask=inside, other=0.0)
    other = tl.load(vector + (cells ^ 1), mask=inside, other=0.0)
    return own * cosine + tl.where(cells % 2 == 0, -other, other) * sine


@triton.jit
def attend(
    qkv,  # [(H + 2 K) E] float32
    keys,  # [K, S, E] of this layer
    values,  # [K, S, E]
    table,  # [S, E / 2, 2] float32
    ints,  # POSITION is among them
    parts,  # [H, SPLITS, E] float32
    part_max,  # [H, SPLITS]
    part_sum,  # [H, SPLITS]
    arrived,  # [K] int32, zeros before and after
    out,  # [H E] float32
    S: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    E: tl.constexpr,
    GROUP: tl.constexpr,  # a power of two, at least H / K and 16 (the matrix units')
    TILE: tl.constexpr,  # positions read at once
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (k, split) serves the H / K queries of key head k over its share of positions."""
    start_next(PDL)
    head, split = tl.program_id(0), tl.program_id(1)
    # Read before the wait: the kernel before this one holds it back until both are complete. From
    # the second-level cache, since the first-level one may still have an earlier step's line.
    position = tl.load(ints + POSITION, cache_modifier=".cg").to(tl.int32)
    tiles = tl.cdiv(position + 1, TILE)
    active = tl.minimum(tiles, SPLITS)
    share = tl.cdiv(tiles, active) * TILE
    active = tl.cdiv(position + 1, share)
    start = split * share
    end = tl.minimum(start + share, position)  # what stood in the cache before this step
    cells, places = tl.arange(0, E), tl.arange(0, TILE)
    spread = places[:, None] * E + cells[None, :]
    cache = (head * S + start).to(tl.int64) * E
    seen = (places < end - start)[:, None]
    k_tile = tl.load(keys + cache + spread, mask=seen, other=0.0, cache_modifier=".cg")
    v_tile = tl.load(values + cache + spread, mask=seen, other=0.0, cache_modifier=".cg")
    turn = table + position.to(tl.int64) * E + cells // 2 * 2
    cosine, sine = tl.load(turn), tl.load(turn + 1)
    wait_for_last(PDL)
    if split < active:
        members = tl.arange(0, GROUP)
        inside = members < H // K
        q_cells = (head * (H // K) + members)[:, None] * E + cells[None, :]
        q = rotated(qkv, q_cells, inside[:, None], cosine[None, :], sine[None, :]) * (
            E**-0.5
        )  # [GROUP, E]
        best = tl.full([GROUP], -1e30, tl.float32)
        total = tl.zeros([GROUP], tl.float32)
        acc = tl.zeros([GROUP, E], tl.float32)
        if (start <= position) & (position < start + share):  # the newest is this program's
            new_k = rotated(qkv, (H + head) * E + cells, cells < E, cosine, sine)
            new_v = tl.load(qkv + (H + K + head) * E + cells)
            slot = (head * S + position).to(tl.int64) * E + cells
            # as the cache will give them back to later steps
            new_k = new_k.to(keys.dtype.element_ty)
            new_v = new_v.to(values.dtype.element_ty)
            tl.store(keys + slot, new_k)
            tl.store(values + slot, new_v)
            best = tl.sum(q * new_k.to(tl.float32)[None, :], axis=1)
            total = tl.full([GROUP], 1.0, tl.float32)
            acc += new_v.to(tl.float32)[None, :]
        while start < end:
            inside_tile = (places < end - start)[None, :]
            scores = tl.where(inside_tile, product(q, tl.trans(k_tile)), -1e30)  # [GROUP, TILE]
            higher = tl.maximum(best, tl.max(scores, axis=1))
            weights = tl.where(inside_tile, tl.exp(scores - higher[:, None]), 0.0)
            shrink = tl.exp(best - higher)
            total = total * shrink + tl.sum(weights, axis=1)
            acc = acc * shrink[:, None] + product(weights, v_tile)
            best = higher
            start += TILE
            cache += TILE * E
            seen = (places < end - start)[:, None]
            k_tile = tl.load(keys + cache + spread, mask=seen, other=0.0, cache_modifier=".cg")
            v_tile = tl.load(values + cache + spread, mask=seen, other=0.0, cache_modifier=".cg")
        if active == 1:
            tl.store(out + q_cells, acc / total[:, None], mask=inside[:, None])
        else:
            heads = head * (H // K) + members
            tl.store(part_max + heads * SPLITS + split, best, mask=inside)
            tl.store(part_sum + heads * SPLITS + split, total, mask=inside)
            part_cells = (heads * SPLITS + split)[:, None] * E + cells[None, :]
            tl.store(parts + part_cells, acc, mask=inside[:, None])
            tl.debug_barrier()
            before = tl.atomic_add(arrived + head, 1, sem="acq_rel")
            if before == active - 1:
                for member in tl.static_range(H // K):
                    one = head * (H // K) + member
                    combine(parts, part_max, part_sum, one, active, out, E, SPLITS)
                tl.store(arrived + head, 0)


@triton.jit
def product(left, right):
    """left [M, K] float32 @ right [K, N] as the cache has it, as exact as float32 sums are.

    A float32 number is two bfloat16 numbers to 16 bits, so two passes of the matrix units do.
    """
    if right.dtype == tl.float32:
        return tl.dot(left, right, input_precision="ieee")
    else:
        coarse = left.to(right.dtype)
        rest = (left - coarse.to(tl.float32)).to(right.dtype)
        return tl.dot(rest, right, tl.dot(coarse, right))


@triton.jit
def combine(parts, part_max, part_sum, head, active, out, E: tl.constexpr, SPLITS: tl.constexpr):
    """The parts of one query head as one: each weighed by exp(its maximum - the largest)."""
    cells, splits = tl.arange(0, E), tl.arange(0, SPLITS)
    there = splits < active
    row = head * SPLITS + splits
    # from the second-level cache: other multiprocessors wrote them a moment ago
    best = tl.load(part_max + row, mask=there, other=-1e30, cache_modifier=".cg")
    sums = tl.load(part_sum + row, mask=there, other=0.0, cache_modifier=".cg")
    part = row[:, None] * E + cells[None, :]
    acc = tl.load(parts + part, mask=there[:, None], other=0.0, cache_modifier=".cg")
    weight = tl.exp(best - tl.max(best))
    mixed = tl.sum(weight[:, None] * acc, axis=0) / tl.sum(weight * sums)
    tl.store(out + head * E + cells, mixed)
