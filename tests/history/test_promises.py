"""The checker itself: an orderly history is silent, and each kind of breach is found in a doctored one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.history import events as e
from tests.history.promises import breaches

POOL = "m"
GRACE_MS = 1000


def delta(text: str, *ids: int, fence: int | None = None) -> e.Written:
    data = {"text": text, "channel": "text", "n": len(ids), "ids": list(ids)}
    return e.Written("a1", "delta", data, fence)


LEASE_A = e.LeaseBegan("ta", "n1")
GIVEN_A = e.Given("a1", "n1", fence=10, length=0)
GIVEN_B = e.Given("b1", "n1", fence=20, length=0)
DONE_A = e.Written("a1", "done", {}, None)
ENDED_A = e.Ended("a1")
CLOSED_A = e.Closed("ta", "finished")
FREED = e.NodeFreed("n1")
# ann and bob ask one node, one after the other
ORDERLY: tuple[e.Event, ...] = (
    e.Limits(grace_ms=GRACE_MS, dead_ms=500),
    e.NodeCame("n1", "boot"), e.NodeReported("n1", 9000), e.NodeHeldBack("n1"),
    e.NodeFreed("n1"), e.Now(1), e.Pumped(1, 5),
    e.Opened("ta", "ann", "browser"), e.Stood("ta", "browser", 1), e.Kept("ta", 2000),
    e.Asked("a1", "ta"), LEASE_A, GIVEN_A, e.Now(2), e.Pumped(2, 9),
    e.Opened("tb", "bob", "browser"), e.Stood("tb", "browser", 2), e.Kept("tb", 2000),
    e.Asked("b1", "tb"), e.Now(3), e.Pumped(3, 9),
    delta("One ", 1, fence=10), delta("two", 2, fence=10), DONE_A, ENDED_A,
    CLOSED_A, FREED, e.LeaseBegan("tb", "n1"), GIVEN_B, e.Now(4), e.Pumped(4, 9),
    e.Written("b1", "failed", {}, None), e.Ended("b1"), e.Closed("tb", "left"),
    e.NodeHeldBack("n1"), e.Now(5), e.Pumped(5, 9),
)  # fmt: skip


def state(rank: int | None) -> e.Heard:
    return e.Heard("state", {"rank": rank, "phase": "waiting"})


def said(text: str) -> e.Heard:
    return e.Heard("delta", {"text": text, "channel": "text"})


HEARD = (state(None), said("One "), said("two"), e.Heard("done", {}))


def history(events: Sequence[e.Event] = ORDERLY, **more: Any) -> e.History:
    made = e.History([(POOL, event) for event in events])
    return replace(made, **more)


def swapped(old: e.Event, *new: e.Event) -> list[e.Event]:
    at = ORDERLY.index(old)
    return [*ORDERLY[:at], *new, *ORDERLY[at + 1 :]]


def found(doctored: e.History) -> set[int]:
    return {breach.promise for breach in breaches(doctored)}


def test_an_orderly_history_is_silent() -> None:
    orderly = history(
        readings=[e.Reading("ann", "a1", HEARD)],
        runs=[e.Run("n1", "a1", 10, 11, 15), e.Run("n1", "b1", 20, 21, None)],
        expected_ids={"a1": [1, 2, 3]},
    )
    assert breaches(orderly) == []


DOCTORED: dict[str, tuple[int, Sequence[e.Event]]] = {
    "a node that is leased already": (1, swapped(FREED)),
    "a node that did not say that nothing runs": (1, swapped(FREED, e.NodeHeldBack("n1"))),
    "a node that is not there": (1, swapped(LEASE_A, e.LeaseBegan("ta", "n2"))),
    "a question without a lease": (1, swapped(LEASE_A)),
    "two questions at once": (1, swapped(ENDED_A, e.Given("b1", "n1", 15, 0))),
    "a fence that does not grow": (2, swapped(GIVEN_B, replace(GIVEN_B, fence=10))),
    "a fence that falls after a lost memory": (
        2,
        [*ORDERLY, e.Forgot(), *swapped(GIVEN_B, replace(GIVEN_B, fence=30))],
    ),
    "an entry of another fence": (2, swapped(DONE_A, delta("three", 3, fence=9), DONE_A)),
    "an entry while nobody has it": (
        2,
        swapped(DONE_A, e.TakenBack("a1"), delta("three", 3, fence=10), DONE_A),
    ),
    "an entry after the end": (2, swapped(CLOSED_A, delta("three", 3, fence=10), CLOSED_A)),
    "given again while a node has it": (2, swapped(DONE_A, replace(GIVEN_A, fence=15), DONE_A)),
    "one seat, two places": (
        3,
        swapped(CLOSED_A, e.Opened("tc", "ann", "browser"), e.Closed("tc", "left"), CLOSED_A),
    ),
    "a place that moved": (3, swapped(e.Asked("b1", "tb"), e.Asked("b1", "tb"), e.Stood("tb", "browser", 5))),
    "a newcomer at the head": (
        3,
        swapped(
            e.Asked("b1", "tb"), e.Asked("b1", "tb"),
            e.Opened("tc", "cid", "browser"), e.Stood("tc", "browser", 1), e.Closed("tc", "left"),
        ),
    ),
    "one that overtook": (
        3,
        swapped(
            e.LeaseBegan("tb", "n1"), e.Opened("tc", "cid", "browser"), e.Stood("tc", "browser", 3),
            e.LeaseBegan("tc", "n1"), e.Closed("tc", "left"), e.NodeFreed("n1"), e.LeaseBegan("tb", "n1"),
        ),
    ),
    "the returned lane passed over": (
        3,
        swapped(
            e.LeaseBegan("tb", "n1"), e.Opened("tc", "cid", "browser"), e.Stood("tc", "r", 3),
            e.LeaseBegan("tb", "n1"), e.Closed("tc", "left"),
        ),
    ),
    "a node out of service": (1, swapped(FREED, e.NodeDrained("n1"))),
    "one who is there and is passed over": (
        3, swapped(e.Pumped(3, 9), e.Called("tb"), e.CallOver("tb"), e.Pumped(3, 9)),
    ),
    "a place lost after one call": (
        3,
        swapped(
            e.LeaseBegan("tb", "n1"), e.Hidden("tb", True), e.Called("tb"), e.Closed("tb", "unclaimed"),
            e.LeaseBegan("tb", "n1"),
        ),
    ),
    "a race that gives nothing back": (
        3,
        swapped(e.Pumped(3, 9), e.Borrowed("ta"), e.Pumped(3, 9), e.Pumped(3, 9)),
    ),
    "a place lost before its grace": (
        3,
        swapped(e.LeaseBegan("tb", "n1"), e.Closed("tb", "away"), e.LeaseBegan("tb", "n1")),
    ),
    "two last entries": (5, swapped(DONE_A, DONE_A, e.Written("a1", "failed", {}, None))),
    "an end without a last entry": (5, swapped(DONE_A)),
    "a question without an end": (5, [event for event in ORDERLY if event not in (DONE_A, ENDED_A)]),
    "a ticket without an end": (5, swapped(e.Closed("tb", "left"))),
    "a step of any length": (6, swapped(e.Pumped(3, 9), e.Pumped(3, 100_000))),
    "a move that skips what is written": (
        7,
        swapped(DONE_A, e.TakenBack("a1"), replace(GIVEN_A, fence=15, length=1), DONE_A),
    ),
    "a line without a node": (8, [e.Opened("tz", "zoe", "browser"), e.Closed("tz", "left"), *ORDERLY]),
    "an outage that costs a place": (
        8,
        swapped(
            e.LeaseBegan("tb", "n1"), e.Now(2500), e.Outage(2500), e.Closed("tb", "away"),
            e.LeaseBegan("tb", "n1"),
        ),
    ),
    "one who waits beside a free node": (
        8,
        [event for event in ORDERLY if event not in (e.LeaseBegan("tb", "n1"), GIVEN_B)],
    ),
    "one who is away and kept for ever": (
        9, swapped(e.Pumped(3, 9), e.Pumped(3, 9), e.Now(4500), e.Pumped(4500, 1)),
    ),
    "a dead node that is kept for ever": (
        9, swapped(e.Pumped(3, 9), e.Pumped(3, 9), e.Now(11_500), e.Pumped(11_500, 1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DOCTORED)
def test_a_breach_in_the_store_is_found(kind: str) -> None:
    promise, events = DOCTORED[kind]
    assert promise in found(history(events)), breaches(history(events))


def test_a_question_that_the_store_forgot_may_be_asked_again() -> None:
    later = [
        replace(event, fence=event.fence + 100) if isinstance(event, e.Given) else event
        for event in ORDERLY
        if not isinstance(event, e.Written) or event.fence is None
    ]
    again = history([*ORDERLY, e.Forgot(), *later], readings=[e.Reading("ann", "a1", HEARD[::3])])
    assert breaches(again) == []


def test_a_race_that_ends_for_those_who_wait_is_in_order() -> None:
    ending = (e.Borrowed("ta"), e.Pumped(3, 9), e.Ending("ta", True), e.Pumped(3, 9))
    assert breaches(history(swapped(e.Pumped(3, 9), *ending))) == []


def test_who_is_not_there_may_be_passed_over_and_keeps_the_place() -> None:
    events = swapped(
        e.LeaseBegan("tb", "n1"), e.Opened("tc", "cid", "browser", 1000),
        e.Stood("tc", "browser", 3), e.Hidden("tb", True), e.Called("tb"),
        e.LeaseBegan("tc", "n1"), e.Closed("tc", "left"), e.NodeFreed("n1"),
        e.Hidden("tb", False), e.CallOver("tb"), e.LeaseBegan("tb", "n1"),
    )  # fmt: skip
    assert breaches(history(events)) == []


def test_a_tier_that_is_passed_over_for_ever_is_found() -> None:
    events: list[e.Event] = [*ORDERLY[:7], e.Opened("tz", "zoe", "api"), e.Stood("tz", "api", 1)]
    for seq in range(2, 20):
        ticket = f"t{seq}"
        events += [
            e.Opened(ticket, ticket, "browser"), e.Stood(ticket, "browser", seq),
            e.LeaseBegan(ticket, "n1"), e.Closed(ticket, "left"), e.NodeFreed("n1"),
        ]  # fmt: skip
    assert found(history(events, is_whole=False)) == {3}


def test_a_seat_with_places_in_two_pools_is_found() -> None:
    events = [("m", event) for event in ORDERLY[:15]] + [("z", event) for event in ORDERLY[:15]]
    assert found(e.History(events, is_whole=False)) == {3}


@pytest.mark.parametrize(
    "runs",
    [
        [e.Run("n1", "a1", 10, 11, 22), e.Run("n1", "b1", 20, 21, 30)],
        [e.Run("n1", "a1", 10, 11, 21)],
    ],
    ids=["at once", "given before it was over"],
)
def test_a_node_that_runs_two_answers_is_found(runs: list[e.Run]) -> None:
    assert found(history(runs=runs)) == {1}


def test_a_node_that_serves_an_old_fence_is_found() -> None:
    runs = [e.Run("n1", "b1", 20, 21, 22), e.Run("n1", "a1", 10, 31, 35)]
    assert 2 in found(history(runs=runs))


@pytest.mark.parametrize(
    ("promise", "heard"),
    [
        (4, (state(1), state(2), *HEARD)),
        (4, (state(0), *HEARD)),
        (5, HEARD[:-1]),
        (5, (*HEARD, e.Heard("done", {}))),
        (5, (*HEARD, said("!"))),
        (7, (said("One "), said("One "), said("two"), e.Heard("done", {}))),
        (7, (said("two"), e.Heard("done", {}))),
        (7, (said("One "), e.Heard("done", {}))),
    ],
    ids=["fell back", "rank 0", "no end", "two ends", "behind the end", "twice", "gap", "cut"],
)
def test_what_a_reader_should_not_have_heard_is_found(
    promise: int, heard: Sequence[e.Heard]
) -> None:
    assert promise in found(history(readings=[e.Reading("ann", "a1", heard)]))


def test_who_left_in_the_middle_need_not_have_heard_the_end() -> None:
    reading = e.Reading("ann", "a1", HEARD[:2], stayed=False)
    assert found(history(readings=[reading])) == set()


def test_a_text_that_an_undisturbed_run_would_not_have_made_is_found() -> None:
    assert found(history(expected_ids={"a1": [1, 3]})) == {7}
