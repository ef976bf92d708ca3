"""How long a waiting question may still wait: pure arithmetic on what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

# Fewer measured leases than this say nothing.
LEAST_MEASURED = 3
# The shares of grants that `scripts/_turns.lua` gives the tiers (a test compares the two).
WEIGHTS = {"priority": 6, "browser": 3, "api": 2}


def position(lane: str, rank: int, waiting: Mapping[str, int]) -> int:
    """How many grants it takes, over all lanes, until `rank` (1..n) of `lane` has its turn.

    The returned lane "r" goes first. While this lane gives `rank` of its own, each other tier gets
    grants in proportion to its weight, as far as somebody waits there.
    """
    if lane == "r":
        return rank
    others = sum(
        min(waiting.get(tier, 0), math.ceil(rank * weight / WEIGHTS[lane]))
        for tier, weight in WEIGHTS.items()
        if tier != lane
    )
    return waiting.get("r", 0) + rank + others


def wait_seconds(
    turns_ms: tuple[int, ...], grants_ahead: int, nodes: int
) -> tuple[float, float] | None:
    """(shortest, longest) wait in seconds until the `grants_ahead`-th grant from now; None: unknown.

    `turns_ms` are the durations of the last leases in this pool. `nodes` leases run side by side, so
    the k-th grant comes in wave ceil(k / nodes). Shortest: all running leases are about to end and
    the waves before ours are short ones (lower quartile). Longest: all have just begun and all are
    long ones (upper quartile).
    """
    pace = quartiles(turns_ms)
    if pace is None or nodes < 1 or grants_ahead < 1:
        return None
    lower, upper = pace
    waves = math.ceil(grants_ahead / nodes)
    return (waves - 1) * lower / 1000, waves * upper / 1000


@lru_cache(maxsize=64)
def quartiles(turns_ms: tuple[int, ...]) -> tuple[int, int] | None:
    """Of the measured durations, the lower and the upper quartile (ms); None: too few to tell.

    Kept, for a crowd asks for the same ones ten thousand times.
    """
    if len(turns_ms) < LEAST_MEASURED:
        return None
    ordered = sorted(turns_ms)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
