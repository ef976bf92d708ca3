"""How far drafting goes: it pays where drafts are right, and costs next to nothing where not."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from engine.speculation.pace import Pace

PLAIN_MS = 4.0


def cost(rows: int, per_row: float) -> float:
    return PLAIN_MS * (1 + per_row * (rows - 1))


def play(
    pace: Pace,
    tokens: int,
    right: Callable[[int], bool],
    *,
    per_row: float = 0.3,
    draft_ms: float = 0.0,
    noise: float = 0.0,
    kind: str = "lookup 3",
) -> float:
    """Write `tokens` with drafts that are right where `right(token number)`; the time over plain."""
    random = Random(3)
    pace.begin()
    took_ms, made = 0.0, 0
    while made < tokens:
        depth = pace.depth(kind, 7)
        pass_ms = cost(1 + depth, per_row) * (1 + random.uniform(-noise, noise))
        kept = 0
        while kept < depth and right(made + kept):
            kept += 1
        pace.passed(1 + depth, pass_ms)
        if depth:
            pace.checked(kind, depth, kept, draft_ms * depth)
        took_ms += pass_ms + draft_ms * depth
        made += 1 + kept
    return took_ms / (made * PLAIN_MS)


@pytest.mark.parametrize("kind", ["lookup 2", "lookup 8", "model"])
@pytest.mark.parametrize("per_row", [0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_drafts_that_are_never_right_cost_less_than_three_per_cent(
    kind: str, per_row: float, noise: float
):
    # rows that cost twenty times as much as believed are found out by the first pass of them
    allowed = 1.03 + (per_row > 1) * 0.03 + noise / 30
    assert play(Pace(), 300, lambda _: False, kind=kind, per_row=per_row, noise=noise) < allowed


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_drafts_that_are_seldom_right_cost_less_than_three_per_cent(share: float):
    random = Random(1)
    assert play(Pace(), 400, lambda _: random.random() < share, per_row=0.6) < 1.03


def test_a_drafter_that_is_slower_than_the_model_is_left_alone():
    assert play(Pace(), 300, lambda _: True, draft_ms=2 * PLAIN_MS, kind="model") < 1.03


def test_drafts_that_are_always_right_go_deep():
    assert play(Pace(), 300, lambda _: True, per_row=0.1) < 0.3
    pace = Pace()
    play(pace, 300, lambda _: True, per_row=0.1)
    assert pace.depth("lookup 3", 7) == 7
    assert pace.depth("lookup 3", 2) == 2


def test_the_depth_follows_what_a_row_costs():
    depths = []
    for per_row in (0.05, 0.2, 0.5, 2.0):
        pace, random = Pace(), Random(2)
        play(pace, 600, lambda _, r=random: r.random() < 0.6, per_row=per_row)
        depths.append(pace.depth("lookup 3", 7))
    assert depths == sorted(depths, reverse=True)
    assert depths[0] >= 3
    assert depths[-1] == 0


def test_it_finds_a_stretch_that_repeats_behind_one_that_does_not():
    took = play(Pace(), 1000, lambda n: n > 500, per_row=0.2)
    # the first half at the plain rate, the second three times as fast
    assert took < 0.75


def test_nothing_is_drafted_before_a_plain_pass_was_timed():
    pace = Pace()
    assert pace.depth("lookup 8", 7) == 0
    pace.passed(1, PLAIN_MS)
    assert pace.depth("lookup 8", 7) > 0


def test_the_next_seat_starts_from_first_guesses_and_known_times():
    pace = Pace()
    play(pace, 300, lambda _: True, per_row=0.1)
    pace.forget()
    assert (pace.records, pace.balance_ms) == ({}, 0.0)
    assert pace.cost_ms(8) == pytest.approx(cost(8, 0.1), rel=0.2)
