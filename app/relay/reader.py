"""The web side of a generation's stream: read on from a position."""

from __future__ import annotations

from typing import Any, cast

import orjson

from app.errors import GenerationNotFoundError, InvalidRequestError
from app.relay.types import Entry, EntryKind
from app.store.client import Reply, Store
from app.store.keys import generation_hash, generation_stream

BEGINNING = "0-0"
_MAX_HALF = 2**64 - 1


class PositionLostError(GenerationNotFoundError):
    """The entry that a reader stands on is no longer in the stream: reading on would skip."""

    code = "position_lost"
    message = "A part of this answer is no longer in memory. Reload the conversation."


class RelayReader:
    """Reads the streams of all pools."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(
        self, pool: str, generation: str, after: str = BEGINNING, *, count: int = 500
    ) -> list[Entry]:
        """The next entries (at most `count`) after the position `after`; empty when up to date.

        Raises GenerationNotFoundError when the generation is unknown or forgotten,
        PositionLostError when `after` is no entry of its stream, InvalidRequestError when
        `after` is no position at all, StoreUnavailableError.
        """
        start = _checked(after)
        stream = generation_stream(pool, generation)
        if start == BEGINNING:
            rows = await self._store.command("XRANGE", stream, "-", "+", "COUNT", count)
            entries = [parse_entry(row) for row in rows]
        else:
            # the entry at `after` itself comes too: its presence proves that nothing is skipped
            rows = await self._store.command("XRANGE", stream, start, "+", "COUNT", count + 1)
            entries = [parse_entry(row) for row in rows]
            if entries and entries[0].id != start:
                raise PositionLostError
            if entries:
                return entries[1:]
        if not entries and not await self._store.command(
            "EXISTS", generation_hash(pool, generation)
        ):
            raise GenerationNotFoundError
        if not entries and start != BEGINNING:
            raise PositionLostError
        return entries


def parse_entry(row: Reply) -> Entry:
    """One row of XRANGE: its id and the fields k (kind) and d (JSON)."""
    position, fields = cast(tuple[bytes, dict[bytes, bytes]], row)
    kind = cast(EntryKind, fields[b"k"].decode())
    return Entry(position.decode(), kind, cast(dict[str, Any], orjson.loads(fields[b"d"])))


def _checked(position: str) -> str:
    """The position in the store's own spelling; it comes from a browser's header or query."""
    ms, dash, sequence = position.partition("-")
    halves = (ms, sequence)
    if dash and all(h.isascii() and h.isdigit() and len(h) <= 20 for h in halves):
        numbers = [int(h) for h in halves]
        if max(numbers) <= _MAX_HALF:
            return f"{numbers[0]}-{numbers[1]}"
    raise InvalidRequestError("This is not a position in an answer: reload the conversation.")
