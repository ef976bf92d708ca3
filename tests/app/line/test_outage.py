"""The store was away: nobody's place may suffer from it (promise 8)."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from redis.exceptions import ResponseError

from app.line.line import Line
from app.store import keys
from app.store.client import Store
from tests.app.line.hall import POOL, Hall, job, limits
from tests.waiting import until


async def test_an_outage_expires_nobody(store: Store) -> None:
    hall = Hall(store, limits(slice_seconds=7200))
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await hall.ask("bob", generation="b1")
    await hall.ask("cid", generation="c1")
    await node.take()
    await hall.shift_clock(600)
    await hall.line.pump(POOL)
    assert [(await hall.place(name)).state for name in ("a1", "b1", "c1")] == [
        "assigned", "queued", "queued",
    ]  # fmt: skip
    assert (await node.beat()).generation == "a1"
    hall.watched = {"a1", "b1"}
    await hall.pass_time(100)
    assert await hall.ranks(["b1", "c1"]) == [1, 2]
    await hall.pass_time(32)  # one grace later only those who did not come back have lost
    assert (await hall.place("c1")).state == "ended"
    assert [(await hall.place(name)).state for name in ("a1", "b1")] == ["assigned", "queued"]


async def test_after_an_outage_no_one_is_sent_to_a_node_that_has_not_reported(hall: Hall) -> None:
    await hall.node("n1")
    await hall.node("n2")
    await hall.shift_clock(60)
    await hall.nodes["n2"].beat()
    place = await hall.ask("ann")
    assert place.node is not None
    assert place.node.id == "n2"
    assert (await hall.ask("bob", generation="b1")).state == "queued"
    await hall.nodes["n1"].beat()
    assert (await hall.place("b1")).state == "assigned"


async def test_a_node_that_died_in_the_outage_is_found_out_soon(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask("ann", generation="a1")
    await node.take()
    hall.silent = {"n1"}
    hall.watched = {"a1"}
    await hall.shift_clock(60)
    await hall.line.pump(POOL)
    assert (await hall.place("a1")).state == "assigned"
    await hall.pass_time(16)
    assert (await hall.place("a1")).returned


async def test_a_resting_lease_survives_an_outage(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await hall.write_end("a1")
    await node.finish()
    await hall.shift_clock(600)
    await node.beat()
    assert (await hall.line.seat("ann")).state == "holding"


async def test_after_a_flush_nodes_and_seats_start_again(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    await hall.store.command("FLUSHALL")
    await hall.pass_time(1)
    assert node.running is None
    assert (await hall.ask("bob")).state == "assigned"


async def test_the_pump_serves_all_pools_and_outlives_errors_of_the_store(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    hall = Hall(store, limits(reconnect_grace_seconds=1))
    await hall.node("n1")
    await hall.node("n2", pool="z")
    for pool in (POOL, "z"):
        for seat in ("ann", "bob"):
            await hall.line.submit(pool, f"{seat} {pool}", job(f"{seat}-{pool}"), tier="browser")
    # a key of the wrong kind makes the scripts of the first pool fail for a while
    tick = f"{keys.pool_prefix(POOL)}tick"
    await store.command("DEL", tick)
    await store.command("RPUSH", tick, "x")
    with pytest.raises(ResponseError):
        await hall.line.pump(POOL)
    task = asyncio.create_task(Line(store, hall.settings).run_pump())

    async def waiting() -> list[int]:
        return [view.waiting for view in await hall.line.pools()]

    async def is_waiting(*expected: int) -> bool:
        return await waiting() == list(expected)

    try:
        await until(lambda: is_waiting(1, 0))  # the other pool is served all the same
        assert "could not be pumped" in caplog.text
        await store.command("DEL", tick)
        await until(lambda: is_waiting(0, 0))
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_pump_waits_for_a_store_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async with Store.connect("unix:///nowhere/s") as nothing:
        task = asyncio.create_task(Line(nothing, limits()).run_pump())
        try:
            await until(lambda: caplog.text.count("found no store") >= 2)
            assert not task.done()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_an_outage_gives_nodes_to_those_who_wait_soon(store: Store) -> None:
    hall = Hall(store, limits(reconnect_grace_seconds=3600))
    node = await hall.node()
    await hall.ask_at_node("ann", "a1", node)
    await hall.write_end("a1")
    await node.finish()
    await hall.shift_clock(600)  # ann's lease rests for longer than it may
    await node.beat()
    await hall.ask("bob", generation="b1")
    assert (await hall.line.seat("ann")).state == "holding"
    await hall.pass_time(12)
    assert (await hall.place("b1")).state == "assigned"


async def test_a_clock_that_jumped_ahead_and_back_hides_no_dead_node(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    await hall.shift_clock(3600)
    await node.beat()  # reckoned by the later clock
    await hall.shift_clock(-3600)
    hall.silent = {"n1"}
    await hall.line.pump(POOL)
    await hall.pass_time(16)
    assert (await hall.place("a1")).returned


async def test_a_clock_that_went_back_costs_nobody_a_node_that_reports(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    await hall.pass_time(8)
    await hall.shift_clock(-600)
    await hall.pass_time(30)
    assert (await hall.place("a1")).state == "assigned"


async def test_a_clock_that_went_back_keeps_no_place_and_no_answer_for_longer(hall: Hall) -> None:
    node = await hall.node("n1")
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    await hall.ask("bob", generation="b1")
    await hall.line.drain(POOL, "n1")
    await hall.shift_clock(-86_400)
    await hall.pass_time(hall.settings.answer_cap_seconds + 4)
    assert (await node.beat()).cancel == "slice_ended"
    await hall.pass_time(2 * hall.settings.reconnect_grace_seconds)
    assert (await hall.place("b1")).state == "ended"
