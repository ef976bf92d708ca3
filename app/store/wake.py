"""A flag that one task waits for. asyncio.Event serves any number of waiters, at some 700 bytes and
a time limit of its own kind; a replica holds two of these for every stream that waits."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Settable(Protocol):
    """What a bell rings: a Wake, an asyncio.Event."""

    def set(self) -> None: ...


class Wake:
    """Stays set until it is cleared."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[bool] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._waiter is not None:
            _settle(self._waiter, woken=True)

    def clear(self) -> None:
        self._is_set = False

    async def wait_within(self, seconds: float) -> bool:
        """Wait until it is set; False when it was not within so long. For one task at a time."""
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, lambda: _settle(waiter, woken=False))
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None


def _settle(waiter: asyncio.Future[bool], *, woken: bool) -> None:
    if not waiter.done():
        waiter.set_result(woken)
