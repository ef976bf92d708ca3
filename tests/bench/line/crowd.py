"""Ten thousand waiting browsers on one web process: memory, time to tell them all, loop stalls."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import orjson

from app.line.board import shown_number
from app.line.line import Line
from app.line.types import Job
from app.store.client import Store
from engine.bench.report import Row
from tests.bench.line.held_node import PATIENT, PAYLOAD, POOL, held_node, patient
from tests.bench.line.people import Person, make_people
from tests.bench.product import Product, cpu_seconds, product

LEAST = 10_000
MOVES = 5
JOIN_AT_ONCE = 200
TOLD_SECONDS = 10
IDLE_SECONDS = 10
PROBE_EVERY_SECONDS = 0.01
# longer than a round of the board and its rest
REST_SECONDS = 1.5


def crowd_size() -> int:
    """At least `LEAST`, and so many that one departure changes the number shown to everybody."""
    count = LEAST + MOVES
    while shown_number(count) == shown_number(count + 1):
        count += 1
    return count


class Crowd:
    """The process of the browsers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout

    async def ask(self, line: str) -> Any:
        self._in.write(f"{line}\n".encode())
        await self._in.drain()
        answer = await self._out.readline()
        if not answer:
            raise RuntimeError("the waiting browsers' process has ended; see above")
        return orjson.loads(answer)


@asynccontextmanager
async def crowd(made: Product, people: list[Person]) -> AsyncGenerator[Crowd]:
    address = urlsplit(made.url)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.line.crowd_client",
        str(address.hostname), str(address.port),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**20,
    )  # fmt: skip
    try:
        waiting = Crowd(process)
        asked = [[f"/api/turns/{one.generation}/events", one.cookie] for one in people]
        count = await waiting.ask(orjson.dumps(asked).decode())
        assert count == len(people)
        yield waiting
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Probe:
    """Asks for nothing, a hundred times a second: what takes long is a loop that stood still."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.taken_ms: list[float] = []

    async def run(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as client:
            while True:
                began_s = time.perf_counter()
                await client.get("/healthz")
                self.taken_ms.append((time.perf_counter() - began_s) * 1000)
                await asyncio.sleep(PROBE_EVERY_SECONDS)


async def rows() -> list[Row]:
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(product(**PATIENT))
        store = await stack.enter_async_context(Store.connect(made.store_url))
        settings = patient(made.store_url)
        line = Line(store, settings)
        await stack.enter_async_context(held_node(store, line, settings))
        people = await make_people(made.folder, crowd_size() + 1, POOL)
        await _join_all(line, people)
        # the first ones make the moves, and watch nothing
        movers, watchers = people[:MOVES], people[MOVES:]
        before_bytes = made.web.memory_info().rss
        began_s = time.perf_counter()
        waiting = await stack.enter_async_context(crowd(made, watchers))
        connect_s = time.perf_counter() - began_s
        each_kib = (made.web.memory_info().rss - before_bytes) / len(watchers) / 1024
        probe = Probe(made.url)
        probing = asyncio.create_task(probe.run())
        idle_percent = await _idle_percent(made)
        told_s = [await _move(line, waiting, one, len(watchers)) for one in movers]
        probing.cancel()
        await asyncio.wait([probing])
    named = f"{LEAST:,} waiting streams"
    return [
        Row(f"{named}: held", len(watchers), "streams", LEAST, "higher"),
        Row(f"{named}: memory of each in the web process", each_kib, "KiB", 40, "lower"),
        Row(f"{named}: all told of a move", max(told_s), "s", 0.5, "lower", min(told_s), max(told_s)),
        Row(f"{named}: longest stall of the loop", max(probe.taken_ms), "ms", 100, "lower"),
        Row(f"{named}: processor time of web and store between moves", idle_percent, "% of a core", None, "lower"),
        Row(f"{named}: opening one", connect_s / len(watchers) * 1000, "ms", None, "lower"),
    ]  # fmt: skip


async def _join_all(line: Line, people: list[Person]) -> None:
    """In their order."""
    for start in range(0, len(people), JOIN_AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for one in people[start : start + JOIN_AT_ONCE]:
                job = Job(one.generation, PAYLOAD, hold=True)
                group.create_task(line.submit(POOL, one.seat, job, tier="browser"))


async def _idle_percent(made: Product) -> float:
    before_s = cpu_seconds(made.servers)
    await asyncio.sleep(IDLE_SECONDS)
    return (cpu_seconds(made.servers) - before_s) / IDLE_SECONDS * 100


async def _move(line: Line, waiting: Crowd, one: Person, watchers: int) -> float:
    """Seconds until all were told that somebody ahead of them left."""
    await waiting.ask("mark")
    began_ns = time.monotonic_ns()
    await line.leave(one.seat)
    answer = await waiting.ask(f"told {TOLD_SECONDS}")
    # behind everybody, so that the next to leave changes the number shown again
    job = Job(uuid4().hex, PAYLOAD, hold=True)
    await waiting.ask("mark")
    await line.submit(POOL, one.seat, job, tier="browser")
    await waiting.ask(f"told {TOLD_SECONDS}")
    await asyncio.sleep(REST_SECONDS)
    if answer["told"] < watchers:
        return float(TOLD_SECONDS)
    return (answer["last_ns"] - began_ns) / 1e9
