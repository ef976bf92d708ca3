"""The bell: one pub/sub connection per process that says "look again".

It carries no data. A message lost while the connection was away costs nothing but time, because
every listener is woken once its channel is subscribed again, and readers poll besides.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from redis.asyncio import ConnectionPool
from redis.exceptions import RedisError

from app.store.wake import Settable

logger = logging.getLogger(__name__)

# The longest that opening the bell or a listener waits for a store that does not answer.
PATIENCE_SECONDS = 2.0
# After this much silence the connection is asked whether it still lives; a second one ends it.
SILENCE_SECONDS = 10.0
FIRST_RETRY_SECONDS = 0.05
LONGEST_RETRY_SECONDS = 2.0
# Channels in one SUBSCRIBE: keeps one command short for the store, which serves others too.
BATCH = 500

Verb = Literal["SUBSCRIBE", "UNSUBSCRIBE"]


class _Wire(Protocol):
    """The part of redis-py's connection that the bell uses."""

    async def connect(self) -> None: ...
    async def send_command(self, *args: Any) -> None: ...
    async def read_response(self, *, timeout: float) -> Any: ...
    async def disconnect(self, nowait: bool = False) -> None: ...


@dataclass(slots=True, eq=False)
class _Channel:
    """One subscribed channel and who listens."""

    name: bytes
    users: int = 0
    wakes: list[Settable] = field(default_factory=list[Settable])
    # the store has confirmed the subscription
    is_ready: bool = False
    # set for those who wait for that, or when the connection is lost; None: nobody waits
    _pending: asyncio.Event | None = None

    async def wait_until_ready(self) -> None:
        if self._pending is None:
            self._pending = asyncio.Event()
        await self._pending.wait()

    def settle(self, *, is_ready: bool) -> None:
        self.is_ready = is_ready
        if self._pending is not None:
            self._pending.set()
            self._pending = None

    def ring(self) -> None:
        for wake in self.wakes:
            wake.set()


class Bell:
    """Listens to any number of channels over one connection. Make it with `Bell.open`."""

    def __init__(self, url: str) -> None:
        # RESP2: messages come as plain lists, and a PING may be sent while subscribed. No
        # socket_timeout: redis-py would send under asyncio.wait_for, which on Python 3.11 swallows
        # a cancellation that comes as the sending ends.
        self._pool = ConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType] redis-py is partly untyped
            url, protocol=2, socket_timeout=None
        )
        self._channels: dict[bytes, _Channel] = {}
        # only the connection's own tasks write to it: a cancelled writer would cost the connection
        self._outbox: asyncio.Queue[tuple[Verb, _Channel]] = asyncio.Queue()
        # subscriptions and their ends on the way, oldest first: the store confirms in order
        self._unconfirmed: deque[tuple[Verb, _Channel]] = deque()
        # True while the connection stands; for health reports
        self.connected = False
        self._tried = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator[Bell]:
        """Connect (an absent store is no fault: it is tried again) and disconnect at the end."""
        bell = cls(url)
        running = asyncio.create_task(bell._run(), name="bell")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await bell._tried.wait()
            yield bell
        finally:
            running.cancel()
            await asyncio.wait([running])
            if not running.cancelled():
                running.result()  # it ended before its time: a fault that must be seen

    @asynccontextmanager
    async def listen(self, channel: str, wake: Settable) -> AsyncGenerator[None]:
        """Set `wake` on each message on `channel`, and whenever messages may have been lost.

        Subscribed when it yields; with the store away it yields none the less, and `wake` is set
        once the subscription stands.
        """
        name = channel.encode()
        entry = self._channels.get(name)
        if entry is None:
            entry = self._channels[name] = _Channel(name)
            self._send("SUBSCRIBE", entry)
        entry.users += 1
        try:
            if self.connected and not entry.is_ready:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await entry.wait_until_ready()
            entry.wakes.append(wake)
            try:
                yield
            finally:
                entry.wakes.remove(wake)
        finally:
            entry.users -= 1
            if not entry.users:
                del self._channels[name]
                self._send("UNSUBSCRIBE", entry)

    def _send(self, verb: Verb, entry: _Channel) -> None:
        # without a connection nothing is queued: the next one begins with every channel there is
        if self.connected:
            self._outbox.put_nowait((verb, entry))

    async def _run(self) -> None:
        retry_seconds = FIRST_RETRY_SECONDS
        while True:
            wire = cast(_Wire, self._pool.make_connection())
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await wire.connect()
                retry_seconds = FIRST_RETRY_SECONDS
                await self._serve(wire)
            except* (RedisError, OSError) as faults:
                logger.warning("the bell lost the store: %s", faults.exceptions[0])
            finally:
                self._forget_connection()
                await wire.disconnect(nowait=True)
            # jitter: many replicas must not come back in the same instant
            await asyncio.sleep(retry_seconds * random.uniform(0.5, 1.0))
            retry_seconds = min(retry_seconds * 2, LONGEST_RETRY_SECONDS)

    async def _serve(self, wire: _Wire) -> None:
        for entry in self._channels.values():
            self._outbox.put_nowait(("SUBSCRIBE", entry))
        self.connected = True
        self._tried.set()
        async with asyncio.TaskGroup() as both:
            both.create_task(self._write(wire))
            both.create_task(self._read(wire))

    def _forget_connection(self) -> None:
        self.connected = False
        self._tried.set()
        self._outbox = asyncio.Queue()
        self._unconfirmed.clear()
        for entry in self._channels.values():
            # releases those who wait for the confirmation; they are woken after the reconnect
            entry.settle(is_ready=False)

    async def _write(self, wire: _Wire) -> None:
        while True:
            batch = [await self._outbox.get()]
            while len(batch) < BATCH and not self._outbox.empty():
                batch.append(self._outbox.get_nowait())
            for verb, entries in _runs(batch):
                self._unconfirmed.extend((verb, entry) for entry in entries)
                await wire.send_command(verb, *(entry.name for entry in entries))

    async def _read(self, wire: _Wire) -> None:
        asked = False
        while True:
            message = await wire.read_response(timeout=SILENCE_SECONDS)
            if message is None:
                if asked:
                    raise TimeoutError("the store stopped answering")
                asked = True
                await wire.send_command("PING")
                continue
            asked = False
            if isinstance(message, list):
                self._take(cast(list[Any], message))

    def _take(self, message: list[Any]) -> None:
        kind, name = message[0], message[1]
        if kind == b"message":
            entry = self._channels.get(name)
            if entry is not None:
                entry.ring()
        elif kind in (b"subscribe", b"unsubscribe"):
            verb, entry = self._unconfirmed.popleft()
            if verb == "SUBSCRIBE":
                entry.settle(is_ready=True)
                # whoever listens already may have missed a message until this moment
                entry.ring()


def _runs(batch: Sequence[tuple[Verb, _Channel]]) -> list[tuple[Verb, list[_Channel]]]:
    """Neighbours with the same verb, joined, in order."""
    runs: list[tuple[Verb, list[_Channel]]] = []
    for verb, entry in batch:
        if runs and runs[-1][0] == verb:
            runs[-1][1].append(entry)
        else:
            runs.append((verb, [entry]))
    return runs
