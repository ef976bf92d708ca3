"""How fast a node changes hands: release to grant, a stop to the node, a killed node to the next."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any, cast
from uuid import uuid4

import orjson

from engine.bench.report import Row
from tests.bench.line.people import Person, make_people
from tests.bench.product import Product, nodes_ready, percentile, product, stamped_node
from tests.bench.stamped_node import MODEL

HANDOVERS = 100
STOPS = 30
KILLS = 2
PATIENCE_SECONDS = 60
RATE = 600.0
# long enough for the states before it to be told one by one
ANSWER_TOKENS = 60

Heard = tuple[str, dict[str, Any]]


class Browser:
    """Somebody's browser on the product."""

    def __init__(self, made: Product, person: Person) -> None:
        self._client = made.client
        self._headers = person.headers | {"Origin": made.url}

    async def ask(self, tokens: int, generation: str | None = None) -> AsyncGenerator[Heard]:
        """Ask, and hear the events as they come."""
        body = {
            "id": generation or uuid4().hex, "question": "go", "settings": {"max_tokens": tokens},
        }  # fmt: skip
        async with self._client.stream(
            "POST", "/api/chat", json=body, headers=self._headers
        ) as response:
            if response.status_code != 200:
                raise RuntimeError((await response.aread()).decode())
            name = ""
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    yield name, orjson.loads(line[6:])

    async def answer(self, tokens: int) -> None:
        async with aclosing(self.ask(tokens)) as events:
            async for name, data in events:
                if name == "failed":
                    raise RuntimeError(data["message"])

    async def post(self, path: str) -> None:
        (await self._client.post(path, headers=self._headers)).raise_for_status()


async def rows() -> list[Row]:
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(product())
        one, other = [Browser(made, person) for person in await make_people(made.folder, 2, MODEL)]
        nodes = {"n0": stack.enter_context(stamped_node(made.store_url, RATE, "n0"))}
        await nodes_ready(made.store_url, 1)
        granted_ms = await _handovers(one, other)
        noticed_ms = await _stops(one, nodes["n0"])
        for count in range(1, KILLS + 1):
            name = f"n{count}"
            nodes[name] = stack.enter_context(stamped_node(made.store_url, RATE, name))
        await one.post("/api/line/leave")
        await nodes_ready(made.store_url, KILLS + 1)
        rescued_s = [await _kill(one, nodes) for _ in range(KILLS)]
    return [
        Row("release to the next holder's granting state, p50", statistics.median(granted_ms), "ms", 10, "lower"),
        Row("release to the next holder's granting state, p99", percentile(granted_ms, 99), "ms", 100, "lower"),
        Row("stop to the node's noticing it, p50", statistics.median(noticed_ms), "ms", None, "lower"),
        Row("stop to the node's noticing it, p99", percentile(noticed_ms, 99), "ms", 50, "lower"),
        Row("node killed to the first new token", max(rescued_s), "s", 7, "lower", min(rescued_s), max(rescued_s)),
    ]  # fmt: skip


async def _handovers(one: Browser, other: Browser) -> list[float]:
    """From the moment before the holder's request to leave, to the next one's `state` with a node."""
    taken_ms: list[float] = []
    for _ in range(HANDOVERS):
        await one.answer(ANSWER_TOKENS)
        waits, granted = asyncio.Event(), asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(_wait_for_turn(other, waits, granted))
        await waits.wait()
        began_s = time.perf_counter()
        await one.post("/api/line/leave")
        async with asyncio.timeout(PATIENCE_SECONDS):
            taken_ms.append((await granted - began_s) * 1000)
        await waiting
        one, other = other, one
    await one.post("/api/line/leave")
    return taken_ms


async def _wait_for_turn(
    browser: Browser, waits: asyncio.Event, granted: asyncio.Future[float]
) -> None:
    async with aclosing(browser.ask(ANSWER_TOKENS)) as events:
        async for name, data in events:
            if name == "state" and data["node"] and not granted.done():
                granted.set_result(time.perf_counter())
            elif name == "state" and data["rank"]:
                waits.set()


async def _stops(browser: Browser, node: subprocess.Popen[bytes]) -> list[float]:
    """From the moment before the request to stop, to the node's loop seeing it between two tokens."""
    taken_ms: list[float] = []
    loop = asyncio.get_running_loop()
    assert node.stdout is not None
    for _ in range(STOPS):
        generation = uuid4().hex
        async with aclosing(browser.ask(100_000, generation)) as events:
            began_ns = 0
            async for name, _data in events:
                if name == "delta" and not began_ns:
                    began_ns = time.monotonic_ns()
                    await browser.post(f"/api/turns/{generation}/stop")
        noticed_ns = int(await loop.run_in_executor(None, node.stdout.readline))
        taken_ms.append((noticed_ns - began_ns) / 1e6)
    return taken_ms


async def _kill(browser: Browser, nodes: dict[str, subprocess.Popen[bytes]]) -> float:
    """Seconds from killing the node that answers to the first token that another one made."""
    killed_ns = 0
    node = ""
    tokens_made = 0
    async with aclosing(browser.ask(12_000)) as events:
        async for name, data in events:
            if name == "state" and data["node"] and not killed_ns:
                node = cast(str, data["node"]["name"])
            elif name == "delta":
                tokens_made += data["n"]
                stamps = [int(stamp) for stamp in data["text"].split()]
                if not killed_ns and tokens_made > RATE / 2 and node:
                    nodes[node].kill()
                    killed_ns = time.monotonic_ns()
                # tokens that were under way when it died are older
                elif killed_ns and stamps[-1] > killed_ns + 500_000_000:
                    return (time.monotonic_ns() - killed_ns) / 1e9
            elif name == "failed":
                raise RuntimeError(data["message"])
    raise RuntimeError("the answer ended without another node")
