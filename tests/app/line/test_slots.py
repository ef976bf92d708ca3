"""Nodes that serve several at once: every promise of a lease holds for each slot."""

from __future__ import annotations

from tests.app.line.hall import POOL, Hall


async def test_a_node_with_two_slots_serves_two_seats_and_no_third(hall: Hall) -> None:
    await hall.slots("n1", 2)
    states = [(await hall.ask(seat)).state for seat in ("ann", "bob", "cid")]
    assert states == ["assigned", "assigned", "queued"]


async def test_each_slot_has_its_own_fence(hall: Hall) -> None:
    first, second = await hall.slots("n1", 2)
    await hall.ask_at_node("ann", "a1", first)
    await hall.ask_at_node("bob", "b1", second)
    assert second.highest_fence > first.highest_fence
    # the end of one is not the end of the other, also where it names the other's question
    assert second.running is not None
    generation, fence = second.running
    await first.desk.finished(first.name, first.boot, generation=generation, fence=fence)
    assert (await second.beat()).generation == "b1"
    assert (await first.beat()).generation == "a1"


async def test_nodes_share_the_work_before_slots_share_a_node(hall: Hall) -> None:
    await hall.slots("n1", 2)
    await hall.slots("n2", 2)
    for name in ("a1", "b1", "c1"):
        await hall.ask(name, generation=name)
    nodes = [(await hall.place(name)).node for name in ("a1", "b1", "c1")]
    assert [node.id for node in nodes if node] == ["n1", "n2", "n1/2"]


async def test_a_stuck_slot_loses_its_answer_and_its_neighbour_goes_on(hall: Hall) -> None:
    first, second = await hall.slots("n1", 2)
    await hall.ask_at_node("ann", "a1", first)
    await hall.ask_at_node("bob", "b1", second)
    hall.watched = {"a1", "b1"}
    await hall.line.cancel(POOL, "a1", "stopped")
    await hall.pass_time(12)
    assert (await hall.failure("a1"))["code"] == "node_error"
    assert (await second.beat()).generation == "b1"


async def test_draining_a_node_drains_all_its_slots_and_nobody_elses(hall: Hall) -> None:
    first, _ = await hall.slots("n1", 2)
    await hall.node("n11")
    await hall.ask_at_node("ann", "a1", first)
    await hall.line.drain(POOL, "n1")
    assert (await hall.place("a1")).drained
    places = [await hall.ask(seat) for seat in ("bob", "cid")]
    assert [place.node and place.node.id for place in places] == ["n11", None]


async def test_a_new_start_takes_over_slot_by_slot(hall: Hall) -> None:
    first, second = await hall.slots("n1", 2)
    await hall.ask_at_node("ann", "a1", first)
    await hall.ask_at_node("bob", "b1", second)
    for slot in (first, second):
        slot.boot, slot.running = "boot-2", None
        await slot.come()
        await slot.take()
    assert {slot.running and slot.running[0] for slot in (first, second)} == {"a1", "b1"}
