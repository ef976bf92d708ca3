"""What is known to go wrong elsewhere: crowds, ghosts in the line, a dead node at its head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher

from app.node.kinds.scripted import Script
from app.store.client import Store
from tests.app.line.hall import Hall
from tests.app.serving import Member, Web, first, scripted_node, serving
from tests.app.store.servers import OwnServer
from tests.history import events as e
from tests.history.aof import steps_of
from tests.history.chronicle import chronicle
from tests.history.promises import assert_kept
from tests.waiting import until

BODY = {"model": "scripted", "messages": [{"role": "user", "content": "?"}], "max_tokens": 20}
# The best known router of this kind stops answering at 41: its waiters fill its threads.
CALLERS = 60


@pytest.fixture
async def web(
    recorder: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Web]:
    cheap = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)
    monkeypatch.setattr("app.accounts.secrets.PasswordHasher", lambda: cheap)
    async with serving(
        recorder.url,
        tmp_path,
        sign_in_tries_per_minute=10_000,
        requests_per_minute=10_000,
        max_waiting_per_address=1000,
        reconnect_grace_seconds=5,
        idle_limit_seconds=2,
    ) as replica:
        yield replica


async def programs(web: Web, count: int) -> list[httpx.AsyncClient]:
    """Each with an account of its own: a seat of its own in the line."""
    made: list[httpx.AsyncClient] = []
    for number in range(count):
        owner = await web.member(f"owner-{number}")
        made.append(await web.client(Authorization=f"Bearer {await owner.key()}"))
    return made


async def call(client: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=BODY | more, timeout=120)


async def waiting(web: Web) -> int:
    return (await web.parts.line.pools())[0].waiting


def told(recorder: OwnServer) -> list[e.Event]:
    """What happened; no promise was broken in it."""
    recorder.stop()
    history = e.History(list(chronicle(map(steps_of, recorder.lives()))))
    assert_kept(history)
    return [event for _, event in history.events]


async def test_sixty_callers_on_one_node_are_all_answered_in_order(
    web: Web, recorder: OwnServer
) -> None:
    script = Script(tokens_per_second=2000, prefill_ms_per_token=0)
    async with scripted_node(recorder.url, script):
        callers = await programs(web, CALLERS)
        calls = [
            asyncio.create_task(call(client, stream=number % 2 == 0))
            for number, client in enumerate(callers)
        ]
        async with asyncio.timeout(100):
            # nobody's waiting keeps others from being heard
            while not all(one.done() for one in calls):
                assert (await callers[0].get("/healthz")).status_code == 200
                await asyncio.sleep(0.1)
        assert [one.result().status_code for one in calls] == [200] * CALLERS
    events = told(recorder)
    assert sum(isinstance(event, e.Given) for event in events) == CALLERS


async def test_those_who_hang_up_while_they_wait_are_no_ghosts_in_the_line(
    web: Web, recorder: OwnServer
) -> None:
    async with scripted_node(recorder.url, Script(tokens_per_second=20, prefill_ms_per_token=0)):
        callers = await programs(web, 9)
        calls = [asyncio.create_task(call(callers[0]))]
        await until(lambda: _runs(web), what="the first one is answered")
        for number, client in enumerate(callers[1:]):
            calls.append(asyncio.create_task(call(client, stream=number % 2 == 0, max_tokens=2)))
        await until(lambda: _waiting_are(web, 8), what="all wait")
        gone = calls[2:8]
        for one in gone:
            one.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        await until(lambda: _waiting_are(web, 2), within_seconds=2, what="they have left")
        async with asyncio.timeout(60):
            answers = await asyncio.gather(calls[0], calls[1], calls[8])
        assert [answer.status_code for answer in answers] == [200, 200, 200]
    events = told(recorder)
    # not one prefill was spent on those who had gone
    assert sum(isinstance(event, e.Given) for event in events) == 3


async def _runs(web: Web) -> bool:
    return not (await web.parts.line.pools())[0].idle_nodes


async def _waiting_are(web: Web, count: int) -> bool:
    return await waiting(web) == count


async def test_a_closed_tab_leaves_the_line_after_its_grace_and_those_behind_move_up(
    web: Web, recorder: OwnServer
) -> None:
    async with scripted_node(recorder.url, Script(stall_at=5)):
        ann, bob, cid = [await web.member(name) for name in ("Ann", "Bob", "Cid")]
        async with ann.ask() as hers:
            await first(hers, "delta")
            async with bob.ask() as his:
                await first(his, "state", rank=1)
                behind = asyncio.create_task(_ranks(cid, until_rank=1))
                await until(lambda: _waiting_are(web, 2))
            # bob's tab is closed; cid hears of it after the grace of five seconds
            async with asyncio.timeout(20):
                assert (await behind)[-1] == 1
            for member in (ann, cid):
                await member.client.post("/api/line/leave")

        async def is_over() -> bool:
            return bool((await web.parts.line.pools())[0].idle_nodes)

        await until(is_over)
    events = told(recorder)
    reasons = [event.reason for event in events if isinstance(event, e.Closed)]
    assert reasons.count("away") == 1


async def _ranks(member: Member, *, until_rank: int) -> list[int | None]:
    ranks: list[int | None] = []
    async with member.ask() as events:
        async for one in events:
            if one.name == "state":
                ranks.append(one.data["rank"])
                if ranks[-1] == until_rank:
                    break
    return ranks


async def test_a_dead_node_first_in_the_list_costs_one_pause_and_no_more(
    recorder: OwnServer,
) -> None:
    async with Store.connect(recorder.url) as store:
        hall = Hall(store)
        await hall.node("dead")
        await hall.node("alive")
        hall.silent = {"dead"}
        await hall.ask("ann", generation="a1", hold=False)
        hall.watched = {"a1"}
        await hall.pass_time(hall.settings.node_dead_seconds + 1)
        for number in range(5):
            generation = "a1" if number == 0 else f"b{number}"
            if number:
                await hall.ask(f"bob-{number}", generation=generation, hold=False)
            await hall.nodes["alive"].take()
            await hall.write_end(generation)
            await hall.nodes["alive"].finish()
    given = [event for event in told(recorder) if isinstance(event, e.Given)]
    assert [one.node for one in given] == ["dead", *["alive"] * 5]
