"""Nodes that are taken out of service in order, by their operator or before they stop."""

from __future__ import annotations

import pytest

from app.errors import PoolEmptyError
from app.line.types import NodeView
from tests.app.line.hall import POOL, Hall, job


async def test_a_drained_node_is_given_nothing_until_it_is_taken_back(hall: Hall) -> None:
    await hall.node("n1")
    other = await hall.node("n2")
    assert await hall.line.drain(POOL, "n1")
    await hall.ask_at_node("ann", "a1", other)
    await hall.ask("bob", generation="b1")
    assert (await hall.place("b1")).state == "queued"
    assert await hall.line.drain(POOL, "n1", out=False)
    assert (await hall.place("b1")).state == "assigned"


async def test_its_answer_may_finish_and_its_watchers_hear_why_it_is_the_last(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    await hall.line.drain(POOL, "n1")
    place = await hall.place("a1")
    assert (place.state, place.ending, place.drained) == ("assigned", True, True)
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.line.seat("ann")).state == "none"
    assert [view.idle_nodes for view in await hall.line.pools()] == [0]


async def test_what_the_seat_asked_since_goes_first_at_the_next_node(hall: Hall) -> None:
    node, other = await hall.node("n1"), await hall.node("n2")
    await hall.ask_at_node("ann", "a1", node)
    await hall.ask("ann", generation="a2")
    await hall.ask_at_node("bob", "b1", other)
    await hall.ask("cid", generation="c1", tier="priority")
    await hall.line.drain(POOL, "n1")
    await hall.write_end("a1")
    await node.finish()
    waiting = await hall.place("a2")
    assert (waiting.rank, waiting.returned) == (1, True)
    await hall.line.leave("bob")
    await hall.write_end("b1")
    await other.finish()
    assert (await hall.place("a2")).state == "assigned"
    assert (await hall.place("c1")).state == "queued"


async def test_a_lease_at_rest_ends_at_once(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    await hall.write_end("a1")
    await node.finish()
    await hall.line.drain(POOL, "n1")
    assert (await hall.line.seat("ann")).state == "none"


async def test_an_answer_that_outlasts_the_cap_goes_on_at_another_node(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    await hall.begin_writing("a1")
    hall.watched = {"a1"}
    other = await hall.node("n2")
    await hall.line.drain(POOL, "n1")
    await hall.pass_time(hall.settings.answer_cap_seconds - 1)
    assert (await node.beat()).generation == "a1"
    await hall.pass_time(2)
    taken = await other.take()
    assert taken is not None
    assert (taken.generation, taken.stream_length) == ("a1", 1)
    assert (await node.beat()).generation is None


async def test_a_node_whose_answer_moved_on_is_given_to_nobody_before_it_says_that_it_stopped(
    hall: Hall,
) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    other = await hall.node("n2")
    await hall.line.drain(POOL, "n1")
    await hall.pass_time(hall.settings.answer_cap_seconds + 1)
    assert await other.take() is not None
    await hall.line.drain(POOL, "n1", out=False)
    await hall.ask("bob", generation="b1")
    assert (await hall.place("b1")).state == "queued"
    await node.beat()  # it still runs ann's
    assert (await hall.place("b1")).state == "queued"
    node.running = None
    await node.beat()
    assert (await hall.place("b1")).state == "assigned"


async def test_where_no_other_node_serves_it_is_cut_at_the_cap(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    await hall.line.drain(POOL, "n1")
    await hall.pass_time(hall.settings.answer_cap_seconds + 1)
    orders = await node.beat()
    assert (orders.generation, orders.cancel) == ("a1", "slice_ended")
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.line.seat("ann")).state == "none"


async def test_a_node_that_is_taken_back_in_time_keeps_its_lease(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    await hall.line.drain(POOL, "n1")
    await hall.line.drain(POOL, "n1", out=False)
    assert not (await hall.place("a1")).ending
    await hall.pass_time(hall.settings.answer_cap_seconds + 1)
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.line.seat("ann")).state == "holding"


async def test_a_waiter_is_not_owed_the_node_that_is_being_drained(hall: Hall) -> None:
    """The lease that ends there gives nobody a node: the next oldest has to make room too."""
    first, second = await hall.node("n1"), await hall.node("n2")
    await hall.ask_at_node("ann", "a1", first)
    await hall.ask_at_node("bob", "b1", second)
    hall.watched = {"a1", "b1", "c1"}
    await hall.line.drain(POOL, "n1")
    await hall.ask("cid", generation="c1")
    await hall.pass_time(hall.settings.slice_seconds - 280)
    await hall.pass_time(281)
    assert (await hall.place("b1")).ending


async def test_a_pool_whose_nodes_are_all_drained_refuses_like_an_empty_one(hall: Hall) -> None:
    await hall.node("n1")
    await hall.line.drain(POOL, "n1")
    with pytest.raises(PoolEmptyError):
        await hall.ask("ann")
    assert (await hall.line.pools())[0].nodes == 0


async def test_an_operators_word_counts_over_a_restart(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.line.drain(POOL, "n1")
    await node.desk.leave("n1", node.boot)
    node.boot = "boot-2"
    await node.come()
    with pytest.raises(PoolEmptyError):
        await hall.ask("ann")
    await hall.line.drain(POOL, "n1", out=False)
    assert (await hall.ask("ann")).state == "assigned"


async def test_a_node_that_was_about_to_stop_serves_again_after_its_restart(hall: Hall) -> None:
    node = await hall.node("n1")
    await node.desk.drain("n1", node.boot)
    await node.desk.leave("n1", node.boot)
    node.boot = "boot-2"
    await node.come()
    assert (await hall.ask("ann")).state == "assigned"


async def test_the_word_of_an_earlier_start_drains_nothing(hall: Hall) -> None:
    node = await hall.node("n1")
    await node.desk.drain("n1", "other boot")
    assert (await hall.ask("ann")).state == "assigned"


async def test_a_drained_node_that_still_serves_a_forgotten_lease_is_held_back(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.line.drain(POOL, "n1")
    node.running, node.highest_fence = ("unknown", 2**50), 2**50
    await node.beat()
    await hall.line.drain(POOL, "n1", out=False)
    assert (await hall.ask("ann", generation="a1")).state == "queued"
    node.running = None
    await node.beat()
    assert (await hall.place("a1")).state == "assigned"


async def test_draining_a_node_that_is_not_there_says_so_and_counts_when_it_comes(
    hall: Hall,
) -> None:
    await hall.node("n1")
    assert not await hall.line.drain(POOL, "n2")
    await hall.node("n2")
    views = {view.id: view for view in await hall.line.nodes(POOL)}
    assert (views["n1"].drained, views["n2"].drained) == (False, True)


async def test_an_operator_sees_the_nodes_with_their_slots(hall: Hall) -> None:
    slots = await hall.slots("big", 3)
    await hall.node("small")
    await hall.line.drain(POOL, "small")
    await hall.ask_at_node("ann", "a1", slots[0])
    assert await hall.line.nodes(POOL) == [
        NodeView("big", "node big", "H200", "scripted", 3, 1, 2, drained=False, ordered_out=False),
        NodeView(
            "small", "node small", "H200", "scripted", 1, 0, 0, drained=True, ordered_out=True
        ),
    ]


async def test_a_race_on_a_node_that_is_being_drained_makes_no_room_for_a_waiter(
    hall: Hall,
) -> None:
    first, second = await hall.node("n1"), await hall.node("n2")
    for seat, generation in (("ann", "a1"), ("bob", "b1")):
        await hall.line.borrow(POOL, seat, job(generation, hold=False), tier="browser")
    await first.take()
    await second.take()
    place = await hall.place("a1")
    assert place.node is not None
    await hall.line.drain(POOL, place.node.id)
    await hall.ask("cid", generation="c1")
    assert (await hall.nodes["n2"].beat()).cancel == "wanted"
    assert (await hall.nodes["n1"].beat()).cancel is None
