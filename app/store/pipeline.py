"""Many callers' commands over one connection: written together, answered in order.

A pool of connections lends each caller one for a whole round trip. Beyond its size callers queue
for them, unfairly (with 100 callers on 32 connections some waited for seconds), and each command
costs the event loop a lease of its own. Here a command is a place in a queue; what several callers
ask in one moment leaves in one write, and the store, which does one thing at a time anyway, answers
in the same order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol, cast

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

Part = str | bytes | int | float

CONNECT_SECONDS = 2.0


class _Wire(Protocol):
    """The part of redis-py's connection that is used here."""

    async def connect(self) -> None: ...
    def pack_command(self, *args: Any) -> Iterable[bytes]: ...
    async def send_packed_command(
        self, command: Iterable[bytes], check_health: bool = True
    ) -> None: ...
    async def read_response(self, *, disconnect_on_error: bool) -> Any: ...
    async def disconnect(self, nowait: bool = False) -> None: ...


class Pipeline:
    """One process's shared connection: opened at the first call, and anew after a fault."""

    def __init__(self, client: Redis) -> None:
        """`client` says where the store is, and how its replies are shaped; it is not closed here."""
        self._client = client
        self._link: _Link | None = None
        self._opening: asyncio.Task[_Link] | None = None

    async def call(self, *parts: Part) -> Any:
        """Send a command and wait for its reply. No time limit: that is the caller's.

        Raises redis-py's errors; a ConnectionError says that the command may or may not have run.
        """
        link = self._link
        if link is None or link.is_over:
            link = await self._open()
        name = parts[0]
        reply = await link.ask(parts)
        shape = self._client.response_callbacks.get(name) if isinstance(name, str) else None
        return reply if shape is None else shape(reply)

    async def _open(self) -> _Link:
        # one task for all who wait; a caller that is cancelled does not take it away from others
        if self._opening is None:
            self._opening = asyncio.create_task(self._connect(), name="store connects")
            self._opening.add_done_callback(_seen)
        return await asyncio.shield(self._opening)

    async def _connect(self) -> _Link:
        wire = cast(_Wire, self._client.connection_pool.make_connection())
        try:
            await self.drop()
            # the greeting too: a peer that accepts and says nothing must not be waited for
            async with asyncio.timeout(CONNECT_SECONDS):
                await wire.connect()
        except BaseException:
            await wire.disconnect(nowait=True)
            raise
        finally:
            self._opening = None
        self._link = _Link(wire)
        return self._link

    async def drop(self) -> None:
        """Give the connection up: whoever waits on it gets a ConnectionError."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def aclose(self) -> None:
        opening = self._opening
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
        await self.drop()


def _seen(opening: asyncio.Task[_Link]) -> None:
    """Its fault is told to those who wait for it, if there are any left."""
    if not opening.cancelled():
        opening.exception()


class _Link:
    """An open connection, what is to be sent on it, and who waits for an answer."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._unsent: list[bytes] = []
        self._something = asyncio.Event()
        # oldest first: the store answers in order. Whoever stopped waiting has left a done future.
        self._asked: deque[asyncio.Future[Any]] = deque()
        self.is_over = False
        self._tasks = (
            asyncio.create_task(self._write(), name="store writes"),
            asyncio.create_task(self._read(), name="store reads"),
        )

    def ask(self, parts: Iterable[Part]) -> asyncio.Future[Any]:
        if self.is_over:
            raise RedisConnectionError("The connection has just ended.")
        # packed first: a part that cannot be sent must leave no place in the queue
        self._unsent += self._wire.pack_command(*parts)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        self._something.set()
        return answer

    async def _write(self) -> None:
        try:
            while True:
                await self._something.wait()
                self._something.clear()
                unsent, self._unsent = self._unsent, []
                await self._wire.send_packed_command(unsent, check_health=False)
        except (RedisError, OSError) as error:
            self._end(error)

    async def _read(self) -> None:
        try:
            while True:
                try:
                    reply = await self._wire.read_response(disconnect_on_error=False)
                except ResponseError as error:
                    reply = error
                answer = self._asked.popleft()
                if answer.done():
                    continue
                if isinstance(reply, ResponseError):
                    answer.set_exception(reply)
                else:
                    answer.set_result(reply)
        except (RedisError, OSError) as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self.is_over = True
        for answer in self._asked:
            if not answer.done():
                answer.set_exception(RedisConnectionError(f"The connection ended: {error}"))
        self._asked.clear()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self._end(RedisConnectionError("it was given up"))
        await asyncio.wait(self._tasks)
        await self._wire.disconnect(nowait=True)
