"""The server was told to stop: how open answers hear of it.

uvicorn waits for its requests to end and tells them nothing. sse-starlette finds out that it was
told to stop, whoever installed which signal handler; one watch of it serves all answers of a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

from sse_starlette.sse import EventSourceResponse

from app.settings import Settings


class _Watch(EventSourceResponse):
    """Opens the library's watch to answers that are not its own."""

    @staticmethod
    async def wait() -> None:
        await EventSourceResponse._listen_for_exit_signal()


class _Open:
    """The open answers of one loop: what to call when the server stops, and after how long."""

    def __init__(self) -> None:
        self._calls: dict[Callable[[], None], float] = {}
        self._watching: asyncio.Task[None] | None = None

    def add(self, call: Callable[[], None], after_seconds: float) -> None:
        self._calls[call] = after_seconds
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="server stops")

    def remove(self, call: Callable[[], None]) -> None:
        self._calls.pop(call, None)
        if not self._calls and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        await _Watch.wait()
        loop = asyncio.get_running_loop()
        for call, after_seconds in self._calls.items():
            loop.call_later(after_seconds, self._tell, call)
        # whoever begins now is told by a new watch
        self._watching = None

    def _tell(self, call: Callable[[], None]) -> None:
        if call in self._calls:
            call()


_open: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open] = WeakKeyDictionary()


def when_grace_is_over(settings: Settings, call: Callable[[], None]) -> None:
    """`call` once `shutdown_grace_seconds` have passed since the server was told to stop.

    `forget` it when the answer has ended.
    """
    _open.setdefault(asyncio.get_running_loop(), _Open()).add(call, settings.shutdown_grace_seconds)


def forget(call: Callable[[], None]) -> None:
    _open[asyncio.get_running_loop()].remove(call)


async def stop_grace_over(settings: Settings) -> None:
    """Wait until then."""
    over = asyncio.Event()
    when_grace_is_over(settings, over.set)
    try:
        await over.wait()
    finally:
        forget(over.set)
