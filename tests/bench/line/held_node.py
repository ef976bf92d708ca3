"""A node that has been given a question and never ends it: whoever comes after waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

from app.line.line import Line
from app.line.nodes import NodeDesk
from app.line.types import Job, NodeInfo
from app.settings import Settings
from app.store.client import Store

POOL = "held"
# as long as a short chat's
PAYLOAD = b"x" * 600
_NODE = NodeInfo("held-1", uuid4().hex, "held-1", "benchmark", "scripted", "")


def patient(store_url: str) -> Settings:
    """A line that takes nothing away from a node that never ends."""
    day = 86_400
    return Settings(
        redis_url=store_url, max_waiting=1_000_000, slice_seconds=day, stuck_seconds=day,
        reconnect_grace_seconds=day,
    )  # fmt: skip


# the same for a web process, as variables
PATIENT = {
    f"BATON_{name}": "86400"
    for name in ("SLICE_SECONDS", "STUCK_SECONDS", "RECONNECT_GRACE_SECONDS")
} | {"BATON_MAX_WAITING": "1000000"}


class HeldNode:
    """Reports like a node."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._desk = NodeDesk(store, POOL, settings)
        self._running: tuple[str, int] | None = None

    async def register(self) -> None:
        await self._desk.register(_NODE, b"{}")
        await self.report()

    async def report(self) -> None:
        fence = self._running[1] if self._running else 0
        await self._desk.heartbeat(_NODE.id, _NODE.boot, running=self._running, highest_fence=fence)

    async def take(self) -> None:
        assignment = await self._desk.take(_NODE.id, _NODE.boot)
        assert assignment is not None
        self._running = assignment.generation, assignment.fence


@asynccontextmanager
async def held_node(store: Store, line: Line, settings: Settings) -> AsyncGenerator[HeldNode]:
    """The one node of the pool, busy with a question of its own for the length of the block."""
    node = HeldNode(store, settings)
    # the web side's limits rule, so they come first
    await line.pump(POOL)
    await node.register()
    await line.submit(POOL, "u:holder", Job(uuid4().hex, PAYLOAD, hold=True), tier="browser")
    await node.take()

    async def beat() -> None:
        while True:
            await node.report()
            await asyncio.sleep(settings.heartbeat_seconds / 2)

    beating = asyncio.create_task(beat())
    try:
        yield node
    finally:
        beating.cancel()
        await asyncio.wait([beating])
