from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from app.errors import (
    InvalidRequestError,
    LineFullError,
    PoolEmptyError,
    SeatElsewhereError,
    TooManyQuestionsError,
)
from app.line import operations
from app.line.types import PoolView
from app.store import keys
from app.store.client import Arg, Reply, Store
from app.store.scripts import Script
from tests.app.line.hall import POOL, Hall, job, limits


async def test_a_free_node_is_given_at_once(hall: Hall) -> None:
    node = await hall.node()
    place = await hall.ask("ann", generation="g1")
    assert (place.state, place.rank, place.behind_own) == ("assigned", None, 0)
    assert place.node is not None
    assert (place.node.id, place.node.name, place.node.hardware) == ("n1", "node n1", "H200")
    assert place.slice_left_seconds is None
    taken = await node.take()
    assert taken is not None
    assert (taken.generation, taken.payload, taken.seat) == ("g1", b"work g1", "ann")
    assert await node.desk.wait("n1", 1) == "job"


async def test_those_who_wait_have_ranks_without_holes(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder")
    places = [await hall.ask(f"s{number}") for number in range(5)]
    assert [place.rank for place in places] == [1, 2, 3, 4, 5]
    assert places[-1].waiting == 5
    assert {place.state for place in places} == {"queued"}


async def test_a_repeated_question_changes_nothing(hall: Hall) -> None:
    await hall.node()
    await hall.ask("holder")
    first = await hall.ask("ann", generation="again")
    await hall.ask("bob")
    second = await hall.ask("ann", generation="again")
    assert (second.ticket, second.rank, second.behind_own) == (first.ticket, 1, 0)
    assert second.waiting == 2


async def test_an_id_of_somebody_else_is_refused(hall: Hall) -> None:
    await hall.node()
    await hall.ask("ann", generation="mine")
    with pytest.raises(InvalidRequestError):
        await hall.ask("eve", generation="mine")
    assert (await hall.line.seat("eve")).state == "none"


async def test_more_questions_of_a_seat_queue_behind_its_own(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    second = await hall.ask("ann", generation="a2")
    third = await hall.ask("ann", generation="a3")
    assert [second.behind_own, third.behind_own] == [1, 2]
    assert (third.rank, third.waiting) == (None, 0)
    await hall.ask("bob", generation="b1")
    await hall.ask("bob", generation="b2")
    waiting = await hall.place("b2")
    assert (waiting.behind_own, waiting.rank, waiting.waiting) == (1, 1, 1)
    await node.take()
    await hall.write_end("a1")
    await node.finish()
    assert (await hall.place("a2")).state == "assigned"
    assert (await hall.place("a3")).behind_own == 1


async def test_a_seat_has_a_limit_of_open_questions(store: Store) -> None:
    hall = Hall(store, limits(max_questions_per_seat=2))
    await hall.node()
    await hall.ask("ann")
    await hall.ask("ann")
    with pytest.raises(TooManyQuestionsError):
        await hall.ask("ann")
    await hall.ask("bob")


async def test_an_empty_pool_is_refused_at_once(hall: Hall) -> None:
    with pytest.raises(PoolEmptyError):
        await hall.ask("ann")
    node = await hall.node()
    await hall.ask("ann")
    await node.desk.leave("n1", node.boot)
    with pytest.raises(PoolEmptyError):
        await hall.ask("bob")


async def test_a_full_line_is_refused_and_says_when_to_come_back(store: Store) -> None:
    hall = Hall(store, limits(max_waiting=2))
    node = await hall.node()
    for number in range(3):  # three measured leases of 6 s each
        await hall.ask(f"early{number}", hold=False)
        await node.take()
        await hall.pass_time(6)
        await node.finish()
    await hall.ask("holder")
    await hall.ask("ann")
    await hall.ask("bob")
    with pytest.raises(LineFullError) as refused:
        await hall.ask("eve")
    assert refused.value.retry_after_seconds == pytest.approx(6, abs=3)
    # own further questions are no new place
    await hall.ask("ann")


async def test_a_seat_has_one_place_over_all_pools(hall: Hall) -> None:
    await hall.node("n1")
    await hall.node("n2", pool="other")
    await hall.ask("ann", generation="a1")
    with pytest.raises(SeatElsewhereError, match="line of m"):
        await hall.line.submit("other", "ann", job("a2"), tier="browser")
    assert (await hall.line.seat("ann")).pool == POOL


async def test_a_seat_whose_ticket_has_ended_may_choose_another_pool_at_once(hall: Hall) -> None:
    await hall.node("n1")
    await hall.node("n2", pool="other")
    await hall.ask("ann", generation="a1")
    await hall.line.leave("ann")
    place = await hall.line.submit("other", "ann", job("a2"), tier="browser")
    assert place.state == "assigned"
    assert (await hall.line.seat("ann")).pool == "other"
    with pytest.raises(SeatElsewhereError, match="line of other"):
        await hall.ask("ann", generation="a3")


async def test_a_refused_join_leaves_no_claim_behind(hall: Hall) -> None:
    await hall.node("n1")
    with pytest.raises(PoolEmptyError):
        await hall.line.submit("other", "ann", job("a1"), tier="browser")
    assert (await hall.ask("ann", generation="a2")).state == "assigned"


async def test_a_join_that_is_on_its_way_holds_the_seat(
    hall: Hall, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hall.node("n1")
    await hall.node("n2", pool="other")
    claimed, go_on = asyncio.Event(), asyncio.Event()
    run = store.run

    async def slow_run(script: Script, names: Sequence[str], args: Sequence[Arg] = ()) -> Reply:
        if script is operations.SUBMIT and names == [keys.pool_prefix("other")]:
            claimed.set()
            await go_on.wait()
        return await run(script, names, args)

    monkeypatch.setattr(store, "run", slow_run)
    joining = asyncio.create_task(hall.line.submit("other", "ann", job("a1"), tier="browser"))
    await claimed.wait()
    with pytest.raises(SeatElsewhereError):
        await hall.ask("ann", generation="a2")
    go_on.set()
    assert (await joining).state == "assigned"


async def test_a_join_that_never_arrived_gives_the_seat_free_after_a_while(hall: Hall) -> None:
    await hall.node("n1")
    claim = keys.seat_claim("ann")
    await hall.store.command("HSET", claim, "pool", "other", "join:lost", 2**50)
    with pytest.raises(SeatElsewhereError):
        await hall.ask("ann")
    await hall.store.command("HSET", claim, "join:lost", 1)
    assert (await hall.ask("ann")).state == "assigned"
    assert await hall.store.command("HLEN", claim) == 1


async def test_watching_renews_an_old_claim(hall: Hall) -> None:
    await hall.node()
    await hall.ask("ann", generation="a1")
    hall.watched = {"a1"}
    await hall.store.command("DEL", keys.seat_claim("ann"))
    await hall.pass_time(1700)
    assert await hall.store.command("HGET", keys.seat_claim("ann"), "pool") is None
    await hall.pass_time(200)
    assert await hall.store.command("HGET", keys.seat_claim("ann"), "pool") == b"m"


async def test_many_replicas_joining_at_once_agree_on_one_order(hall: Hall, store: Store) -> None:
    await hall.node()
    await hall.ask("holder")
    others = [Hall(store) for _ in range(4)]
    places = await asyncio.gather(
        *(others[n % 4].line.submit(POOL, f"s{n}", job(f"x{n}"), tier="browser") for n in range(60))
    )
    ranks = await hall.ranks([place.generation for place in places])
    assert sorted(rank or 0 for rank in ranks) == list(range(1, 61))


async def test_one_seat_joining_from_many_replicas_gets_one_place(hall: Hall, store: Store) -> None:
    await hall.node()
    await hall.ask("holder")
    others = [Hall(store) for _ in range(4)]
    places = await asyncio.gather(
        *(others[n].line.submit(POOL, "ann", job(f"x{n}"), tier="browser") for n in range(4))
    )
    assert len({place.ticket for place in places}) == 1
    assert sorted(place.behind_own for place in places) == [0, 1, 2, 3]


async def test_pools_and_cards_can_be_read(hall: Hall) -> None:
    assert await hall.line.pools() == []
    assert await hall.line.card(POOL) is None
    await hall.node("n1")
    await hall.node("n2")
    await hall.node("n3", pool="another")
    for seat in ("ann", "bob", "cid"):
        await hall.ask(seat)
    assert await hall.line.pools() == [
        PoolView(name="another", nodes=1, idle_nodes=1, waiting=0),
        PoolView(name="m", nodes=2, idle_nodes=0, waiting=1),
    ]
    assert await hall.line.card(POOL) == b"card"


async def test_unknown_questions_are_left_out(hall: Hall) -> None:
    await hall.node()
    await hall.ask("ann", generation="g1")
    places = await hall.line.places(POOL, ["nothing", "g1"], watched=True)
    assert list(places) == ["g1"]


async def test_more_questions_than_one_call_takes_are_looked_up(hall: Hall) -> None:
    await hall.node()
    await hall.ask("ann", generation="g1")
    names = [f"x{number}" for number in range(1200)] + ["g1"]
    assert list(await hall.line.places(POOL, names, watched=True)) == ["g1"]
