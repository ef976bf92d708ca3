"""Nodes that lose touch, lose their fence, or come back: nothing of theirs gets into an answer."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.errors import StoreUnavailableError
from app.node import heart
from app.node.kinds import scripted_model
from app.node.kinds.scripted import Script, ScriptedKind
from app.relay.writer import RelayWriter
from app.store.client import Arg, Reply, Store
from app.store.keys import pool_prefix
from app.store.scripts import Script as StoreScript
from app.work import Work
from engine.types import Event, Finished
from tests.app.node.desk import POOL, Place, tokens_of, work
from tests.app.store.servers import OwnServer
from tests.waiting import until

FAST = Script(tokens_per_second=5000, prefill_ms_per_token=0)
SLOW = Script(
    tokens_per_second=100, tokens_per_step=1, prefill_ms_per_token=0, answer_tokens=10_000
)


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    folder = Path(tempfile.mkdtemp(prefix="bo-"))
    server = OwnServer(folder)
    server.start()
    yield server
    server.kill()
    shutil.rmtree(folder)


@pytest.fixture
async def own_store(own_server: OwnServer) -> AsyncIterator[Store]:
    async with Store.connect(own_server.url) as connected:
        yield connected


class Watched(ScriptedKind):
    """Remembers how its generations ended."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.running = 0
        self.reasons: list[str] = []

    async def generate(self, work: Work, cancel: threading.Event) -> AsyncGenerator[Event, None]:
        self.running += 1
        try:
            async for event in super().generate(work, cancel):
                if isinstance(event, Finished):
                    self.reasons.append(event.finish_reason)
                yield event
        finally:
            self.running -= 1


async def test_a_node_that_lost_its_fence_stops_and_writes_nothing_more(store: Store):
    place = Place.on(store, heartbeat_seconds=60, node_stop_seconds=80, node_dead_seconds=100)
    kind = Watched(SLOW)
    async with place.node(kind):
        generation = await place.ask(work(max_tokens=5000))
        await place.writing(generation)
        # as if the line had given the question to another node
        await store.command(
            "HSET", f"{pool_prefix(POOL)}g:{generation}", "fence", "9999999999999999"
        )
        await until(lambda: kind.reasons, what="engine stopped")
        assert kind.reasons == ["cancelled"]
        written = tokens_of(await place.entries(generation))
        # it serves on
        again = await place.ended(await place.ask(work(max_tokens=5), seat="u:2"))
        assert again[-1].kind == "done"
        assert tokens_of(await place.entries(generation)) == written
        assert len(written) < 5000


async def test_a_question_under_an_old_fence_is_asked_again_under_a_new_one(store: Store):
    place = Place.on(store, heartbeat_seconds=60, node_stop_seconds=80, node_dead_seconds=100)
    async with place.node(FAST):
        await place.ended(await place.ask(work(max_tokens=5)))
        # as after a fail-over to a store that lost the last grant, on a machine whose clock is slow
        await store.command("SET", pool_prefix(POOL) + "fence", 1)
        await store.command("SET", pool_prefix(POOL) + "clock", -600_000)
        generation = await place.ask(work(max_tokens=5), seat="u:2")
        entries = await place.ended(generation)
    assert entries[-1].kind == "done"
    assert len(tokens_of(entries)) == 5


async def test_a_node_that_hears_of_other_work_stops_what_it_runs(store: Store):
    place = Place.on(store, heartbeat_seconds=0.05)
    # it writes nothing more, so no append can tell it
    kind = Watched(Script(stall_at=3, prefill_ms_per_token=0))
    async with place.node(kind, "n1"):
        generation = await place.ask(work(max_tokens=5000))
        await place.writing(generation)
        await store.command("HSET", f"{pool_prefix(POOL)}n:n1", "generation", "")
        await until(lambda: kind.reasons == ["cancelled"], what="engine stopped")
        assert not any(entry.is_last for entry in await place.entries(generation))


async def test_a_node_that_the_line_forgot_stops_and_registers_again(store: Store):
    place = Place.on(store, heartbeat_seconds=0.05, node_stop_seconds=60, node_dead_seconds=100)
    # it writes nothing more, so no append can tell it
    kind = Watched(Script(stall_at=3, prefill_ms_per_token=0))
    async with place.node(kind):
        generation = await place.ask(work(max_tokens=5000))
        await place.writing(generation)
        await store.command("FLUSHALL")
        await until(lambda: kind.reasons, what="engine stopped")
        await until(place.has_nodes, what="registered again")
        entries = await place.ended(await place.ask(work(max_tokens=2), seat="u:2"))
    assert entries[-1].kind == "done"
    assert kind.reasons[0] == "cancelled"


async def test_a_node_cut_off_from_the_store_stops_itself_and_goes_on_later(
    own_server: OwnServer, own_store: Store
):
    place = Place.on(own_store, node_stop_seconds=0.5, heartbeat_seconds=0.1)
    kind = Watched(SLOW)
    async with place.node(kind):
        generation = await place.ask(work(max_tokens=150))
        await place.writing(generation)
        own_server.freeze()
        try:
            await until(lambda: kind.reasons, what="engine stopped")
            assert kind.running == 0
        finally:
            own_server.thaw()
        entries = await place.ended(generation, within_seconds=30)
    assert kind.reasons == ["cancelled", "length"]
    assert entries[-1].kind == "done"
    # everything that the engine made arrived, once and in order, and the rest followed
    assert tokens_of(entries) == list(scripted_model.answer_ids((1, 2, 3), None, 5000))[:150]
    assert 0 < entries[-1].data["usage"]["resumed_tokens"] < 150


async def test_a_short_outage_costs_no_token(own_server: OwnServer, own_store: Store):
    place = Place.on(own_store, node_stop_seconds=30, node_dead_seconds=60, heartbeat_seconds=0.1)
    kind = Watched(SLOW)
    async with place.node(kind):
        generation = await place.ask(work(max_tokens=150))
        await place.writing(generation)
        own_server.freeze()
        await asyncio.to_thread(threading.Event().wait, 0.3)
        own_server.thaw()
        entries = await place.ended(generation, within_seconds=30)
    assert entries[-1].kind == "done"
    assert tokens_of(entries) == list(scripted_model.answer_ids((1, 2, 3), None, 5000))[:150]


class Lossy(Store):
    """Of three calls the first does not arrive, and of the second the reply is lost."""

    calls = 0

    async def run(
        self, script: StoreScript, keys: Sequence[str], args: Sequence[Arg] = ()
    ) -> Reply:
        self.calls += 1
        turn = self.calls % 3
        if turn == 1:
            raise StoreUnavailableError
        reply = await super().run(script, keys, args)
        if turn == 2:
            raise StoreUnavailableError
        return reply


async def test_what_the_store_does_not_confirm_is_repeated_without_a_double_token(
    store: Store, valkey_url: str
):
    place = Place.on(store)
    async with (
        Lossy.connect(valkey_url) as lossy,
        place.node(FAST, writer=RelayWriter(lossy, POOL)),
    ):
        entries = await place.ended(await place.ask(work(max_tokens=300)))
        assert isinstance(lossy, Lossy)
        assert lossy.calls > 3
    assert entries[-1].kind == "done"
    assert tokens_of(entries) == list(scripted_model.answer_ids((1, 2, 3), None, 600))[:300]


async def test_a_node_waits_for_a_store_that_comes_later(own_server: OwnServer, own_store: Store):
    own_server.kill()
    place = Place.on(own_store)

    async def serve_one() -> str:
        async with place.node(FAST):
            return (await place.ended(await place.ask(work())))[-1].kind

    with capture_logs() as logs:
        serving = asyncio.create_task(serve_one())
        await until(lambda: logs, what="the node notices")
        own_server.start()
        assert await serving == "done"
    complaints = [line for line in logs if line["log_level"] == "warning"]
    assert len(complaints) == 1
    assert "out of reach" in complaints[0]["event"]


async def test_a_newcomer_with_a_name_that_is_taken_gives_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(heart, "SETTLED_REPORTS", 8)
    place = Place.on(store, heartbeat_seconds=0.02)
    deadlines: set[bytes] = set()

    async def is_settled() -> bool:
        # every report moves the deadline
        deadlines.add(await store.command("ZSCORE", f"{pool_prefix(POOL)}nodes", "twin"))
        return len(deadlines) > 10

    async with place.node(FAST, "twin"):
        await until(is_settled, what="the old one is no newcomer")
        newcomer = await place.agent(ScriptedKind(FAST), "twin")
        with pytest.RaisesGroup(pytest.RaisesExc(heart.NameTakenError, match="--name")):
            async with asyncio.timeout(60):
                await newcomer.run()
        await until(place.has_nodes, what="the old one is back")
        assert (await place.ended(await place.ask(work())))[-1].kind == "done"


async def test_a_node_that_the_store_forgets_again_and_again_comes_back_each_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(heart, "SETTLED_REPORTS", 10_000)
    place = Place.on(store, heartbeat_seconds=0.02)
    async with place.node(FAST):
        for _ in range(heart.MOST_REPLACED + 3):
            await store.command("FLUSHALL")
            await until(place.has_nodes, what="registered again")
        assert (await place.ended(await place.ask(work())))[-1].kind == "done"


async def test_a_process_whose_engine_does_not_stop_ends(store: Store):
    class Deaf(ScriptedKind):
        async def generate(
            self, work: Work, cancel: threading.Event
        ) -> AsyncGenerator[Event, None]:
            async for event in super().generate(work, threading.Event()):
                yield event

    place = Place.on(store, heartbeat_seconds=0.02, node_stop_seconds=0.05, node_dead_seconds=0.1)
    died = asyncio.Event()
    async with place.node(Deaf(SLOW), die=died.set):
        generation = await place.ask(work(max_tokens=300))
        await place.writing(generation)
        await place.line.cancel(POOL, generation, "stopped")
        async with asyncio.timeout(10):
            await died.wait()
