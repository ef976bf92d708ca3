"""What goes wrong at random moments: kill -9, SIGSTOP and SIGCONT of web, node and store."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable

from tests.faults.site import Process, Site

# Frozen for less, about as long as, and longer than the line's own limits (3 s, 5 s, 8 s).
FREEZES_SECONDS = (0.5, 2.0, 4.0, 7.0, 11.0)
STORE_AWAY_SECONDS = (0.0, 0.5, 2.0, 6.0)
PAUSE_SECONDS = (0.5, 4.0)


class Trouble:
    """Seeded: the same seed chooses the same faults, though not at the same instants."""

    def __init__(self, site: Site, seed: int, *, loses_data: bool = False) -> None:
        self._site = site
        self._chance = random.Random(seed)
        kinds: list[tuple[str, Callable[[], Awaitable[None]], int]] = [
            ("kill a node", self._kill_node, 4),
            ("freeze a node", self._freeze_node, 4),
            ("kill a replica", self._kill_web, 2),
            ("freeze a replica", self._freeze_web, 2),
            ("kill the store", self._kill_store, 2),
            ("freeze the store", self._freeze_store, 2),
        ]
        if loses_data:
            kinds.append(("empty the store", self._empty_store, 1))
        self._kinds = kinds
        # what happened, for whoever has to understand a failure
        self.diary: list[str] = []

    async def run(self, seconds: float) -> None:
        """One fault after the other; all are healed when it returns."""
        began_s = time.monotonic()
        while (at_s := time.monotonic() - began_s) < seconds:
            names = [name for name, _, _ in self._kinds]
            weights = [weight for _, _, weight in self._kinds]
            chosen = self._chance.choices(names, weights)[0]
            self.diary.append(f"{at_s:.1f} s: {chosen}")
            await next(act for name, act, _ in self._kinds if name == chosen)()
            await asyncio.sleep(self._chance.uniform(*PAUSE_SECONDS))

    async def _kill_node(self) -> None:
        await self._kill(self._chance.choice(self._site.nodes))

    async def _kill_web(self) -> None:
        await self._kill(self._chance.choice(self._site.webs))

    async def _kill(self, process: Process) -> None:
        await process.killed()
        process.start()

    async def _freeze_node(self) -> None:
        await self._freeze(self._chance.choice(self._site.nodes))

    async def _freeze_web(self) -> None:
        await self._freeze(self._chance.choice(self._site.webs))

    async def _freeze(self, process: Process) -> None:
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(self._chance.choice(FREEZES_SECONDS))
        process.signal(signal.SIGCONT)

    async def _kill_store(self) -> None:
        self._site.store.kill()
        await asyncio.sleep(self._chance.choice(STORE_AWAY_SECONDS))
        self._site.store.start()

    async def _freeze_store(self) -> None:
        self._site.store.freeze()
        await asyncio.sleep(self._chance.choice(STORE_AWAY_SECONDS))
        self._site.store.thaw()

    async def _empty_store(self) -> None:
        self._site.store.kill()
        self._site.store.forget()
        self._site.store.start()
