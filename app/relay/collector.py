"""Ended generations on their way to SQL: each is taken by one web replica.

A consumer group over the pool's `ended` stream hands every entry to one replica; what a replica
took and did not finish (it died, or SQL was away) is handed out again after a while. So a record
may come twice: whoever writes it to SQL does so by generation id.
"""

from __future__ import annotations

from typing import cast

from app.relay.reader import BEGINNING, parse_entry
from app.relay.types import Entry, Record
from app.store.client import Store
from app.store.keys import generation_hash, generation_stream, pool_prefix
from app.store.scripts import load_script

_PRELUDES = (("app.store", "generation"),)
_TAKE = load_script("app.relay", "take", preludes=_PRELUDES)
_TAKEN = load_script("app.relay", "taken", preludes=_PRELUDES)

GROUP = "sql"
# Writing one record takes milliseconds; whoever has not done so by then is dead or cut off.
TAKE_OVER_MS = 30_000
# A living replica takes about once a second.
FORGET_CONSUMER_MS = 3_600_000
PAGE = 1000
# Entries whose records could not be written yet; beyond this the oldest are simply taken again.
MOST_HELD = 10_000

_LOST = {
    "code": "answer_lost",
    "message": "The end of this answer was lost in a failure. Ask again.",
    "retry": True,
}


class Collector:
    """One web replica's hand in the `ended` streams. `consumer` is unique to the process."""

    def __init__(self, store: Store, consumer: str) -> None:
        self._store = store
        self._consumer = consumer
        self._held: dict[tuple[str, str], list[bytes]] = {}

    async def take(self, pool: str, *, count: int = 64) -> list[str]:
        """Ended generations that this replica must now record and finish by `done`.

        Never waits; returns at most twice `count`. Raises StoreUnavailableError.
        """
        flat = cast(
            list[bytes],
            await self._store.run(
                _TAKE,
                [pool_prefix(pool)],
                [GROUP, self._consumer, count, TAKE_OVER_MS, FORGET_CONSUMER_MS],
            ),
        )
        generations: list[str] = []
        for position, name in zip(flat[::2], flat[1::2], strict=True):
            generation = name.decode()
            held = self._held.setdefault((pool, generation), [])
            if position not in held:
                held.append(position)
            if generation not in generations:
                generations.append(generation)
        while len(self._held) > MOST_HELD:
            del self._held[next(iter(self._held))]
        return generations

    async def record(self, pool: str, generation: str) -> Record | None:
        """All that is left of an ended generation; None when the store no longer knows it.

        Raises StoreUnavailableError.
        """
        seat, node, queued_at, ended_at = cast(
            list[bytes | None],
            await self._store.command(
                "HMGET", generation_hash(pool, generation), "seat", "node", "queued_at", "ended_at"
            ),
        )
        if seat is None or ended_at is None:
            return None
        pieces: dict[str, list[str]] = {"text": [], "reasoning": [], "tool_call": []}
        last = Entry(BEGINNING, "failed", _LOST)
        tokens, moved = 0, None
        start = "-"
        while page := await self._page(pool, generation, start):
            for entry in page:
                if entry.kind == "delta":
                    data = entry.data
                    for channel, text in ((data["channel"], data["text"]), *data.get("tail", ())):
                        pieces[channel].append(text)
                    tokens += entry.data["n"]
                elif "exact" in entry.data:
                    # only a node that continues says so
                    moved = (tokens, bool(entry.data["exact"]))
                elif entry.is_last:
                    last = entry
            start = f"({page[-1].id}"
        return Record(
            generation=generation,
            seat=seat.decode(),
            node=node.decode() if node else None,
            queued_at_ms=int(queued_at or ended_at),
            ended_at_ms=int(ended_at),
            text="".join(pieces["text"]),
            reasoning="".join(pieces["reasoning"]),
            last=last,
            moved=moved,
        )

    async def _page(self, pool: str, generation: str, start: str) -> list[Entry]:
        stream = generation_stream(pool, generation)
        rows = await self._store.command("XRANGE", stream, start, "+", "COUNT", PAGE)
        return [parse_entry(row) for row in rows]

    async def done(self, pool: str, generation: str, *, keep_seconds: float) -> None:
        """The record is in SQL (or there is none): never hand it out again.

        The question leaves the store now, the answer after `keep_seconds`. Raises
        StoreUnavailableError; the generation is then handed out once more.
        """
        positions = self._held.get((pool, generation), [])
        await self._store.run(
            _TAKEN,
            [pool_prefix(pool)],
            [GROUP, generation, int(keep_seconds * 1000), *positions],
        )
        self._held.pop((pool, generation), None)
