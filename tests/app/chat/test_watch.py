"""Watching a turn: resuming, reloading, two watchers, outages, turns that only SQL knows."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from sqlalchemy import update

from app.accounts.models import Turn, now
from app.chat import history, watch
from app.node.kinds.scripted import Script
from app.relay.reader import RelayReader
from app.store import keys
from tests.app.serving import Heard, Web, first, names_of, scripted_node, serving, text_of
from tests.waiting import until

ANSWER = "One two three. 同一时间只有一个人 🙂 naïve. " * 6


async def rest(events: Any) -> list[Heard]:
    return [one async for one in events]


async def rates_until(events: Any, *, tokens: int) -> AsyncGenerator[Heard]:
    """The rates up to the one that counts all tokens."""
    async for one in events:
        if one.name == "rate":
            yield one
            if one.data["tokens"] == tokens:
                return


async def stored(web: Web, generation: str) -> Turn:
    """The turn, once the scribe has written its end."""

    async def ended() -> Turn | None:
        turn = await history.turn_by_id(web.parts.database, generation)
        return turn if turn and turn.status != "open" else None

    found = await until(ended, what="the turn's end in SQL")
    assert found
    return found


async def forget(web: Web, pool: str, generation: str) -> None:
    """What the store does by itself ten minutes later."""
    names = keys.generation_hash(pool, generation), keys.generation_stream(pool, generation)
    await web.parts.store.command("DEL", *names)


async def test_resuming_at_every_position_gives_the_same_text(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    script = Script(text=ANSWER, tokens_per_second=300)
    async with scripted_node(valkey_url, script, frame_ms=5):
        whole = await eva.answer(generation=generation)
    assert text_of(whole) == ANSWER
    positions = [(one.id, i) for i, one in enumerate(whole) if one.name == "delta"]
    assert len(positions) > 20
    for position, index in positions:
        async with eva.watch(generation, position) as events:
            again = await rest(events)
        assert text_of(whole[: index + 1]) + text_of(again) == ANSWER
        assert again[-1].data == whole[-1].data
        assert [one.id for one in again if one.name == "done"] == [whole[-1].id]


async def test_resuming_behind_the_end_tells_the_end_again(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(text="Yes.")):
        whole = await eva.answer(generation=generation)
    async with eva.watch(generation, whole[-1].id) as events:
        assert [one for one in await rest(events) if one.name != "state"] == [whole[-1]]


async def test_a_reload_in_each_phase_shows_where_the_turn_stands(web: Web, valkey_url: str):
    eva, ben = await web.member("Eva"), await web.member("Ben")
    generation, blocking = uuid4().hex, uuid4().hex
    script = Script(stall_at=8, prefill_ms_per_token=1.5)
    async with scripted_node(valkey_url, script) as kind:
        async with ben.ask(generation=blocking) as his:
            await first(his, "delta")
            async with eva.ask("word " * 300, generation=generation) as events:
                await first(events, "state", phase="waiting", rank=1)
            async with eva.watch(generation) as events:
                await first(events, "state", phase="waiting", rank=1)
            await ben.client.post("/api/line/leave")
        async with eva.watch(generation) as events:
            reading = await first(events, "state", phase="reading")
            assert reading.data["node"] == {"name": "node-1", "hardware": "scripted"}
            assert reading.data["prompt"]["total"] > 300
        async with eva.watch(generation) as events:
            await first(events, "delta")
        # as a fresh watcher, so the text so far comes again
        async with eva.watch(generation) as events:
            tokens = 0
            while tokens < 8:
                tokens += (await first(events, "delta")).data["n"]
            await first(events, "state", phase="answering")
            await eva.client.post(f"/api/turns/{generation}/stop")
            last = (await rest(events))[-1]
        assert (last.name, last.data["stop_reason"]) == ("done", "stopped")
        assert kind.script.stall_at == 8


async def test_two_watchers_hear_the_same(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    async with (
        scripted_node(valkey_url, Script(text=ANSWER, tokens_per_second=300)),
        eva.ask(generation=generation) as events,
        eva.watch(generation) as others,
    ):
        one, two = await asyncio.gather(rest(events), rest(others))
    assert text_of(one) == text_of(two) == ANSWER
    assert one[-1] == two[-1]


async def test_the_rate_goes_on_and_falls_to_zero_when_the_node_stalls(web: Web, valkey_url: str):
    eva = await web.member()
    async with (
        scripted_node(valkey_url, Script(stall_at=60, tokens_per_second=150)),
        eva.ask() as events,
    ):
        rates: list[Heard] = []
        async for one in events:
            if one.name == "rate":
                rates.append(one)
                if one.data["live"] == 0:
                    break
    assert rates[0].data["live"] is None
    assert max(one.data["live"] or 0 for one in rates) > 50
    # 0.4 s of tokens and 1.0 s until the last has left the window, ten times a second
    assert len(rates) >= 10
    assert rates[-1].data["tokens"] == 60


async def test_rates_do_not_depend_on_this_machines_wall_clock(
    web: Web, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    eva = await web.member()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    async with (
        scripted_node(valkey_url, Script(stall_at=100, tokens_per_second=100)),
        eva.ask() as events,
    ):
        lives = [one.data["live"] async for one in rates_until(events, tokens=100)]
    assert max(live or 0 for live in lives) > 20


async def test_replayed_tokens_are_not_counted_as_live(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(stall_at=100, tokens_per_second=2000)):
        async with eva.ask(generation=generation) as events:
            await first(events, "rate", live=0.0, tokens=100)
        async with eva.watch(generation) as events:
            assert (await first(events, "rate")).data["live"] == 0.0


async def test_a_changing_rank_sends_no_waiter_to_the_stream(
    web: Web, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    read: list[str] = []
    real = RelayReader.read

    async def counted(self: RelayReader, pool: str, generation: str, *more: Any, **named: Any):
        read.append(generation)
        return await real(self, pool, generation, *more, **named)

    monkeypatch.setattr(RelayReader, "read", counted)
    eva, ben, cai = [await web.member(name) for name in ("Eva", "Ben", "Cai")]
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(stall_at=5)), eva.ask() as hers:
        await first(hers, "delta")
        async with ben.ask() as his:
            await first(his, "state", rank=1)
            async with cai.ask(generation=generation) as third:
                await first(third, "state", rank=2)
                await ben.client.post("/api/line/leave")
                await first(third, "state", rank=1)
                assert read.count(generation) == 1


async def test_a_watcher_that_leaves_keeps_no_registration(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    bell = keys.generation_bell("scripted", generation)

    async def listening() -> bool:
        return (await web.parts.store.command("PUBSUB", "NUMSUB", bell))[1] > 0

    async def silent() -> bool:
        return not await listening()

    gc.disable()  # the collector must not be what closes it
    try:
        async with scripted_node(valkey_url, Script(stall_at=5)):
            async with eva.ask(generation=generation) as events:
                await first(events, "delta")
                await until(listening)
            await until(silent, what="the watcher's registration is gone")
    finally:
        gc.enable()


async def test_the_plain_generator_releases_when_closed(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(stall_at=5)):
        async with eva.ask(generation=generation) as events:
            await first(events, "delta")
        async with aclosing(watch.watch(web.parts, "scripted", generation)) as told:
            async for _, _event in told:
                break
        bell = keys.generation_bell("scripted", generation)

        async def silent() -> bool:
            return (await web.parts.store.command("PUBSUB", "NUMSUB", bell))[1] == 0

        await until(silent)


async def test_a_turn_that_only_sql_knows_comes_back_whole(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(text=ANSWER)):
        whole = await eva.answer(generation=generation)
    await stored(web, generation)
    await forget(web, "scripted", generation)
    async with eva.watch(generation) as events:
        again = await rest(events)
    assert names_of(again) == ["delta", "done"]
    assert text_of(again) == ANSWER
    assert again[-1].data == whole[-1].data
    # whoever has a part of it already must not get all of it behind that part
    async with eva.watch(generation, "1-0") as events:
        refused = await rest(events)
    assert [(one.name, one.data["code"]) for one in refused] == [("failed", "turn_not_found")]


@pytest.mark.parametrize("ahead_seconds", [-600, 0, 600])
async def test_a_turn_that_the_store_lost_fails_and_is_closed_in_sql(
    web: Web, valkey_url: str, monkeypatch: pytest.MonkeyPatch, ahead_seconds: int
):
    """Also where the replica that took the question has a clock ten minutes ahead or behind."""
    monkeypatch.setattr(watch, "ARRIVAL_SECONDS", 0.3)
    eva = await web.member()
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(stall_at=5)), eva.ask(generation=generation) as own:
        await first(own, "delta")
        async with web.parts.database.session() as session:
            written = now() + timedelta(seconds=ahead_seconds)
            await session.execute(update(Turn).values(created_at=written))
        await web.parts.store.command("FLUSHALL")
        last = (await rest(own))[-1]
    assert (last.name, last.data["code"], last.data["retry"]) == ("failed", "turn_lost", True)
    assert (await stored(web, generation)).error_code == "turn_lost"


async def test_an_outage_of_the_store_is_told_and_survived(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    # it writes on for longer than the outage
    script = Script(text=ANSWER, tokens_per_second=60)
    async with (
        scripted_node(valkey_url, script, node_stop_seconds=20, node_dead_seconds=30),
        eva.ask(generation=generation) as events,
    ):
        await first(events, "delta")
        async with Redis.from_url(valkey_url) as client:
            await client.execute_command("CLIENT", "PAUSE", 6000, "ALL")
        # a call to a paused store is given up after its time-out of 5 s
        told = await first(
            events,
            "state",
            reason="The line is out of reach for a moment. Your place is kept; try again in a few seconds.",
        )
        assert told.data["phase"] == "answering"
        after = await rest(events)
    assert after[-1].name == "done"
    async with eva.watch(generation) as events:
        assert text_of(await rest(events)) == ANSWER


async def test_an_outage_without_end_fails_the_watcher(
    web: Web, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch, "OUTAGE_SECONDS", 0.0)
    eva = await web.member()
    async with scripted_node(valkey_url, Script(stall_at=5)), eva.ask() as events:
        await first(events, "delta")
        async with Redis.from_url(valkey_url) as client:
            await client.execute_command("CLIENT", "PAUSE", 8000, "ALL")
            last = (await rest(events))[-1]
            await client.execute_command("CLIENT", "UNPAUSE")
    assert (last.name, last.data["code"]) == ("failed", "store_unavailable")


async def test_a_node_that_goes_before_the_first_token_is_replaced_unnoticed(
    web: Web, valkey_url: str
):
    eva = await web.member()
    async with AsyncExitStack() as slow, AsyncExitStack() as other:
        script = Script(text=ANSWER, prefill_ms_per_token=500)
        await slow.enter_async_context(scripted_node(valkey_url, script))
        async with eva.ask() as events:
            await first(events, "state", phase="reading")
            await other.enter_async_context(
                scripted_node(valkey_url, Script(text=ANSWER), name="node-2")
            )
            await slow.aclose()
            told = await rest(events)
    assert text_of(told) == ANSWER
    assert told[-1].name == "done"
    nodes = [one.data["node"] for one in told if one.name == "state" and one.data["node"]]
    assert nodes[-1]["name"] == "node-2"


async def test_without_another_node_the_turn_fails_and_the_text_stays(
    valkey_url: str, tmp_path: Path
):
    generation = uuid4().hex
    async with serving(valkey_url, tmp_path, rescue_seconds=1) as web:
        eva = await web.member()
        async with AsyncExitStack() as node:
            await node.enter_async_context(scripted_node(valkey_url, Script(stall_at=20)))
            async with eva.ask(generation=generation) as events:
                told = [await first(events, "delta")]
                await node.aclose()
                told += await rest(events)
        last = told[-1]
        assert (last.name, last.data["retry"]) == ("failed", True)
        assert last.data["message"].endswith(".")
        turn = await stored(web, generation)
    assert turn.answer == text_of(told)
    assert turn.error_code == last.data["code"]


async def test_nobody_watches_the_turn_of_somebody_else(web: Web, valkey_url: str):
    eva, ben = await web.member("Eva"), await web.member("Ben")
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(stall_at=5)), eva.ask(generation=generation) as own:
        await first(own, "delta")
        for method, path in (("GET", "events"), ("POST", "stop")):
            answer = await ben.client.request(method, f"/api/turns/{generation}/{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        asked = {"id": generation, "question": "Mine?"}
        assert (await ben.client.post("/api/chat", json=asked)).status_code == 404
        await eva.client.post("/api/line/leave")
        assert names_of(await rest(own))[-1] in ("done", "failed")
