"""When to look for the next token."""

from __future__ import annotations

import pytest

from engine.runtime.rhythm import EARLY_SECONDS, LATE_SECONDS, PAUSE_SECONDS, Rhythm

GAP_S = 770e-6


def after(*times_s: float) -> Rhythm:
    rhythm = Rhythm()
    for time_s in times_s:
        rhythm.seen(time_s)
    return rhythm


@pytest.mark.parametrize("rhythm", [after(), after(1.0)], ids=["no token", "one token"])
def test_without_a_pace_it_looks_now_and_then(rhythm: Rhythm):
    assert rhythm.pause_seconds(1.0) == PAUSE_SECONDS


def test_it_sleeps_until_shortly_before_the_token_is_due():
    rhythm = after(1.0, 1.0 + GAP_S)
    assert rhythm.pause_seconds(1.0 + GAP_S) == pytest.approx(GAP_S - EARLY_SECONDS)


def test_near_the_token_it_does_not_sleep_and_behind_it_it_does_again():
    rhythm, due_s = after(1.0, 1.0 + GAP_S), 1.0 + 2 * GAP_S
    assert rhythm.pause_seconds(due_s - EARLY_SECONDS / 2) == 0
    assert rhythm.pause_seconds(due_s + LATE_SECONDS / 2) == 0
    assert rhythm.pause_seconds(due_s + LATE_SECONDS * 1.1) == PAUSE_SECONDS


def test_one_long_gap_moves_the_pace_little_and_a_new_pace_is_found():
    rhythm = after(1.0, 1.0 + GAP_S, 2.0)
    assert rhythm.pause_seconds(2.0) == pytest.approx(1.2 * GAP_S - EARLY_SECONDS)
    for n in range(40):
        rhythm.seen(3.0 + n * 2 * GAP_S)
    assert rhythm.pause_seconds(3.0 + 39 * 2 * GAP_S) == pytest.approx(
        2 * GAP_S - EARLY_SECONDS, rel=0.01
    )
