"""Waiting for a condition in tests: poll with a deadline, never sleep and hope."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")


async def until(
    condition: Callable[[], T | Awaitable[T]], *, within_seconds: float = 10.0, what: str = ""
) -> T:
    """Return the first truthy value of `condition` (plain or async); fail after the deadline."""
    deadline = time.monotonic() + within_seconds
    while True:
        found = condition()
        value = cast(T, await found if inspect.isawaitable(found) else found)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds} s: {what or condition}")
        await asyncio.sleep(0.01)
