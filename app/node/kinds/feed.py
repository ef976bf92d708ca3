"""A blocking iterator in its own thread, read as an async generator.

Made for the engine: the thread runs ahead of a slow reader by a bounded number of items, and
closing the generator waits until the thread is done with the iterator, so that nothing of one job
still runs when the next one starts.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# items that wait for the reader; a step a millisecond fills this in a second
MOST_WAITING = 1024


class Feed(Generic[T]):
    """One run of `make()` on `executor`; at most `most_waiting` items wait for the reader.

    `stop` asks the iterator to end early. It is also set when the reader leaves.
    """

    def __init__(
        self,
        executor: Executor,
        make: Callable[[], Iterator[T]],
        stop: threading.Event,
        *,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._executor = executor
        self._make = make
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._room = threading.Semaphore(most_waiting)
        self._abandoned = threading.Event()
        self._news = asyncio.Event()

    async def read(self) -> AsyncGenerator[T, None]:
        """The items in order. Raises what the iterator raised, after the items before it."""
        running = self._loop.run_in_executor(self._executor, self._work)
        running.add_done_callback(lambda _: self._news.set())
        try:
            while True:
                # looked at before the items: what comes later rings again
                over = running.done()
                self._news.clear()
                while self._items:
                    item = self._items.popleft()
                    self._room.release()
                    yield item
                if over:
                    break
                await self._news.wait()
            running.result()
        finally:
            self._abandoned.set()
            self._stop.set()
            self._room.release()
            await settled(running)

    def _work(self) -> None:
        """The thread's side."""
        items = self._make()
        try:
            for item in items:
                self._room.acquire()
                if self._abandoned.is_set():
                    return
                self._items.append(item)
                self._loop.call_soon_threadsafe(self._news.set)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()


async def settled(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is done, also when the waiting task is cancelled meanwhile.

    The cancellation is raised afterwards; the future's own error is not.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if not future.cancelled():
        # looked at, so that asyncio does not report it as forgotten
        future.exception()
    if cancelled is not None:
        raise cancelled
