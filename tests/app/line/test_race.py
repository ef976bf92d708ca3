"""A race borrows an idle node beside the seat's own place, and gives it up for whoever waits."""

from __future__ import annotations

import pytest

from app.errors import PoolEmptyError, RaceBusyError, SeatElsewhereError, TooManyQuestionsError
from app.line.line import race_seat
from app.line.types import Place
from tests.app.line.hall import POOL, Hall, job


async def race(hall: Hall, seat: str, generation: str, *, pool: str = POOL) -> Place:
    hall.watched |= {generation}
    return await hall.line.borrow(pool, seat, job(generation), tier="browser")


async def test_a_race_gets_an_idle_node_beside_the_seats_own_place(hall: Hall) -> None:
    await hall.node("x1", pool="other")
    await hall.line.submit("other", "ann", job("main"), tier="browser")
    node = await hall.node()
    place = await race(hall, "ann", "race")
    assert (place.state, place.rank) == ("assigned", None)
    assert (await hall.line.seat("ann")).generation == "main"
    # the node goes back with the answer, though a page asked
    await node.take()
    await hall.write_end("race")
    await node.finish()
    assert (await hall.line.seat(race_seat("ann"))).state == "none"
    assert (await hall.line.pools())[0].idle_nodes == 1


async def test_a_race_never_waits(hall: Hall) -> None:
    with pytest.raises(PoolEmptyError):
        await race(hall, "ann", "r0")
    await hall.node()
    await hall.ask("holder", generation="h")
    with pytest.raises(RaceBusyError):
        await race(hall, "ann", "r1")
    await hall.ask("bob", generation="b1")
    assert await hall.ranks(["b1"]) == [1]
    assert (await hall.line.seat(race_seat("ann"))).state == "none"


async def test_a_borrowed_node_goes_to_whoever_waits_as_soon_as_it_has_stopped(hall: Hall) -> None:
    node = await hall.node()
    await race(hall, "ann", "race")
    await node.take()
    await hall.ask("bob", generation="b1")
    assert (await node.beat()).cancel == "wanted"
    await hall.write_end("race")
    await node.finish()
    assert (await hall.place("b1")).state == "assigned"


async def test_one_that_its_node_has_not_fetched_ends_at_once(hall: Hall) -> None:
    await hall.node()
    await race(hall, "ann", "race")
    await hall.ask("bob", generation="b1")
    failure = await hall.failure("race")
    assert (failure["code"], failure["retry"]) == ("wanted", False)
    assert (await hall.place("b1")).state == "assigned"


async def test_no_more_is_given_back_than_is_needed(hall: Hall) -> None:
    nodes = [await hall.node(name) for name in ("n1", "n2")]
    await race(hall, "ann", "r1")
    await race(hall, "bob", "r2")
    for node in nodes:
        await node.take()
    await hall.ask("cid", generation="c1")
    await hall.pass_time(3)
    assert [(await node.beat()).cancel for node in nodes].count("wanted") == 1


async def test_a_seat_has_one_race_at_a_time(hall: Hall) -> None:
    for name in ("n1", "n2"):
        await hall.node(name)
    await hall.node("x1", pool="other")
    await race(hall, "ann", "r1")
    again = await race(hall, "ann", "r1")
    assert again.state == "assigned"
    with pytest.raises(TooManyQuestionsError):
        await race(hall, "ann", "r2")
    with pytest.raises(SeatElsewhereError):
        await race(hall, "ann", "r3", pool="other")
    await hall.line.leave("ann")
    assert (await hall.failure("r1"))["code"] == "left"


async def test_a_race_whose_node_failed_is_over(hall: Hall) -> None:
    node = await hall.node()
    await race(hall, "ann", "race")
    await node.take()
    await hall.begin_writing("race")
    await hall.node("n2")
    await hall.crash()
    assert (await hall.failure("race"))["code"] == "node_lost"
    assert (await hall.line.pools())[0].idle_nodes == 1
