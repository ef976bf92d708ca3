"""Where all watched questions stand, asked once per pool and round for the whole replica.

Up to a few hundred questions are looked up one by one each time. Of a crowd the ranks are read off
the lanes, all in one call, and only who has left a lane is looked up.

Watching is also what keeps a seat's place: as long as somebody watches one of its questions, the
rounds renew its grace. A crowd's seats take turns at it, so that no round is long.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Self

from redis.exceptions import RedisError

from app.errors import StoreUnavailableError, TooManyReadersError
from app.line.line import Line
from app.line.types import Place
from app.store import keys
from app.store.bell import Bell
from app.store.wake import Settable

logger = logging.getLogger(__name__)

# Rounds follow the bell, but not faster than this, and come this often without it.
_LEAST_SECONDS = 0.005
_MOST_SECONDS = 2.0
# With many watchers a round takes long; then at most a fifth of the time is spent in rounds, and
# everybody still hears of a change within a second.
_REST_FACTOR = 4
_LONGEST_REST_SECONDS = 0.5
# Seats are kept by one round in so many seconds, far below every grace: where a place is kept for
# less than this grace, all of it happens as much more often.
_USUAL_GRACE_SECONDS = 10.0
_KEEP_SECONDS = 1.0
_CROWD = 400
_KEEP_CROWD_SECONDS = 5.0
# how often a few seats of a crowd have their turn
_CROWD_ROUND_SECONDS = 0.25
# Of one question, at one replica. Tabs and devices are few, and each holds a connection: without a
# bound one account could take them all.
MOST_READERS = 100
# After so many watchers others may use the event loop.
_BATCH = 500


@dataclass(eq=False, slots=True)
class Watched:
    """One watcher's view. Its wake event is set when something of it has changed."""

    generation: str
    _wake: Settable
    # None: not asked yet, or no longer known to the store
    place: Place | None = None
    # the store could not be asked the last time
    is_away: bool = False

    def show(self, place: Place | None) -> None:
        if self.is_away:
            self.is_away = False
            self._wake.set()
        if place is self.place:
            return
        if _shown(place) != _shown(self.place):
            self._wake.set()
        self.place = place

    def lose_touch(self) -> None:
        if not self.is_away:
            self.is_away = True
            self._wake.set()


def _shown(place: Place | None) -> tuple[object, ...] | None:
    """What a watcher is woken for. Not for what time alone changes, nor for each step of a long
    line: thousands would be told with every departure that they are 4,711th instead of 4,712th."""
    if place is None:
        return None
    return (
        place.state,
        place.ticket,
        shown_number(place.rank or 0),
        shown_number(place.waiting),
        place.behind_own,
        place.node,
        place.slice_left_seconds is None,
        place.eta_seconds is None,
        place.ending,
        place.drained,
        place.returned,
        place.claim_left_seconds is None,
    )


# a crowd's worth of numbers: they are looked at for everybody at each departure
@lru_cache(maxsize=32_768)
def shown_number(number: int) -> int:
    """Exact up to 20, then steps of 5 %."""
    return number if number <= 20 else 20 + int(math.log(number / 20, 1.05))


@dataclass(eq=False, slots=True)
class _Room:
    """The watchers of one pool and the task that serves them."""

    watchers: dict[str, set[Watched]] = field(default_factory=dict[str, set[Watched]])
    due: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    # the monotonic clock: when a round last kept the seats, or a crowd's turns came on
    kept_at: float = -math.inf
    # and when all were last looked at
    looked_at: float = -math.inf
    # a crowd's questions in the order in which their seats are kept
    turns: deque[str] = field(default_factory=deque[str])


class Board:
    """One per web replica: `async with Board(line, bell) as board`."""

    def __init__(self, line: Line, bell: Bell) -> None:
        self._line = line
        self._bell = bell
        self._haste = min(1.0, line.grace_seconds / _USUAL_GRACE_SECONDS)
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
    async def watch(self, pool: str, generation: str, wake: Settable) -> AsyncGenerator[Watched]:
        """Watch one question: sets `wake` on each change of its place, keeps its seat's place.

        Raises TooManyReadersError.
        """
        room = self._room(pool)
        if len(room.watchers.get(generation, ())) >= MOST_READERS:
            raise TooManyReadersError
        watched = Watched(generation, wake)
        if generation not in room.watchers:
            room.watchers[generation] = set()
            room.turns.append(generation)
        room.watchers[generation].add(watched)
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
        rung = room.due.is_set()
        room.due.clear()
        began = time.monotonic()
        is_crowd = len(room.watchers) > _CROWD
        try:
            if is_crowd:
                await self._serve_crowd(pool, room, began, rung=rung)
            else:
                await self._serve_few(pool, room, began)
        except (StoreUnavailableError, RedisError) as error:
            logger.warning("the places of %s could not be read: %s", pool, error)
            for watched in _watchers(room):
                watched.lose_touch()
        busy_seconds = time.monotonic() - began
        rest_seconds = min(_REST_FACTOR * busy_seconds, _LONGEST_REST_SECONDS)
        await asyncio.sleep(max(_LEAST_SECONDS, rest_seconds))
        try:
            most_seconds = _CROWD_ROUND_SECONDS if is_crowd else _MOST_SECONDS
            async with asyncio.timeout(self._haste * most_seconds):
                await room.due.wait()
        except TimeoutError:
            pass  # nobody rang: a message may have been lost, and seats want to be kept

    async def _serve_few(self, pool: str, room: _Room, now: float) -> None:
        names = list(room.watchers)
        keeps = now - room.kept_at >= self._haste * _KEEP_SECONDS
        places = await self._line.places(pool, names, watched=keeps)
        room.kept_at = now if keeps else room.kept_at
        room.turns = deque(room.watchers)
        for name in names:
            _show(room, name, places.get(name))

    async def _serve_crowd(self, pool: str, room: _Room, now: float, *, rung: bool) -> None:
        kept = _next_turns(room, now, self._haste * _KEEP_CROWD_SECONDS)
        places = await self._line.places(pool, kept, watched=True) if kept else {}
        for name in kept:
            _show(room, name, places.get(name))
        if not rung and now - room.looked_at < _MOST_SECONDS:
            return
        room.looked_at = now
        standings = await self._line.standings(pool)
        missing: list[str] = []
        for count, name in enumerate(list(room.watchers), 1):
            known = next((one.place for one in room.watchers.get(name, ()) if one.place), None)
            place = known and standings.place(known)
            if place is None:
                missing.append(name)
            else:
                _show(room, name, place)
            if count % _BATCH == 0:
                await asyncio.sleep(0)
        places = await self._line.places(pool, missing, watched=False)
        for name in missing:
            _show(room, name, places.get(name))


def _next_turns(room: _Room, now: float, every_seconds: float) -> list[str]:
    """Whose seats a crowd's round keeps: so many that each has its turn in so many seconds, whoever
    was kept longest ago first."""
    passed_seconds = min(now - room.kept_at, every_seconds)
    room.kept_at = now
    share = math.ceil(len(room.watchers) * passed_seconds / every_seconds)
    chosen: list[str] = []
    while room.turns and len(chosen) < share:
        name = room.turns.popleft()
        if name in room.watchers:
            chosen.append(name)
    room.turns.extend(chosen)
    return chosen


def _watchers(room: _Room) -> list[Watched]:
    return [watched for same in room.watchers.values() for watched in same]


def _show(room: _Room, name: str, place: Place | None) -> None:
    for watched in room.watchers.get(name, ()):
        watched.show(place)
