from __future__ import annotations

import pytest

from app.store import keys
from app.store.client import Store
from tests.app.line.hall import POOL, FakeNode, Hall, limits


async def answer(hall: Hall, node: FakeNode) -> None:
    """Run the assigned question to its orderly end."""
    taken = await node.take()
    assert taken is not None
    await hall.write_end(taken.generation)
    await node.finish()


async def test_a_browser_keeps_its_lease_after_the_answer(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    await answer(hall, node)
    view = await hall.line.seat("ann")
    assert view.state == "holding"
    assert view.idle_left_seconds == pytest.approx(60, abs=10)
    assert view.slice_left_seconds == pytest.approx(300, abs=10)
    assert (await hall.place("b1")).rank == 1
    # the next question of the holder goes straight to its node, with a fence of its own
    assert (await hall.ask("ann", generation="a2")).state == "assigned"
    await node.take()
    assert node.fences == sorted(set(node.fences))
    assert (await hall.line.seat("ann")).state == "busy"


async def test_an_api_lease_ends_with_its_answer_and_the_next_is_served(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1", tier="api", hold=False)
    await hall.ask("bob", generation="b1", tier="api", hold=False)
    await answer(hall, node)
    assert (await hall.line.seat("ann")).state == "none"
    taken = await node.take()
    assert taken is not None
    assert taken.generation == "b1"


async def test_holding_is_sticky_over_a_seats_questions(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1", hold=True)
    await hall.ask("ann", generation="a2", hold=False, tier="api")
    await answer(hall, node)
    await answer(hall, node)
    assert (await hall.line.seat("ann")).state == "holding"


async def test_a_browsers_question_makes_its_seats_lease_rest(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1", hold=False, tier="api")
    await hall.ask("ann", generation="a2", hold=True)
    await answer(hall, node)
    await answer(hall, node)
    assert (await hall.line.seat("ann")).state == "holding"


async def test_a_resting_lease_ends_at_the_idle_limit(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await answer(hall, node)
    await hall.pass_time(48)
    assert (await hall.line.seat("ann")).state == "holding"
    assert (await node.beat()).seat == "ann"
    await hall.pass_time(24)
    assert (await hall.line.seat("ann")).state == "none"
    assert (await node.beat()).seat is None
    assert [(view.nodes, view.idle_nodes) for view in await hall.line.pools()] == [(1, 1)]


async def test_a_question_before_the_idle_limit_keeps_the_lease(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await answer(hall, node)
    await hall.pass_time(45)
    await hall.ask("ann", generation="a2")
    hall.watched = {"a2"}
    await node.take()
    await hall.pass_time(100)
    assert (await hall.line.seat("ann")).state == "busy"


async def test_a_lease_goes_on_past_its_slice_while_nobody_waits(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    hall.watched = {"a1"}
    await node.take()
    await hall.pass_time(400)
    place = await hall.place("a1")
    assert (place.state, place.ending, place.slice_left_seconds) == ("assigned", False, None)


async def test_past_its_slice_an_answer_may_finish_and_then_the_lease_ends(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    hall.watched = {"a1", "b1"}
    await node.take()
    await hall.pass_time(280)
    place = await hall.place("a1")
    assert not place.ending
    assert place.slice_left_seconds == pytest.approx(20, abs=10)
    await hall.pass_time(28)
    place = await hall.place("a1")
    assert (place.ending, place.slice_left_seconds) == (True, 0)
    assert (await node.beat()).cancel is None
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.line.seat("ann")).state == "none"
    assert (await hall.place("b1")).state == "assigned"


async def test_an_answer_that_outlives_the_cap_is_called_off(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    hall.watched = {"a1", "b1"}
    await node.take()
    await hall.pass_time(305)
    await hall.pass_time(12)
    assert (await node.beat()).cancel is None
    await hall.pass_time(20)
    assert (await node.beat()).cancel == "slice_ended"
    assert (await hall.place("b1")).state == "queued"
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.place("b1")).state == "assigned"


async def test_questions_left_at_the_slices_end_go_to_the_tail(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("ann", generation="a2")
    await hall.ask("bob", generation="b1")
    await hall.ask("cid", generation="c1")
    hall.watched = {"a1", "a2", "b1", "c1"}
    await node.take()
    await hall.pass_time(310)
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.place("b1")).state == "assigned"
    assert await hall.ranks(["c1", "a2"]) == [1, 2]
    assert (await hall.line.seat("ann")).state == "waiting"


async def test_a_resting_lease_past_its_slice_gives_way_at_once(store: Store) -> None:
    hall = Hall(store, limits(idle_limit_seconds=1000))
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await answer(hall, node)
    await hall.pass_time(310)
    assert (await hall.line.seat("ann")).state == "holding"
    assert (await hall.ask("bob", generation="b1")).state == "assigned"
    assert (await hall.line.seat("ann")).state == "none"


async def test_waiters_end_no_more_leases_than_they_are_and_the_oldest_first(hall: Hall) -> None:
    for number in range(3):
        node = await hall.node(f"n{number}")
        await hall.ask(f"s{number}", generation=f"x{number}")
        await node.take()
        await hall.pass_time(4)
    hall.watched = {"x0", "x1", "x2"}
    await hall.pass_time(312)
    await hall.ask("bob", generation="b1")
    ending = [(await hall.place(f"x{number}")).ending for number in range(3)]
    assert ending == [True, False, False]


async def test_when_the_waiters_have_gone_the_marked_lease_goes_on(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    hall.watched = {"a1", "b1"}
    await node.take()
    await hall.pass_time(304)
    assert (await hall.place("a1")).ending
    await hall.line.leave("bob")
    hall.watched = {"a1"}
    assert not (await hall.place("a1")).ending
    await hall.pass_time(60)
    assert (await node.beat()).cancel is None
    # and ends after all when somebody comes again
    await hall.ask("cid", generation="c1")
    assert (await hall.place("a1")).ending


async def test_the_last_leases_are_measured_for_the_estimate(hall: Hall) -> None:
    node = await hall.node()
    for number in range(4):
        await hall.ask(f"s{number}", generation=f"x{number}", hold=False)
        await node.take()
        await hall.pass_time(8)
        await node.finish()
    await hall.ask("holder", generation="h")
    await hall.ask("ann", generation="a")
    bob = await hall.ask("bob", generation="b")
    assert bob.eta_seconds is not None
    low, high = bob.eta_seconds
    assert (low, high) == (pytest.approx(8, abs=3), pytest.approx(16, abs=6))
    for _ in range(30):
        await hall.store.command("LPUSH", f"{keys.pool_prefix(POOL)}turns", 1)
    await hall.line.cancel(POOL, "h", "stopped")
    await hall.line.leave("holder")
    assert await hall.store.command("LLEN", f"{keys.pool_prefix(POOL)}turns") == 20
