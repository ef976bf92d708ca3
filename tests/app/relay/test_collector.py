from __future__ import annotations

import pytest

from app.relay import collector as collector_module
from app.relay.collector import GROUP, Collector
from app.relay.reader import RelayReader
from app.relay.writer import RelayWriter
from app.store.client import Store
from app.store.keys import ended_stream, generation_hash, generation_stream
from tests.app.relay.generations import DONE, POOL, delta, put_generation
from tests.waiting import until


@pytest.fixture
def collector(store: Store) -> Collector:
    return Collector(store, "a")


async def answer(store: Store, generation: str = "g1") -> None:
    await put_generation(store, generation)
    writer = RelayWriter(store, POOL)
    await writer.append(
        generation,
        7,
        [
            ("delta", delta("Hm, ", channel="reasoning")),
            ("delta", delta("Yes", channel="text")),
            ("delta", delta("well", channel="reasoning")),
            ("delta", delta("!", channel="text")),
        ],
    )
    await writer.end(generation, 7, "done", DONE)


async def test_the_record_joins_text_and_reasoning(store: Store, collector: Collector) -> None:
    await answer(store)
    assert await collector.take(POOL) == ["g1"]
    record = await collector.record(POOL, "g1")
    assert record is not None
    assert (record.text, record.reasoning) == ("Yes!", "Hm, well")
    assert (record.seat, record.node, record.queued_at_ms) == ("u:1", "n1", 1_000)
    assert record.ended_at_ms > record.queued_at_ms
    assert (record.last.kind, record.last.data) == ("done", DONE)
    assert record.moved is None


async def test_the_record_knows_where_the_answer_moved(store: Store, collector: Collector) -> None:
    await put_generation(store)
    writer = RelayWriter(store, POOL)
    reading = {"done": 9, "total": 9, "cached": 0, "t_ms": 1.0}
    await writer.append("g1", 7, [("reading", reading), ("delta", delta("Yes", n=3))])
    # a fail-over sets a new fence, and the next node says how it goes on
    await put_generation(store, fence=8)
    again = RelayWriter(store, POOL)
    await again.append("g1", 8, [("reading", {**reading, "exact": False}), ("delta", delta("!"))])
    await again.end("g1", 8, "done", DONE)
    record = await collector.record(POOL, "g1")
    assert record is not None
    assert record.moved == (3, False)


async def test_a_long_answer_is_joined_over_pages(
    store: Store, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "PAGE", 2)
    await answer(store)
    record = await collector.record(POOL, "g1")
    assert record is not None
    assert (record.text, record.last.kind) == ("Yes!", "done")


async def test_nothing_ended_is_nothing_to_take(collector: Collector) -> None:
    assert await collector.take(POOL) == []
    assert await collector.record(POOL, "nowhere") is None


async def test_each_generation_goes_to_one_replica(store: Store, collector: Collector) -> None:
    for i in range(6):
        await answer(store, f"g{i}")
    other = Collector(store, "b")
    mine, theirs = await collector.take(POOL, count=3), await other.take(POOL)
    assert sorted(mine + theirs) == [f"g{i}" for i in range(6)]
    assert len(mine) == 3
    assert await collector.take(POOL) == []


async def test_done_forgets_the_question_and_keeps_the_answer_a_while(
    store: Store, collector: Collector
) -> None:
    await answer(store)
    await collector.take(POOL)
    await collector.done(POOL, "g1", keep_seconds=600)
    assert await store.command("HEXISTS", generation_hash(POOL, "g1"), "payload") == 0
    for key in (generation_hash(POOL, "g1"), generation_stream(POOL, "g1")):
        assert 0 < await store.command("PTTL", key) <= 600_000
    assert len(await RelayReader(store).read(POOL, "g1")) == 5
    assert await store.command("XLEN", ended_stream(POOL)) == 0
    pending = await store.command("XPENDING", ended_stream(POOL), GROUP)
    assert pending["pending"] == 0


async def test_a_dead_replicas_generations_are_taken_over(
    store: Store, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    await answer(store)
    assert await Collector(store, "dead").take(POOL) == ["g1"]
    assert await collector.take(POOL) == []
    monkeypatch.setattr(collector_module, "TAKE_OVER_MS", 0)
    assert await collector.take(POOL) == ["g1"]
    await collector.done(POOL, "g1", keep_seconds=600)
    assert await store.command("XLEN", ended_stream(POOL)) == 0


async def test_what_was_not_finished_comes_again(
    store: Store, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    await answer(store)
    monkeypatch.setattr(collector_module, "TAKE_OVER_MS", 0)
    assert await collector.take(POOL) == ["g1"]
    assert await collector.take(POOL) == ["g1"]


async def test_the_group_is_made_again_after_a_flush(store: Store, collector: Collector) -> None:
    await answer(store)
    await collector.take(POOL)
    await store.command("FLUSHALL")
    assert await collector.record(POOL, "g1") is None
    await collector.done(POOL, "g1", keep_seconds=600)
    await answer(store, "g2")
    assert await collector.take(POOL) == ["g2"]


async def test_what_ended_before_the_first_replica_is_taken(store: Store) -> None:
    await answer(store)
    assert await Collector(store, "late").take(POOL) == ["g1"]


async def test_a_lost_end_still_ends_the_turn(store: Store, collector: Collector) -> None:
    await answer(store)
    await store.command("XTRIM", generation_stream(POOL, "g1"), "MAXLEN", 0)
    record = await collector.record(POOL, "g1")
    assert record is not None
    assert record.last.kind == "failed"
    assert record.last.data["code"] == "answer_lost"


async def test_silent_consumers_are_forgotten_unless_they_hold_something(
    store: Store, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Collector(store, "gone").take(POOL)
    await answer(store)
    await Collector(store, "holding").take(POOL)
    monkeypatch.setattr(collector_module, "FORGET_CONSUMER_MS", 0)

    async def names() -> set[bytes]:
        await collector.take(POOL)
        rows = await store.command("XINFO", "CONSUMERS", ended_stream(POOL), GROUP)
        return {row[b"name"] if isinstance(row, dict) else row[1] for row in rows}

    async def only_the_living() -> bool:
        return await names() == {b"a", b"holding"}

    await until(only_the_living, what="the idle consumer is forgotten")
