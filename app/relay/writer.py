"""The node's side of a generation's stream: fenced appends and the one last entry."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson

from app.errors import AppError, FencedError
from app.relay.reader import BEGINNING, RelayReader
from app.relay.types import Appended, Entry, EntryKind
from app.relay.written import Written
from app.store.client import Store
from app.store.keys import pool_prefix
from app.store.scripts import load_script

_PRELUDES = (("app.store", "generation"),)
APPEND = load_script("app.relay", "append", preludes=_PRELUDES)
END = load_script("app.relay", "end", preludes=_PRELUDES)

# A frame of 16 ms holds a few hundred bytes; an upstream that answers in one piece may bring a
# whole long answer. Anything above is a fault of the node.
MAX_ENTRY_BYTES = 1024 * 1024
# One answer: a context of 256k tokens at about 120 bytes a token, twice. Keeps a runaway node
# from filling the store, which everybody shares.
MAX_STREAM_BYTES = 64 * 1024 * 1024
MAX_STREAM_ENTRIES = 500_000
# Nobody resumes an answer after this; it also outlives a weekend without a web process, which
# has yet to carry the answer to SQL.
ORPHAN_SECONDS = 7 * 24 * 3600


class AnswerTooLargeError(AppError):
    """A stream reached its bound: the node must stop and end the generation."""

    code = "answer_too_large"
    message = "The answer grew beyond what can be kept, so it was stopped."


class EntriesLostError(AppError):
    """The store forgot entries that it had confirmed: what follows would leave a gap. The answer
    can be continued from what is there."""

    code = "entries_lost"
    message = "A part of this answer was lost by the store."


class RelayWriter:
    """Writes the streams of one pool.

    An append that raised StoreUnavailableError may or may not have arrived. Call again with the
    same entries first (more may follow them): those that had arrived are not written twice.
    """

    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self._pool = pool
        self._prefix = pool_prefix(pool)
        # tells this writer's count of entries from that of an earlier process
        self._name = secrets.token_hex(8)
        # entries that the store confirmed, by generation and fence
        self._confirmed: dict[tuple[str, int], int] = {}

    async def append(
        self, generation: str, fence: int, entries: Sequence[tuple[EntryKind, Mapping[str, Any]]]
    ) -> Appended:
        """Append entries (not the last one) in one step; say whether somebody asked to stop.

        With no entries it only looks. Raises FencedError when this node must stop at once,
        AnswerTooLargeError at the bounds above (nothing is written), EntriesLostError (nothing is
        written), StoreUnavailableError.
        """
        key = (generation, fence)
        confirmed = self._confirmed.get(key, 0)
        flat: list[str | bytes] = []
        for kind, data in entries:
            flat += (kind, _encode(data))
        verdict, cancel = await self._store.run(
            APPEND,
            [self._prefix],
            [
                generation, fence, f"{self._name}:{fence}", confirmed,
                MAX_STREAM_ENTRIES, MAX_STREAM_BYTES, ORPHAN_SECONDS, *flat,
            ],
        )  # fmt: skip
        if verdict == b"fenced":
            self._confirmed.pop(key, None)
            raise FencedError
        if verdict == b"full":
            raise AnswerTooLargeError
        if verdict == b"gap":
            raise EntriesLostError
        self._confirmed[key] = confirmed + len(entries)
        return Appended(cancel.decode() if cancel else None)

    async def end(
        self,
        generation: str,
        fence: int,
        kind: Literal["done", "failed"],
        data: Mapping[str, Any],
        *,
        held: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the last entry; a repeat with the same fence changes nothing.

        `held` is the data of a `delta` without tokens: text that waited for more and belongs to the
        answer after all. It goes in the same step, so that a stream which may be continued never
        shows it. Raises FencedError when the generation is another node's by now, or gone;
        EntriesLostError, StoreUnavailableError.
        """
        verdict = await self._store.run(
            END,
            [self._prefix],
            [
                generation, fence, kind, _encode(data), _encode(held) if held else b"",
                f"{self._name}:{fence}", self._confirmed.get((generation, fence), 0),
            ],
        )  # fmt: skip
        if verdict == b"gap":
            raise EntriesLostError
        self._confirmed.pop((generation, fence), None)
        if verdict == b"fenced":
            raise FencedError

    async def written(self, generation: str) -> Written:
        """What lies in the stream already. Raises GenerationNotFoundError when it is gone,
        StoreUnavailableError, KeyError for entries of a foreign version."""
        reader = RelayReader(self._store)
        entries: list[Entry] = []
        while page := await reader.read(
            self._pool, generation, entries[-1].id if entries else BEGINNING
        ):
            entries += page
        return Written.of(entries)


def _encode(data: Mapping[str, Any]) -> bytes:
    encoded = orjson.dumps(data)
    if len(encoded) > MAX_ENTRY_BYTES:
        raise AnswerTooLargeError
    return encoded
