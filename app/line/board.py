"""Where all watched questions stand, asked once per pool and round for the whole replica.

Up to a few hundred questions are looked up one by one each time. A crowd is looked up every few
seconds; in between its ranks are read off the lanes, and only who has left a lane is looked up.

Watching is also what keeps a seat's place: as long as somebody watches one of its questions, the
rounds renew its grace.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from redis.exceptions import RedisError

from app.errors import StoreUnavailableError
from app.line.line import Line
from app.line.types import Place
from app.store import keys
from app.store.bell import Bell

logger = logging.getLogger(__name__)

# Rounds follow the bell, but not faster than this, and come this often without it.
_LEAST_SECONDS = 0.05
_MOST_SECONDS = 2.0
# With many watchers a round takes long; then at most a fifth of the time is spent in rounds, and
# everybody still hears of a change within a second.
_REST_FACTOR = 4
_LONGEST_REST_SECONDS = 0.5
# Seats are kept by one round in so many seconds, far below every grace.
_KEEP_SECONDS = 1.0
_CROWD = 400
_KEEP_CROWD_SECONDS = 5.0
# After so many watchers others may use the event loop.
_BATCH = 500


@dataclass(eq=False, slots=True)
class Watched:
    """One watcher's view. Its wake event is set when `place` has changed."""

    generation: str
    _wake: asyncio.Event
    # None: not asked yet, or no longer known to the store
    place: Place | None = None

    def show(self, place: Place | None) -> None:
        if _shown(place) != _shown(self.place):
            self._wake.set()
        self.place = place


def _shown(place: Place | None) -> tuple[object, ...] | None:
    """What a watcher is woken for. Not for what time alone changes, nor for each step of a long
    line: thousands would be told with every departure that they are 4,711th instead of 4,712th."""
    if place is None:
        return None
    return (
        place.state,
        place.ticket,
        _coarse(place.rank or 0),
        _coarse(place.waiting),
        place.behind_own,
        place.node,
        place.slice_left_seconds is None,
        place.eta_seconds is None,
        place.ending,
        place.drained,
        place.returned,
        place.claim_left_seconds is None,
    )


def _coarse(number: int) -> int:
    """Exact up to 20, then steps of 5 %."""
    return number if number <= 20 else 20 + int(math.log(number / 20, 1.05))


@dataclass(eq=False, slots=True)
class _Room:
    """The watchers of one pool and the task that serves them."""

    watchers: dict[str, set[Watched]] = field(default_factory=dict[str, set[Watched]])
    due: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    # when a round last kept the seats, on the monotonic clock
    kept_at: float = -math.inf


class Board:
    """One per web replica: `async with Board(line, bell) as board`."""

    def __init__(self, line: Line, bell: Bell) -> None:
        self._line = line
        self._bell = bell
        self._rooms: dict[str, _Room] = {}
        # rooms that are closing; kept so that their tasks are not lost
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @asynccontextmanager
    async def watch(
        self, pool: str, generation: str, wake: asyncio.Event
    ) -> AsyncGenerator[Watched]:
        """Watch one question: sets `wake` on each change of its place, keeps its seat's place."""
        room = self._room(pool)
        watched = Watched(generation, wake)
        room.watchers.setdefault(generation, set()).add(watched)
        room.due.set()
        try:
            yield watched
        finally:
            same = room.watchers[generation]
            same.discard(watched)
            if not same:
                del room.watchers[generation]
            if not room.watchers:
                room.due.set()

    def _room(self, pool: str) -> _Room:
        room = self._rooms.get(pool)
        if room is None:
            room = self._rooms[pool] = _Room()
            room.task = asyncio.create_task(self._serve(pool, room), name=f"board {pool}")
            self._tasks.add(room.task)
            room.task.add_done_callback(self._closed)
        return room

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)

    async def _serve(self, pool: str, room: _Room) -> None:
        try:
            async with self._bell.listen(keys.line_bell(pool), room.due):
                while room.watchers:
                    await self._round(pool, room)
                self._close(pool, room)
        finally:
            self._close(pool, room)

    def _close(self, pool: str, room: _Room) -> None:
        """The next watcher of the pool opens a new room. No await between the look and this."""
        if self._rooms.get(pool) is room:
            del self._rooms[pool]

    async def _round(self, pool: str, room: _Room) -> None:
        room.due.clear()
        began = time.monotonic()
        try:
            places = await self._look_up(pool, room, began)
        except (StoreUnavailableError, RedisError) as error:
            logger.warning("the places of %s could not be read: %s", pool, error)
        else:
            await _show(room, places)
        busy_seconds = time.monotonic() - began
        rest_seconds = min(_REST_FACTOR * busy_seconds, _LONGEST_REST_SECONDS)
        await asyncio.sleep(max(_LEAST_SECONDS, rest_seconds))
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                await room.due.wait()
        except TimeoutError:
            pass  # nobody rang: a message may have been lost, and seats want to be kept

    async def _look_up(self, pool: str, room: _Room, now: float) -> dict[str, Place]:
        names = list(room.watchers)
        is_crowd = len(names) > _CROWD
        keeps = now - room.kept_at >= (_KEEP_CROWD_SECONDS if is_crowd else _KEEP_SECONDS)
        if keeps or not is_crowd:
            places = await self._line.places(pool, names, watched=keeps)
            room.kept_at = now if keeps else room.kept_at
            return places
        standings = await self._line.standings(pool)
        places: dict[str, Place] = {}
        for count, name in enumerate(names, 1):
            known = next((one.place for one in room.watchers.get(name, ()) if one.place), None)
            place = known and standings.place(known)
            if place is not None:
                places[name] = place
            if count % _BATCH == 0:
                await asyncio.sleep(0)
        missing = [name for name in names if name not in places]
        return places | await self._line.places(pool, missing, watched=False)


async def _show(room: _Room, places: dict[str, Place]) -> None:
    for count, name in enumerate(list(room.watchers), 1):
        for watched in room.watchers.get(name, ()):
            watched.show(places.get(name))
        if count % _BATCH == 0:
            await asyncio.sleep(0)
