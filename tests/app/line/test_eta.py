from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.line.eta import position, wait_seconds

durations = st.lists(st.integers(0, 3_600_000), min_size=3, max_size=20).map(tuple)
lanes = st.sampled_from(["r", "priority", "browser", "api"])
counts = st.integers(0, 10_000)
waiting = st.fixed_dictionaries({"r": counts, "priority": counts, "browser": counts, "api": counts})


@given(durations, st.integers(1, 10_000), st.integers(1, 100))
def test_the_range_is_a_range_and_grows_with_the_rank(
    turns_ms: tuple[int, ...], ahead: int, nodes: int
) -> None:
    near = wait_seconds(turns_ms, ahead, nodes)
    far = wait_seconds(turns_ms, ahead + 1, nodes)
    assert near is not None
    assert far is not None
    assert 0 <= near[0] <= near[1]
    assert near[0] <= far[0]
    assert near[1] <= far[1]


@given(durations, st.integers(1, 10_000), st.integers(1, 100))
def test_more_nodes_never_lengthen_the_wait(
    turns_ms: tuple[int, ...], ahead: int, nodes: int
) -> None:
    few, many = wait_seconds(turns_ms, ahead, nodes), wait_seconds(turns_ms, ahead, nodes + 1)
    assert few is not None
    assert many is not None
    assert many[1] <= few[1]


@pytest.mark.parametrize(
    ("turns_ms", "ahead", "nodes"), [((1, 2), 1, 1), ((1, 2, 3), 1, 0), ((1, 2, 3), 0, 1)]
)
def test_what_is_not_measured_is_not_estimated(
    turns_ms: tuple[int, ...], ahead: int, nodes: int
) -> None:
    assert wait_seconds(turns_ms, ahead, nodes) is None


def test_the_range_by_hand() -> None:
    turns_ms = (10_000, 20_000, 30_000, 40_000)
    # third of a line before two nodes: second wave; quartiles 20 s and 30 s
    assert wait_seconds(turns_ms, 3, 2) == (20.0, 60.0)
    assert wait_seconds(turns_ms, 1, 2) == (0.0, 30.0)


@given(lanes, st.integers(1, 5000), waiting)
def test_the_position_grows_with_the_rank_and_is_never_before_it(
    lane: str, rank: int, others: dict[str, int]
) -> None:
    here = position(lane, rank, others)
    assert rank <= here < position(lane, rank + 1, others)
    assert here <= rank + sum(others.values())


def test_the_position_by_hand() -> None:
    line = {"r": 1, "priority": 100, "browser": 100, "api": 1}
    # while 2 browsers are served: 4 of priority, 1 (all there is) of api, and 1 who returned
    assert position("browser", 2, line) == 2 + 4 + 1 + 1
    assert position("r", 1, line) == 1
