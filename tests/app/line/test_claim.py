"""Whose turn comes while nobody is at the screen: called, passed over, called again, given up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.line.line import Line
from app.store import keys
from app.store.client import Store
from tests.app.line.hall import POOL, FakeNode, Hall, limits


@pytest.fixture
async def node(hall: Hall) -> FakeNode:
    """The only node, with a holder on it. Time stands still but for what a test lets pass."""
    micros = await hall.now_ms() * 1000
    await hall.store.command("SET", keys.pool_prefix(POOL) + "frozen", micros)
    node = await hall.node()
    await hall.ask("holder", generation="h", hold=False)
    await node.take()
    hall.watched = {"h"}
    return node


async def wait_in_line(hall: Hall, seats: Sequence[str], *, hidden: Sequence[str] = ()) -> None:
    """Each asks one question, named after the seat, and watches it."""
    for seat in seats:
        await hall.ask(seat, generation=seat, hold=False)
    for seat in hidden:
        await hall.line.presence(seat, hidden=True)
    hall.watched |= set(seats)


async def move_on(node: FakeNode) -> None:
    """The answer that runs ends, and the node fetches somebody else's question."""
    await node.finish()
    await node.take()


async def claim_left(hall: Hall, generation: str) -> float | None:
    return (await hall.place(generation)).claim_left_seconds


async def test_who_looks_elsewhere_is_called_and_the_node_goes_to_the_next(
    hall: Hall, node: FakeNode
) -> None:
    await wait_in_line(hall, ["ann", "bob", "cid"], hidden=["ann"])
    await move_on(node)
    assert (await hall.place("bob")).state == "assigned"
    place = await hall.place("ann")
    assert (place.state, place.rank) == ("queued", 1)
    assert place.claim_left_seconds == 30
    assert await claim_left(hall, "cid") is None
    assert await hall.ranks(["cid"]) == [2]


async def test_whoever_takes_the_turn_gets_the_next_free_node(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob", "cid"], hidden=["ann"])
    await move_on(node)
    await hall.line.presence("ann", hidden=False)
    place = await hall.place("ann")
    assert (place.rank, place.claim_left_seconds) == (1, None)
    await move_on(node)
    assert (await hall.place("ann")).state == "assigned"
    assert await hall.ranks(["cid"]) == [1]


async def test_nobody_is_given_up_before_two_calls(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob", "cid", "dan"], hidden=["ann"])
    await move_on(node)
    await hall.pass_time(31)
    # the first call is over; the place stands, and no second call comes before a node moves on
    assert (await hall.place("ann")).rank == 1
    assert await claim_left(hall, "ann") is None
    await move_on(node)
    assert (await hall.place("cid")).state == "assigned"
    assert await claim_left(hall, "ann") == 30
    await hall.pass_time(29)
    assert (await hall.place("ann")).rank == 1
    await hall.pass_time(2)
    failure = await hall.failure("ann")
    assert (failure["code"], failure["retry"]) == ("unclaimed", True)
    assert (await hall.line.seat("ann")).state == "none"
    assert await hall.ranks(["dan"]) == [1]


async def test_a_node_that_moves_on_during_a_call_is_no_second_call(
    hall: Hall, node: FakeNode
) -> None:
    await wait_in_line(hall, ["ann", "bob", "cid", "dan"], hidden=["ann"])
    await move_on(node)
    await hall.pass_time(10)
    await move_on(node)
    assert await claim_left(hall, "ann") == 20
    await hall.pass_time(21)
    assert (await hall.place("ann")).rank == 1


async def test_a_claim_wipes_earlier_calls(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob", "cid", "dan", "eve"], hidden=["ann"])
    await move_on(node)
    await hall.pass_time(31)
    await hall.line.presence("ann", hidden=False)
    await hall.line.presence("ann", hidden=True)
    await move_on(node)
    await hall.pass_time(31)
    assert (await hall.place("ann")).rank == 1


async def test_with_nobody_else_there_the_answer_begins_at_once(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob"], hidden=["ann", "bob"])
    await move_on(node)
    assert (await hall.place("ann")).state == "assigned"
    assert await claim_left(hall, "bob") is None


async def test_a_page_that_was_closed_is_called_like_one_that_is_hidden(
    hall: Hall, node: FakeNode
) -> None:
    await wait_in_line(hall, ["ann", "bob"])
    hall.watched -= {"ann"}
    await hall.pass_time(12)
    await move_on(node)
    assert (await hall.place("bob")).state == "assigned"
    assert await claim_left(hall, "ann") == 30
    # it comes back and watches: a call that ends then was not in vain
    hall.watched |= {"ann"}
    await hall.pass_time(31)
    assert (await hall.place("ann")).rank == 1
    await move_on(node)
    assert (await hall.place("ann")).state == "assigned"


async def test_a_reload_is_nobodys_absence(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob"])
    hall.watched -= {"ann"}
    await hall.pass_time(6)
    await move_on(node)
    assert (await hall.place("ann")).state == "assigned"


async def test_asking_again_is_being_there(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob"], hidden=["ann"])
    await hall.ask("ann", generation="ann-2", hold=False)
    await move_on(node)
    assert (await hall.place("ann")).state == "assigned"


async def test_a_program_that_waits_is_always_there(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob"])
    await hall.ask("ann", generation="call", tier="api", hold=False)
    # the account's page, in a hidden tab, says so for the same seat
    await hall.line.presence("ann", hidden=True)
    await move_on(node)
    assert (await hall.place("ann")).state == "assigned"


async def test_only_those_near_the_front_are_called(hall: Hall, node: FakeNode) -> None:
    seats = [f"s{number:02}" for number in range(12)]
    await wait_in_line(hall, seats, hidden=seats[:11])
    await move_on(node)
    # the one who looks stands too far back: the first is served, not called
    assert (await hall.place("s00")).state == "assigned"
    assert [await claim_left(hall, seat) for seat in seats[1:]] == [None] * 11


async def test_another_tier_takes_the_turn_of_one_whose_people_are_away(
    hall: Hall, node: FakeNode
) -> None:
    await wait_in_line(hall, ["ann", "bob"], hidden=["ann", "bob"])
    for name in ("bot1", "bot2"):
        await hall.ask(name, generation=name, tier="api", hold=False)
        hall.watched |= {name}
    await move_on(node)
    assert (await hall.place("bot1")).state == "assigned"
    # that was the programs' turn; the next one is the people's, whose first is called
    assert await claim_left(hall, "ann") is None
    await move_on(node)
    assert (await hall.place("bot2")).state == "assigned"
    assert [await claim_left(hall, name) for name in ("ann", "bob")] == [30, None]
    await hall.line.presence("ann", hidden=False)
    await hall.line.presence("bob", hidden=False)
    await move_on(node)
    assert (await hall.place("ann")).state == "assigned"


async def test_an_outage_is_nobodys_absence(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob", "cid"], hidden=["bob"])
    await hall.shift_clock(60)
    await node.beat()
    await move_on(node)
    assert (await hall.place("ann")).state == "assigned"
    await move_on(node)
    assert await claim_left(hall, "bob") == 30
    await hall.shift_clock(60)
    await hall.line.pump(POOL)
    assert (await hall.place("bob")).rank == 1


async def test_a_seat_whose_node_failed_goes_on_without_a_call(store: Store) -> None:
    hall = Hall(store, limits(rescue_seconds=3600, reconnect_grace_seconds=3600))
    node = await hall.node()
    await hall.ask_at_node("ann", "ann", node)
    await hall.begin_writing("ann")
    await hall.line.presence("ann", hidden=True)
    await hall.ask("bob", generation="bob")
    hall.watched = {"ann", "bob"}
    await hall.crash()
    await hall.node("n2")
    assert (await hall.place("ann")).state == "assigned"


async def test_a_replica_reads_calls_off_the_lanes(hall: Hall, node: FakeNode) -> None:
    await wait_in_line(hall, ["ann", "bob", "cid"], hidden=["ann"])
    known = {name: await hall.place(name) for name in ("ann", "cid")}
    await move_on(node)
    standings = await hall.line.standings(POOL)
    found = {name: standings.place(place) for name, place in known.items()}
    assert found == {name: await hall.place(name) for name in known}
    assert await claim_left(hall, "ann") == 30


async def test_presence_without_a_place_is_no_fault(hall: Hall) -> None:
    await hall.node()
    await hall.line.presence("nobody", hidden=True)
    assert (await hall.line.seat("nobody")).state == "none"


async def test_limits_written_by_an_older_web_process_lack_nothing(hall: Hall) -> None:
    node = await hall.node()
    await hall.store.command("SET", keys.line_limits(POOL), '{"slice": 1000}')
    await node.beat()
    await Line(hall.store, hall.settings).pump(POOL)
