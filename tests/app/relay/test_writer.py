from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.errors import FencedError, StoreUnavailableError
from app.relay import writer as writer_module
from app.relay.reader import RelayReader
from app.relay.types import Entry
from app.relay.writer import (
    ORPHAN_SECONDS,
    AnswerTooLargeError,
    EntriesLostError,
    RelayWriter,
)
from app.store.client import Store
from app.store.keys import ended_stream, generation_bell, generation_hash, generation_stream
from tests.app.relay.generations import DONE, POOL, delta, put_generation


@pytest.fixture
def writer(store: Store) -> RelayWriter:
    return RelayWriter(store, POOL)


async def texts(store: Store, generation: str = "g1") -> list[str]:
    entries = await RelayReader(store).read(POOL, generation)
    return [entry.data.get("text", entry.kind) for entry in entries]


async def test_appended_entries_are_read_in_order(store: Store, writer: RelayWriter) -> None:
    await put_generation(store)
    reading = {"done": 3, "total": 3, "cached": 0, "t_ms": 1.5}
    await writer.append("g1", 7, [("reading", reading), ("delta", delta("Grüße"))])
    await writer.append("g1", 7, [("delta", delta(" zurück"))])
    entries = await RelayReader(store).read(POOL, "g1")
    assert [(entry.kind, entry.data) for entry in entries] == [
        ("reading", reading),
        ("delta", delta("Grüße")),
        ("delta", delta(" zurück")),
    ]


@pytest.mark.parametrize("fence", [6, 8])
async def test_another_fence_writes_nothing(store: Store, writer: RelayWriter, fence: int) -> None:
    await put_generation(store)
    with pytest.raises(FencedError):
        await writer.append("g1", fence, [("delta", delta("intruder"))])
    with pytest.raises(FencedError):
        await writer.end("g1", fence, "done", DONE)
    assert await texts(store) == []
    assert await store.command("XLEN", ended_stream(POOL)) == 0


async def test_the_earlier_node_is_fenced_after_a_move(store: Store, writer: RelayWriter) -> None:
    await put_generation(store, fence=7)
    await writer.append("g1", 7, [("delta", delta("first"))])
    await put_generation(store, fence=8)
    with pytest.raises(FencedError):
        await writer.append("g1", 7, [("delta", delta("late"))])
    await RelayWriter(store, POOL).append("g1", 8, [("delta", delta("second"))])
    assert await texts(store) == ["first", "second"]


@pytest.mark.parametrize("state", ["queued", "ended"])
async def test_only_an_assigned_generation_takes_entries(
    store: Store, writer: RelayWriter, state: str
) -> None:
    await put_generation(store, state=state)
    with pytest.raises(FencedError):
        await writer.append("g1", 7, [("delta", delta("x"))])


async def test_an_unknown_generation_is_fenced(store: Store, writer: RelayWriter) -> None:
    with pytest.raises(FencedError):
        await writer.append("nowhere", 7, [("delta", delta("x"))])
    with pytest.raises(FencedError):
        await writer.end("nowhere", 7, "done", DONE)


async def test_an_append_tells_of_a_wish_to_stop(store: Store, writer: RelayWriter) -> None:
    await put_generation(store)
    assert (await writer.append("g1", 7, [("delta", delta("x"))])).cancel is None
    await store.command("HSET", generation_hash(POOL, "g1"), "cancel", "stopped")
    assert (await writer.append("g1", 7, [])).cancel == "stopped"
    assert await texts(store) == ["x"]


async def test_an_append_rings_the_generations_bell(store: Store, writer: RelayWriter) -> None:
    await put_generation(store)
    pubsub = store.raw.pubsub()
    async with pubsub:
        await pubsub.subscribe(generation_bell(POOL, "g1"))
        await pubsub.get_message(timeout=5)
        await writer.append("g1", 7, [("delta", delta("x"))])
        message = await pubsub.get_message(timeout=5)
    assert message
    assert message["data"] == b"delta"


async def test_the_last_entry_is_written_once(store: Store, writer: RelayWriter) -> None:
    await put_generation(store)
    await writer.append("g1", 7, [("delta", delta("x"))])
    await writer.end("g1", 7, "done", DONE)
    await writer.end("g1", 7, "failed", {"code": "late"})
    assert await texts(store) == ["x", "done"]
    assert await store.command("HGET", generation_hash(POOL, "g1"), "state") == b"ended"
    assert await store.command("XLEN", ended_stream(POOL)) == 1
    with pytest.raises(FencedError):
        await writer.append("g1", 7, [("delta", delta("after the end"))])


class LosesAnswers(Store):
    """A store whose answers get lost on the way back: what was asked has been done."""

    lose = False

    async def run(self, *args: object, **kwargs: object) -> object:
        reply = await super().run(*args, **kwargs)  # pyright: ignore[reportArgumentType] passed through
        if self.lose:
            raise StoreUnavailableError
        return reply


@pytest.fixture
async def lossy(valkey_url: str) -> AsyncIterator[LosesAnswers]:
    async with LosesAnswers.connect(valkey_url) as connected:
        yield connected


async def test_entries_sent_again_after_a_lost_answer_are_not_doubled(
    store: Store, lossy: LosesAnswers
) -> None:
    writer = RelayWriter(lossy, POOL)
    await put_generation(store)
    await writer.append("g1", 7, [("delta", delta("a"))])
    lossy.lose = True
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            await writer.append("g1", 7, [("delta", delta("b"))])
    lossy.lose = False
    more = [("delta", delta("b")), ("delta", delta("c"))]
    await writer.append("g1", 7, more)  # pyright: ignore[reportArgumentType] a list of pairs
    await writer.append("g1", 7, [("delta", delta("d"))])
    assert await texts(store) == ["a", "b", "c", "d"]


async def test_the_next_fences_count_starts_anew(store: Store, writer: RelayWriter) -> None:
    await put_generation(store, fence=7)
    for text in "ab":
        await writer.append("g1", 7, [("delta", delta(text))])
    await put_generation(store, fence=8)
    await writer.append("g1", 8, [("delta", delta("c"))])
    assert await texts(store) == ["a", "b", "c"]


async def test_an_entry_beyond_the_bound_is_refused(store: Store, writer: RelayWriter) -> None:
    await put_generation(store)
    huge = delta("x" * (writer_module.MAX_ENTRY_BYTES + 1))
    with pytest.raises(AnswerTooLargeError):
        await writer.append("g1", 7, [("delta", huge)])
    assert await texts(store) == []


@pytest.mark.parametrize(("bound", "most"), [("MAX_STREAM_BYTES", 500), ("MAX_STREAM_ENTRIES", 5)])
async def test_a_runaway_stream_is_bounded_and_still_ends(
    store: Store, writer: RelayWriter, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(writer_module, bound, most)
    await put_generation(store)

    async def run_away() -> None:
        for _ in range(10):
            await writer.append("g1", 7, [("delta", delta("y" * 40))])

    with pytest.raises(AnswerTooLargeError):
        await run_away()
    before = await texts(store)
    assert 1 <= len(before) <= 5
    await writer.end("g1", 7, "failed", {"code": "answer_too_large"})
    assert await texts(store) == [*before, "failed"]


async def test_an_orphaned_stream_expires(store: Store, writer: RelayWriter) -> None:
    await put_generation(store)
    await writer.append("g1", 7, [("delta", delta("x"))])
    left = await store.command("TTL", generation_stream(POOL, "g1"))
    assert 0 < left <= ORPHAN_SECONDS


def test_an_entry_knows_whether_it_is_last_and_when_it_came() -> None:
    assert Entry("1700000000123-4", "done", {}).is_last
    assert not Entry("1-0", "delta", {}).is_last
    assert Entry("1700000000123-4", "delta", {}).store_ms == 1_700_000_000_123


async def test_text_held_back_stands_right_before_the_end_and_once(
    store: Store, writer: RelayWriter
) -> None:
    await put_generation(store)
    await writer.append("g1", 7, [("delta", delta("shown"))])
    for _ in range(2):
        await writer.end("g1", 7, "done", DONE, held=delta(" held", n=0))
    assert await texts(store) == ["shown", " held", "done"]


async def test_a_fenced_end_leaves_no_text_behind(store: Store, writer: RelayWriter) -> None:
    await put_generation(store, fence=8)
    with pytest.raises(FencedError):
        await writer.end("g1", 7, "done", DONE, held=delta("late"))
    assert await texts(store) == []


async def test_entries_that_the_store_lost_are_noticed_before_a_gap_is_written(
    store: Store, writer: RelayWriter
) -> None:
    await put_generation(store)
    await writer.append("g1", 7, [("delta", delta("kept"))])
    key, stream = generation_hash(POOL, "g1"), generation_stream(POOL, "g1")
    kept = await store.command("HGETALL", key)
    await writer.append("g1", 7, [("delta", delta("lost"))])
    # as a restart with an append-only file that is a second behind
    flat = [part for pair in kept.items() for part in pair]
    last = (await store.command("XREVRANGE", stream, "+", "-", "COUNT", 1))[0][0]
    await store.command("XDEL", stream, last)
    await store.command("HSET", key, *flat)
    with pytest.raises(EntriesLostError):
        await writer.append("g1", 7, [("delta", delta("after"))])
    with pytest.raises(EntriesLostError):
        await writer.end("g1", 7, "done", DONE)
    assert await texts(store) == ["kept"]
