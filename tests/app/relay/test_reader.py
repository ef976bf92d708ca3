from __future__ import annotations

import pytest

from app.errors import GenerationNotFoundError, InvalidRequestError
from app.relay.reader import PositionLostError, RelayReader
from app.relay.writer import RelayWriter
from app.store.client import Store
from app.store.keys import generation_hash, generation_stream
from tests.app.relay.generations import POOL, delta, put_generation


@pytest.fixture
def reader(store: Store) -> RelayReader:
    return RelayReader(store)


async def write(store: Store, count: int) -> None:
    await put_generation(store)
    entries = [("delta", delta(str(i))) for i in range(count)]
    await RelayWriter(store, POOL).append("g1", 7, entries)  # pyright: ignore[reportArgumentType] a list of pairs


async def test_pages_join_without_gap_or_double(store: Store, reader: RelayReader) -> None:
    await write(store, 25)
    seen: list[str] = []
    after = "0-0"
    while page := await reader.read(POOL, "g1", after, count=10):
        assert len(page) <= 10
        seen += [entry.data["text"] for entry in page]
        after = page[-1].id
    assert seen == [str(i) for i in range(25)]


async def test_a_queued_generation_has_no_entries_yet(store: Store, reader: RelayReader) -> None:
    await put_generation(store, state="queued")
    assert await reader.read(POOL, "g1") == []


async def test_up_to_date_is_empty(store: Store, reader: RelayReader) -> None:
    await write(store, 3)
    last = (await reader.read(POOL, "g1"))[-1]
    assert await reader.read(POOL, "g1", last.id) == []


@pytest.mark.parametrize("after", ["0-0", "5-1"])
async def test_unknown_and_forgotten_generations_are_not_found(
    reader: RelayReader, after: str
) -> None:
    with pytest.raises(GenerationNotFoundError) as caught:
        await reader.read(POOL, "nowhere", after)
    assert not isinstance(caught.value, PositionLostError)


async def test_a_stream_outlives_its_hash(store: Store, reader: RelayReader) -> None:
    await write(store, 2)
    await store.command("DEL", generation_hash(POOL, "g1"))
    first, second = await reader.read(POOL, "g1")
    assert await reader.read(POOL, "g1", first.id) == [second]


async def test_a_trimmed_position_is_an_error_not_a_gap(store: Store, reader: RelayReader) -> None:
    await write(store, 5)
    first = (await reader.read(POOL, "g1"))[0]
    await store.command("XTRIM", generation_stream(POOL, "g1"), "MAXLEN", 2)
    with pytest.raises(PositionLostError):
        await reader.read(POOL, "g1", first.id)


@pytest.mark.parametrize("after", ["1-0", "99999999999999-0"])
async def test_a_foreign_position_is_an_error(
    store: Store, reader: RelayReader, after: str
) -> None:
    await write(store, 2)
    with pytest.raises(PositionLostError):
        await reader.read(POOL, "g1", after)


async def test_a_position_without_its_stream_is_an_error(store: Store, reader: RelayReader) -> None:
    await put_generation(store)
    with pytest.raises(PositionLostError):
        await reader.read(POOL, "g1", "5-0")


@pytest.mark.parametrize(
    "after", ["", "5", "-", "a-b", "(5-0", "5-0 COUNT 1", "1-2-3", "²-0", "9" * 20 + "-0", "-1-0"]
)
async def test_what_is_no_position_is_refused(
    store: Store, reader: RelayReader, after: str
) -> None:
    await write(store, 1)
    with pytest.raises(InvalidRequestError):
        await reader.read(POOL, "g1", after)
