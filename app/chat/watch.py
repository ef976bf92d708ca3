"""Watching one turn: the line's places and the node's stream become one sequence of events.

A watcher owns nothing: any replica may watch, any number may, and each may come and go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import cast

import structlog
from redis.exceptions import RedisError

from app.accounts.models import Turn
from app.chat import history
from app.chat.events import Delta, Failed, done_from
from app.chat.story import START, Story, Told
from app.errors import AppError, GenerationNotFoundError, StoreUnavailableError
from app.line.board import Watched
from app.parts import Parts
from app.relay.types import Entry
from app.store.keys import generation_bell
from app.store.wake import Wake

log = structlog.get_logger(__name__)

PAGE = 500
# The bell may miss a message, so streams are also read without it. Not while a question waits: the
# board looks at all places, and says when one changes or the store is away.
POLL_SECONDS = 1.0
OUTAGE_SECONDS = 60.0
RETRY_SECONDS = 0.5
# between a turn's row in SQL and its question in the line
ARRIVAL_SECONDS = 10.0


@asynccontextmanager
async def watching(
    parts: Parts, pool: str, generation: str, after: str = START
) -> AsyncGenerator[AsyncGenerator[Told]]:
    """Hold the registrations of a watcher for the length of the block; yields its events.

    `after` is the stream position of the last event that the reader has.
    """
    wake = Wake()
    rung = _Rung(wake)
    async with (
        parts.bell.listen(generation_bell(pool, generation), rung),
        parts.board.watch(pool, generation, wake) as watched,
        aclosing(_Watch(parts, pool, generation, after, rung, watched).events()) as events,
    ):
        yield events


async def watch(
    parts: Parts, pool: str, generation: str, after: str = START
) -> AsyncGenerator[Told]:
    """The events of a turn as (stream position or None, event); the last is a Done or Failed.

    Iterate it inside `aclosing`, or hold `watching` yourself: an abandoned generator keeps its
    registrations until it is collected.
    """
    async with watching(parts, pool, generation, after) as events:
        async for told in events:
            yield told


class _Rung(Wake):
    """Set by the generation's bell; wakes the watcher, as a changed place does too.

    Only the bell means that there is something to read: a place that changes while thousands wait
    must not send them all to the store.
    """

    __slots__ = ("wake",)

    def __init__(self, wake: Wake) -> None:
        super().__init__()
        self.wake = wake

    def set(self) -> None:
        super().set()
        self.wake.set()


class StoreClock:
    """The store's time, asked once and carried on by this machine's monotonic clock."""

    __slots__ = ("_offset_ms",)

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    async def read(self, parts: Parts) -> None:
        """Raises StoreUnavailableError."""
        if self._offset_ms is not None:
            return
        before_s = time.monotonic()
        seconds, microseconds = await parts.store.command("TIME")
        middle_s = (before_s + time.monotonic()) / 2
        self._offset_ms = int(seconds) * 1000 + int(microseconds) / 1000 - middle_s * 1000

    def now_ms(self) -> float:
        if self._offset_ms is None:
            # until the store was reached; close enough to tell an outage by
            return time.time() * 1000
        return time.monotonic() * 1000 + self._offset_ms


class _Watch:
    __slots__ = (
        "_after", "_began_s", "_clock", "_generation", "_more", "_outage_since_s", "_parts", "_pool",
        "_read_at_s", "_rung", "_story", "_wake", "_watched",
    )  # fmt: skip

    def __init__(
        self,
        parts: Parts,
        pool: str,
        generation: str,
        after: str,
        rung: _Rung,
        watched: Watched,
    ) -> None:
        self._parts = parts
        self._pool = pool
        self._generation = generation
        self._after = after
        self._rung = rung
        self._wake = rung.wake
        self._watched = watched
        self._story = Story(pool, after)
        self._clock = StoreClock()
        self._read_at_s = 0.0
        self._more = True
        self._began_s = time.monotonic()
        self._outage_since_s: float | None = None

    async def events(self) -> AsyncGenerator[Told]:
        """Whatever happens, exactly one last event ends it."""
        try:
            while not self._story.over:
                for told in await self._round():
                    yield told
                if not self._story.over and not self._more:
                    await self._pause()
        except AppError as error:
            yield None, failed_by(error)

    async def _round(self) -> list[Told]:
        """Look once, and say what is new."""
        story = self._story
        told: list[Told] = []
        try:
            told += story.take(await self._read())
            self._outage_since_s = None
            story.trouble(None)
        except (StoreUnavailableError, RedisError) as error:
            # RedisError: it answers, but is still loading, or no longer a primary
            self._more = False
            since_s = self._outage_since_s = self._outage_since_s or time.monotonic()
            if time.monotonic() - since_s > OUTAGE_SECONDS:
                raise StoreUnavailableError from error
            story.trouble(StoreUnavailableError.message)
        except GenerationNotFoundError:
            self._more = False
            told += await self._from_sql()
        if not story.over and not self._more:
            story.see(self._watched.place)
            told += [(None, event) for event in story.due(self._clock.now_ms())]
        return told

    async def _read(self) -> list[Entry]:
        """The next entries, if the bell rang, more are known to be there, or it is time to look."""
        self._wake.clear()
        asks = self._rung.is_set() or self._more
        if not asks and self._only_waits():
            if self._watched.is_away:
                raise StoreUnavailableError
            return []
        if not asks and time.monotonic() - self._read_at_s < POLL_SECONDS:
            return []
        self._rung.clear()
        self._read_at_s = time.monotonic()
        await self._clock.read(self._parts)
        entries = await self._parts.reader.read(
            self._pool, self._generation, self._story.read_to, count=PAGE
        )
        self._more = len(entries) == PAGE
        return entries

    def _only_waits(self) -> bool:
        """Whether the board knows all there is to know."""
        return self._watched.place is not None and self._story.waits

    async def _pause(self) -> None:
        limit_s = self._story.next_in(self._clock.now_ms()) / 1000
        if not self._only_waits():
            limit_s = min(limit_s, POLL_SECONDS if self._outage_since_s is None else RETRY_SECONDS)
        woken = await self._wake.wait_within(limit_s)
        if woken and self._outage_since_s is not None:
            # the bell also rings when it is connected again; the store may need a moment more
            await asyncio.sleep(RETRY_SECONDS)

    async def _from_sql(self) -> list[Told]:
        """The store knows nothing of this turn. SQL may know its end; else it is lost, or not yet
        in line."""
        turn = await history.turn_by_id(self._parts.database, self._generation)
        if turn is None:
            raise GenerationNotFoundError
        if turn.status == "open":
            # the row was there when this watcher began; whoever wrote it may have another clock
            if time.monotonic() - self._began_s < ARRIVAL_SECONDS:
                return []
            log.warning("turn lost by the store", generation=self._generation)
            await history.lose(self._parts.database, self._generation)
            self._story.over = True
            return [(None, Failed(history.LOST_CODE, history.LOST_MESSAGE, retry=True))]
        if self._after != START or self._story.began:
            # what this reader has is a part of unknown length
            raise GenerationNotFoundError
        self._story.over = True
        return told_by(turn)


def told_by(turn: Turn) -> list[Told]:
    """An ended turn as SQL has it: its whole text and its last event."""
    told: list[Told] = []
    figures = turn.figures or {}
    usage = cast("dict[str, int]", figures.get("usage") or {})
    timing = cast("dict[str, float]", figures.get("timing") or {})
    reasoning_tokens = usage.get("reasoning_tokens", 0)
    text_tokens = usage.get("completion_tokens", 0) - reasoning_tokens
    if turn.reasoning:
        told.append((None, Delta(turn.reasoning, "reasoning", reasoning_tokens, 0.0)))
    if turn.answer:
        told.append((None, Delta(turn.answer, "text", text_tokens, timing.get("decode_ms", 0.0))))
    if turn.status == "done":
        ended = {"finish_reason": turn.finish_reason, "stop_reason": turn.stop_reason}
        told.append((None, done_from(figures | ended)))
    else:
        code, message = turn.error_code or AppError.code, turn.error_message or AppError.message
        told.append((None, Failed(code, message, retry=True)))
    return told


def failed_by(error: AppError) -> Failed:
    """A fault as a turn's last event."""
    return Failed(error.code, error.message, retry=error.status >= 500 or error.status == 429)
