from __future__ import annotations

import pytest

from app.line.types import CancelReason
from app.store import keys
from tests.app.line.hall import POOL, Hall


async def test_calling_off_the_only_waiting_question_leaves_the_line(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder")
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    await hall.line.cancel(POOL, "a1", "stopped")
    failure = await hall.failure("a1")
    assert (failure["code"], failure["retry"]) == ("left", False)
    assert (await hall.place("a1")).state == "ended"
    assert (await hall.place("b1")).rank == 1
    assert (await hall.line.seat("ann")).state == "none"


async def test_calling_off_one_of_several_keeps_the_place(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder")
    await hall.ask("ann", generation="a1")
    await hall.ask("ann", generation="a2")
    await hall.ask("bob", generation="b1")
    await hall.line.cancel(POOL, "a1", "gone")
    place = await hall.place("a2")
    assert (place.rank, place.behind_own) == (1, 0)
    assert await hall.ranks(["b1"]) == [2]


async def test_a_running_question_is_called_off_through_its_node(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    await node.take()
    assert await node.desk.wait("n1", 1) == "job"
    await hall.line.cancel(POOL, "a1", "stopped")
    await hall.line.cancel(POOL, "a1", "gone")  # the first reason stands
    assert await node.desk.wait("n1", 1) == "cancel"
    orders = await node.beat()
    assert (orders.generation, orders.cancel) == ("a1", "stopped")
    assert (await hall.place("a1")).state == "assigned"
    await hall.write_end("a1")
    await node.finish()
    # the browser that stopped an answer keeps its node for the next question
    assert (await hall.line.seat("ann")).state == "holding"
    assert (await hall.place("b1")).state == "queued"


@pytest.mark.parametrize(
    ("reason", "code"), [("stopped", "left"), ("gone", "gone"), ("admin", "removed")]
)
async def test_a_question_its_node_has_not_fetched_ends_at_once(
    hall: Hall, reason: CancelReason, code: str
) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1", hold=False)
    await hall.ask("bob", generation="b1", hold=False)
    await hall.line.cancel(POOL, "a1", reason)
    assert (await hall.failure("a1"))["code"] == code
    taken = await node.take()
    assert taken is not None
    assert taken.generation == "b1"


async def test_calling_off_twice_or_something_unknown_changes_nothing(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder")
    await hall.ask("ann", generation="a1")
    for generation in ("a1", "a1", "nothing"):
        await hall.line.cancel(POOL, generation, "stopped")
    assert (await hall.failure("a1"))["code"] == "left"


async def test_leaving_ends_all_waiting_questions(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder")
    await hall.ask("ann", generation="a1")
    await hall.ask("ann", generation="a2")
    await hall.ask("bob", generation="b1")
    await hall.line.leave("ann")
    assert [(await hall.failure(name))["code"] for name in ("a1", "a2")] == ["left", "left"]
    assert await hall.ranks(["b1"]) == [1]
    await hall.line.leave("ann")
    await hall.line.leave("nobody")


async def test_leaving_gives_a_resting_lease_to_the_next(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    await node.take()
    await hall.write_end("a1")
    await node.finish()
    await hall.line.leave("ann")
    assert (await hall.place("b1")).state == "assigned"


async def test_leaving_during_an_answer_frees_the_node_once_it_has_stopped(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("ann", generation="a2")
    await hall.ask("bob", generation="b1")
    await node.take()
    await hall.line.leave("ann")
    assert (await hall.failure("a2"))["code"] == "left"
    assert (await node.beat()).cancel == "stopped"
    assert (await hall.place("b1")).state == "queued"
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.place("b1")).state == "assigned"
    assert (await hall.line.seat("ann")).state == "none"


async def test_a_place_is_kept_for_the_grace_and_no_longer(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder", generation="h")
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    hall.watched = {"h", "b1"}
    await hall.pass_time(105)
    assert await hall.ranks(["a1", "b1"]) == [1, 2]
    await hall.pass_time(30)
    failure = await hall.failure("a1")
    assert (failure["code"], failure["retry"]) == ("away", True)
    assert await hall.ranks(["b1"]) == [1]


async def test_coming_back_within_the_grace_moves_nobody(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder", generation="h")
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    hall.watched = {"h", "b1"}
    await hall.pass_time(100)
    await hall.line.places(POOL, ["a1"], watched=True)
    await hall.pass_time(100)
    assert await hall.ranks(["a1", "b1"]) == [1, 2]
    # looking without being there (an administrator's list) keeps nobody's place
    await hall.line.places(POOL, ["a1"], watched=False)
    await hall.pass_time(30)
    assert (await hall.place("a1")).state == "ended"


async def test_ninety_seconds_offline_cost_no_place_and_gain_none(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder", generation="h")
    names = [f"x{number}" for number in range(1, 8)]
    for name in names:
        await hall.ask(name, generation=name)
    hall.watched = {"h", *names} - {"x5"}
    await hall.pass_time(45)
    await hall.line.leave("x2")
    await hall.ask("late", generation="late")
    hall.watched |= {"late"}
    await hall.pass_time(45)
    # back: those before are still before, those behind still behind
    hall.watched |= {"x5"}
    await hall.pass_time(2)
    standing = ["x1", "x3", "x4", "x5", "x6", "x7", "late"]
    assert await hall.ranks(standing) == [1, 2, 3, 4, 5, 6, 7]
    await hall.pass_time(130)
    assert await hall.ranks(standing) == [1, 2, 3, 4, 5, 6, 7]


async def test_asking_again_at_the_last_moment_keeps_the_place(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    await node.take()
    hall.watched = {"a1"}
    await hall.pass_time(116)
    await hall.shift_clock(4.5)  # the grace is over, but nobody has looked yet
    place = await hall.ask("bob", generation="b2")
    assert place.behind_own == 1
    assert (await hall.place("b1")).state == "queued"


async def test_a_program_that_vanishes_has_a_shorter_grace(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder", generation="h")
    await hall.ask("ann", generation="a1", tier="api", hold=False)
    hall.watched = {"h"}
    await hall.pass_time(25)
    assert (await hall.failure("a1"))["code"] == "away"


async def test_a_browsers_question_lengthens_the_grace_of_a_programs_seat(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder", generation="h")
    await hall.ask("ann", generation="a1", tier="api", hold=False)
    await hall.ask("ann", generation="a2")
    hall.watched = {"h", "a2"}
    await hall.pass_time(4)
    hall.watched = {"h"}
    await hall.pass_time(60)
    assert (await hall.place("a2")).state == "queued"


async def test_an_answer_that_nobody_watches_is_called_off_after_the_grace(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("ann", generation="a2")
    await node.take()
    await hall.pass_time(122)
    assert (await node.beat()).cancel == "gone"
    assert (await hall.failure("a2"))["code"] == "away"
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.line.seat("ann")).state == "none"
    assert (await hall.line.pools())[0].idle_nodes == 1


async def test_a_watched_answer_goes_on(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    hall.watched = {"a1"}
    await hall.pass_time(250)
    assert (await node.beat()).cancel is None


async def test_being_granted_does_not_lengthen_the_grace_of_an_absent_seat(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("holder", generation="h", hold=False)
    await hall.ask("ann", generation="a1")
    await node.take()
    hall.watched = {"h"}
    await hall.pass_time(90)
    await hall.write_end("h")
    await node.finish()
    await node.take()
    assert node.running is not None
    assert node.running[0] == "a1"
    await hall.pass_time(32)
    assert (await node.beat()).cancel == "gone"


async def test_nothing_of_a_seat_is_left_when_it_has_gone(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("ann", generation="a2")
    await hall.ask("bob", generation="b1")
    await node.take()
    await hall.line.leave("bob")
    await hall.line.leave("ann")
    await hall.write_end("a1")
    await node.finish()
    left = {
        key.removeprefix(keys.pool_prefix(POOL).encode()).split(b":")[0]
        for key in await hall.store.command("KEYS", keys.pool_prefix(POOL) + "*")
    }
    per_seat = {b"seat", b"j", b"seen", b"rest", b"leases", b"ending", b"w", b"owes"}
    assert left & per_seat == set()
    # tickets that have ended go by themselves
    for ticket in await hall.store.command("KEYS", keys.pool_prefix(POOL) + "t:*"):
        assert 0 < await hall.store.command("PTTL", ticket) <= 600_000
