from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.metrics import Gauge, SessionTotals
from engine.types import Accepted, Finished, Speed, Timing, Usage

# whole milliseconds: windows then end exactly where steps do, which is the hard case
STEPS = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 8)), min_size=1, max_size=60).map(
    lambda gaps: [(sum(gap for gap, _ in gaps[: i + 1]), n) for i, (_, n) in enumerate(gaps)]
)


def gauge(steps: list[tuple[int, int]]) -> Gauge:
    measured = Gauge()
    for t_ms, n_tokens in steps:
        measured.add(t_ms, n_tokens)
    return measured


def count(steps: list[tuple[int, int]], after_ms: float, until_ms: float) -> int:
    return sum(n for t_ms, n in steps if after_ms < t_ms <= until_ms)


def finished(measured: Gauge, first_ms: float, last_ms: float) -> Finished:
    return Finished(
        "stop",
        Usage(10, 0, measured.tokens, 1),
        Timing(prefill_ms=first_ms, decode_ms=last_ms - first_ms, total_ms=last_ms),
        measured.speed(),
        measured.accepted(),
    )


def test_even_steps_measure_their_rate_in_every_figure() -> None:
    measured = gauge([(500 + 10 * step, 1) for step in range(301)])
    assert measured.first_ms == 500
    assert measured.average() == 100
    assert measured.peak() == 100
    assert measured.live(3500) == 100
    assert measured.e2e() == 301 / 3.5


def test_the_peak_is_the_best_full_second() -> None:
    slow = [(100 * step, 1) for step in range(21)]
    fast = [(2000 + 20 * step, 1) for step in range(1, 51)]
    measured = gauge([*slow, *fast, *[(3000 + 100 * step, 1) for step in range(1, 21)]])
    assert measured.peak() == 50
    assert measured.average() == pytest.approx(90 / 5)


def test_a_token_exactly_a_second_old_has_left_the_window() -> None:
    measured = gauge([(0, 1), (1000, 5), (2000, 7)])
    assert measured.peak() == 7
    assert measured.live(2000) == 7
    assert measured.live(2999) == 7
    assert measured.live(3000) == 0


def test_the_first_full_second_may_end_between_steps() -> None:
    measured = gauge([(0, 1), (10, 9), (20, 9), (1500, 1), (9000, 1)])
    assert measured.peak() == 18


def test_further_steps_at_the_first_moment_are_outside_every_full_second() -> None:
    measured = gauge([(0, 1), (0, 9), (500, 2), (1500, 1), (9000, 1)])
    assert measured.peak() == 2


def test_a_step_with_an_earlier_time_counts_at_that_of_the_one_before() -> None:
    assert gauge([(0, 1), (1000, 1), (500, 1)]).average() == 2


def test_live_is_not_shown_before_a_quarter_of_a_second() -> None:
    measured = Gauge()
    assert measured.live(5000) is None
    measured.add(1000, 1)
    measured.add(1200, 4)
    assert measured.live(1249.9) is None
    assert measured.live(1250) == 16
    assert measured.live(1500) == 8
    assert measured.live(2000) == 4


def test_live_of_the_past_is_that_of_the_last_step() -> None:
    measured = gauge([(0, 1), (500, 3), (1500, 2)])
    assert measured.live(600) == measured.live(1500) == 2


@pytest.mark.parametrize("steps", [[], [(300, 4)], [(300, 4), (300, 2)], [(0, 1)]])
def test_where_no_time_passed_the_rate_is_zero(steps: list[tuple[int, int]]) -> None:
    measured = gauge(steps)
    assert measured.average() == 0
    assert measured.peak() == 0


def test_an_answer_at_time_zero_divides_by_nothing() -> None:
    assert gauge([(0, 3)]).speed() == Speed(0, 0, 0)


def test_a_step_without_tokens_is_none_and_a_negative_one_is_refused() -> None:
    measured = gauge([(5, 0)])
    assert (measured.steps, measured.first_ms) == (0, None)
    with pytest.raises(ValueError, match="take tokens back"):
        measured.add(6, -1)


def test_accepted_tokens_per_step() -> None:
    assert gauge([(0, 1), (10, 4), (20, 4)]).accepted() == Accepted(3, 1, 4)
    assert Gauge().accepted() == Accepted(0, 0, 0)


@given(STEPS)
def test_the_peak_is_never_below_the_average(steps: list[tuple[int, int]]) -> None:
    measured = gauge(steps)
    assert measured.peak() >= measured.average()


@given(STEPS)
def test_the_peak_is_the_largest_window_of_all(steps: list[tuple[int, int]]) -> None:
    first_ms, last_ms = steps[0][0], steps[-1][0]
    windows = [count(steps, end - 1000, end) for end in range(first_ms + 1000, last_ms + 1)]
    measured = gauge(steps)
    assert measured.peak() == max([measured.average(), *windows])


@given(STEPS)
def test_average_times_time_is_the_tokens_after_the_first_step(
    steps: list[tuple[int, int]],
) -> None:
    duration_ms = steps[-1][0] - steps[0][0]
    tokens = sum(n for _, n in steps[1:]) if duration_ms else 0
    assert gauge(steps).average() * duration_ms / 1000 == pytest.approx(tokens)


@given(STEPS, st.integers(0, 3000))
def test_live_counts_the_last_second(steps: list[tuple[int, int]], later_ms: int) -> None:
    now_ms = steps[-1][0] + later_ms
    elapsed_ms = now_ms - steps[0][0]
    shown = gauge(steps).live(now_ms)
    if elapsed_ms < 250:
        assert shown is None
    elif elapsed_ms < 1000:
        assert shown == pytest.approx(sum(n for _, n in steps[1:]) * 1000 / elapsed_ms)
    else:
        assert shown == count(steps, now_ms - 1000, now_ms)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 8)), max_size=40))
def test_times_that_run_backwards_break_nothing(steps: list[tuple[float, int]]) -> None:
    measured = Gauge()
    for t_ms, n_tokens in steps:
        measured.add(t_ms, n_tokens)
    speed = measured.speed()
    assert speed.peak >= speed.average >= 0
    assert speed.e2e >= 0


def test_memory_is_bounded_by_the_steps_of_a_second() -> None:
    measured = gauge([(step, 1) for step in range(20_000)])
    assert len(measured._recent) <= 1000


def test_a_session_is_sums_over_sums_and_the_highest_peak() -> None:
    totals = SessionTotals()
    totals.add(finished(gauge([(100 + 10 * i, 1) for i in range(201)]), 100, 2100))
    totals.add(finished(gauge([(400 + 100 * i, 1) for i in range(41)]), 400, 4400))
    assert totals.answers == 2
    assert totals.completion_tokens == 242
    assert totals.decode_tokens == 240
    assert totals.reasoning_tokens == 2
    assert totals.speed() == Speed(peak=100, average=240 / 6, e2e=242 / 6.5)


def test_tokens_of_another_node_are_counted_but_not_in_the_speed() -> None:
    measured = gauge([(100 + 10 * i, 1) for i in range(101)])
    moved = replace(
        finished(measured, 100, 1100), usage=Usage(10, 0, 101 + 400, resumed_tokens=400)
    )
    totals = SessionTotals()
    totals.add(moved)
    assert totals.completion_tokens == 501
    assert totals.speed() == Speed(peak=100, average=100, e2e=101 / 1.1)


def test_an_empty_session_has_no_speed() -> None:
    assert SessionTotals().speed() == Speed(0, 0, 0)


@given(st.lists(STEPS, max_size=6))
def test_a_session_counts_every_decoded_token_once(answers: list[list[tuple[int, int]]]) -> None:
    totals = SessionTotals()
    for steps in answers:
        totals.add(finished(gauge(steps), steps[0][0], steps[-1][0]))
    timed = [steps for steps in answers if steps[-1][0] > steps[0][0]]
    assert totals.decode_tokens == sum(n for steps in timed for _, n in steps[1:])
    assert totals.speed().peak >= totals.speed().average
