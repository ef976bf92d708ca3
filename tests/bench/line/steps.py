"""The line's own client on a real store: how many operations a second, and how long one takes.

A round is a join, a look at the place and a leave, for a seat of its own; each of the three counts
as one operation. Other seats stand in the line meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from app.line.line import Line
from app.line.types import Job
from app.store.client import Store
from engine.bench.report import Row
from tests.bench.line.held_node import PAYLOAD, POOL, HeldNode, held_node, patient
from tests.bench.product import embedded_store, percentile

WAITING = 10_000
ROUNDS = 5_000
# rounds under way at once: what many requests of one web process are
AT_ONCE = 100
SERIAL_ROUNDS = 1_000


async def rows() -> list[Row]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="baton-bench-")))
        url = stack.enter_context(embedded_store(folder)).url
        settings = patient(url)
        store = await stack.enter_async_context(Store.connect(url))
        line = Line(store, settings)
        node = await stack.enter_async_context(held_node(store, line, settings))
        per_second = await _pipelined(line)
        await fill(line, WAITING)
        named = "join, rank and leave through the line's client, pipelined"
        return [
            Row(named, per_second, "operations/s", 10_000, "higher"),
            *await _latencies(line, node),
        ]


async def _round(line: Line) -> None:
    seat, generation = f"u:{uuid4().hex}", uuid4().hex
    await line.submit(POOL, seat, Job(generation, PAYLOAD, hold=True), tier="browser")
    await line.places(POOL, [generation], watched=True)
    await line.leave(seat)


async def _pipelined(line: Line) -> float:
    """Operations a second with many rounds under way."""

    async def worker() -> None:
        for _ in range(ROUNDS // AT_ONCE):
            await _round(line)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    return 3 * ROUNDS / (time.perf_counter() - began_s)


async def fill(line: Line, count: int) -> None:
    """Let so many further seats wait."""
    free = asyncio.Semaphore(AT_ONCE)

    async def join() -> None:
        async with free:
            job = Job(uuid4().hex, PAYLOAD, hold=True)
            await line.submit(POOL, f"u:{uuid4().hex}", job, tier="browser")

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(join())


async def _latencies(line: Line, node: HeldNode) -> list[Row]:
    """One call after the other, each the one script that carries the step."""
    taken_ms: dict[str, list[float]] = {}

    async def timed(name: str, step: Awaitable[object]) -> None:
        began_s = time.perf_counter()
        await step
        taken_ms.setdefault(name, []).append((time.perf_counter() - began_s) * 1000)

    for _ in range(SERIAL_ROUNDS):
        seat, job = f"u:{uuid4().hex}", Job(uuid4().hex, PAYLOAD, hold=True)
        await timed("join", line._join(POOL, seat, job, "browser", ""))
        await timed("rank", line.places(POOL, [job.generation], watched=True))
        await timed("pump", line.pump(POOL))
        await timed("heartbeat", node.report())
        await timed("cancel", line.cancel(POOL, job.generation, "stopped"))
    every = [ms for some in taken_ms.values() for ms in some]
    named = f"Lua step at {WAITING:,} waiting, round trip"
    return [
        Row(f"{named}, p50", percentile(every, 50), "ms", None, "lower"),
        Row(f"{named}, p99", percentile(every, 99), "ms", 0.5, "lower"),
        *(
            Row(f"{named}, {name} p99", percentile(some, 99), "ms", 0.5, "lower")
            for name, some in taken_ms.items()
        ),
    ]
