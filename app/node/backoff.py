"""Waiting longer after each failure, with jitter, so that many nodes do not come back as one."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

FIRST_SECONDS = 0.05
LONGEST_SECONDS = 2.0


class Backoff:
    def __init__(
        self, first_seconds: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS
    ) -> None:
        self._next_seconds = first_seconds
        self._longest_seconds = longest

    async def wait(self, *, unless: asyncio.Event) -> None:
        """Wait once more; return early when `unless` is set."""
        seconds = self._next_seconds * random.uniform(0.5, 1.0)
        self._next_seconds = min(self._next_seconds * 2, self._longest_seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await unless.wait()
