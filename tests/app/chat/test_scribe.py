"""Ended turns reach SQL once, whatever is away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError

from app.accounts.caller import Caller, user_seat
from app.accounts.models import Turn, User, new_id, now
from app.chat import history, scribe
from app.chat.history import NewTurn
from app.chat.sql import DatabaseUnavailableError
from app.line.line import Line
from app.line.nodes import NodeDesk
from app.line.types import Job, NodeInfo
from app.main import open_parts
from app.parts import Parts
from app.relay.types import Entry, Record
from app.relay.writer import RelayWriter
from app.store import keys
from tests.app.serving import settings_of
from tests.waiting import until

POOL = "m"
DONE = {
    "finish_reason": "stop", "stop_reason": None, "usage": {"completion_tokens": 2},
    "timing": {"total_ms": 5.0}, "tps": {"peak": 9.0}, "accepted": {"mean": 1.0},
}  # fmt: skip


@pytest.fixture
async def parts(valkey_url: str, tmp_path: Path) -> AsyncIterator[Parts]:
    """A replica's parts without its web side and without its loops."""
    async with AsyncExitStack() as stack:
        yield await open_parts(settings_of(valkey_url, tmp_path), stack)


@pytest.fixture
async def eva(parts: Parts) -> Caller:
    user = User(id=new_id(), name="Eva", name_key="eva", password_hash="-")
    async with parts.database.session() as session:
        session.add(user)
    return Caller("user", user_seat(user.id), "browser", user.id, "Eva")


async def begin(parts: Parts, caller: Caller, source: Any = "chat") -> str:
    generation = uuid4().hex
    new = NewTurn(generation, source, POOL, "Why?", {})
    await history.begin(parts.database, caller, new)
    return generation


async def answer(parts: Parts, caller: Caller, generation: str) -> None:
    """The question joins the line and a node answers it."""
    desk = NodeDesk(parts.store, POOL, parts.settings)
    await desk.register(NodeInfo("n", "boot", "n", "H200", "scripted", "label"), b"card")
    await desk.heartbeat("n", "boot", running=None, highest_fence=0)
    await parts.line.submit(POOL, caller.seat, Job(generation, b"work", hold=False), tier="api")

    async def taken() -> Any:
        return await desk.take("n", "boot")

    assignment = await until(taken)
    writer = RelayWriter(parts.store, POOL)
    fence = assignment.fence
    for text, channel in (("Hm.", "reasoning"), ("Be", "text"), ("cause.\0", "text")):
        data = {"text": text, "channel": channel, "n": 1, "ids": [1], "t_ms": 1.0, "steps": []}
        await writer.append(generation, fence, [("delta", data)])
    await writer.end(generation, fence, "done", DONE)
    await desk.finished("n", "boot", generation=generation, fence=fence)


async def turn_of(parts: Parts, generation: str) -> Turn:
    turn = await history.turn_by_id(parts.database, generation)
    assert turn
    return turn


async def test_an_ended_turn_is_written_with_its_texts_and_figures(parts: Parts, eva: Caller):
    generation = await begin(parts, eva)
    await answer(parts, eva, generation)
    assert await scribe.collect(parts, POOL) == 1
    turn = await turn_of(parts, generation)
    # Postgres takes no NUL
    assert (turn.answer, turn.reasoning) == ("Because.\ufffd", "Hm.")
    assert (turn.status, turn.finish_reason) == ("done", "stop")
    assert turn.figures == {key: DONE[key] for key in ("usage", "timing", "tps", "accepted")}
    assert turn.ended_at
    assert abs(turn.ended_at - now()) < timedelta(minutes=1)
    assert await scribe.collect(parts, POOL) == 0


async def test_a_nodes_complaint_is_stored_as_the_texts_are(parts: Parts, eva: Caller):
    generation = await begin(parts, eva)
    last = Entry("1-0", "failed", {"code": "engine", "message": "bad \0 byte", "retry": True})
    await history.finish(parts.database, Record(generation, eva.seat, "n", 1, 2, "", "", last))
    assert (await turn_of(parts, generation)).error_message == "bad \ufffd byte"


@pytest.mark.parametrize(
    "entry",
    [("delta", '{"text": "x", "channel": "of tomorrow", "n": 1}'), ("done", "{}"), ("done", "[")],
)
async def test_an_unreadable_answer_ends_and_holds_up_no_other(
    parts: Parts, eva: Caller, entry: tuple[str, str]
):
    strange, good = await begin(parts, eva), await begin(parts, eva)
    await answer(parts, eva, strange)
    stream = keys.generation_stream(POOL, strange)
    kind, data = entry
    if kind == "done":
        await parts.store.command("DEL", stream)
    await parts.store.command("XADD", stream, "*", "k", kind, "d", data)
    await answer(parts, eva, good)
    assert await scribe.collect(parts, POOL) == 2
    assert (await turn_of(parts, strange)).error_code == history.LOST_CODE
    assert (await turn_of(parts, good)).status == "done"
    assert await scribe.collect(parts, POOL) == 0


@pytest.mark.parametrize("source", ["api", "embed"])
async def test_texts_of_other_turns_are_never_stored(parts: Parts, eva: Caller, source: str):
    generation = await begin(parts, eva, source)
    await answer(parts, eva, generation)
    await scribe.collect(parts, POOL)
    turn = await turn_of(parts, generation)
    assert (turn.status, turn.question, turn.answer, turn.reasoning) == ("done", "", "", "")
    assert turn.figures


def record(generation: str, text: str) -> Record:
    return Record(generation, "s", "n", 0, 1_700_000_000_000, text, "", Entry("1-0", "done", DONE))


async def test_the_first_end_written_stays(parts: Parts, eva: Caller):
    generation = await begin(parts, eva)
    await history.finish(parts.database, record(generation, "one"))
    await history.finish(parts.database, record(generation, "two"))
    await history.lose(parts.database, generation)
    turn = await turn_of(parts, generation)
    assert (turn.status, turn.answer) == ("done", "one")
    # a turn of which SQL knows nothing is no fault
    await history.finish(parts.database, record(uuid4().hex, "x"))


async def test_an_outage_of_sql_loses_nothing(
    parts: Parts, eva: Caller, monkeypatch: pytest.MonkeyPatch
):
    generation = await begin(parts, eva)
    await answer(parts, eva, generation)

    @asynccontextmanager
    async def away() -> AsyncIterator[None]:
        raise OperationalError("select", {}, OSError("away"))
        yield

    with monkeypatch.context() as broken:
        broken.setattr(type(parts.database), "session", lambda _: away())
        with pytest.raises(DatabaseUnavailableError):
            await scribe.collect(parts, POOL)
    # what was taken and not finished comes again after a while; here at once
    monkeypatch.setattr("app.relay.collector.TAKE_OVER_MS", 0)
    assert await scribe.collect(parts, POOL) >= 1
    assert (await turn_of(parts, generation)).status == "done"


async def test_the_loop_outlives_both_outages(
    parts: Parts, eva: Caller, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scribe, "OUTAGE_SECONDS", 0.01)
    monkeypatch.setattr(scribe, "LOOK_SECONDS", 0.01)
    calls = 0
    real = Line.pools

    async def sometimes(line: Line) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise scribe.StoreUnavailableError
        if calls == 2:
            raise DatabaseUnavailableError
        return await real(line)

    monkeypatch.setattr(Line, "pools", sometimes)
    generation = await begin(parts, eva)
    await answer(parts, eva, generation)
    task = asyncio.create_task(scribe.run_scribe(parts))

    async def written() -> bool:
        return (await turn_of(parts, generation)).status == "done"

    await until(written)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert calls > 2


async def test_turns_the_store_does_not_know_are_ended(parts: Parts, eva: Caller):
    lost, young, waiting = [await begin(parts, eva) for _ in range(3)]
    desk = NodeDesk(parts.store, POOL, parts.settings)
    await desk.register(NodeInfo("n", "boot", "n", "H200", "scripted", "label"), b"card")
    await parts.line.submit(POOL, eva.seat, Job(waiting, b"work", hold=True), tier="browser")
    async with parts.database.session() as session:
        old = now() - timedelta(seconds=scribe.LOST_SECONDS + 1)
        await session.execute(
            update(Turn).where(Turn.generation.in_([lost, waiting])).values(created_at=old)
        )
    missed = await scribe.sweep(parts, frozenset())
    # it may have been on its way into the line: one look is not enough
    assert (await turn_of(parts, lost)).status == "open"
    assert await scribe.sweep(parts, missed) == frozenset()
    assert [(await turn_of(parts, one)).status for one in (lost, young, waiting)] == [
        "failed", "open", "open",
    ]  # fmt: skip
    assert (await turn_of(parts, lost)).error_code == "turn_lost"
