"""How much of the engine's speed reaches a client: python -m tests.bench.delivery

Starts a store, a web process and a node whose tokens carry the time at which they left the engine,
each a process of its own, and reads answers through `/v1/chat/completions` as a client would.
Prints, per rate: delivered / produced tokens per second; the time a token is on its way, first
tokens and later ones apart; the processor time of web and store. Last line: JSON.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import psutil

from app.store.embedded import EmbeddedStore
from engine.bench.report import Row, print_report
from tests.bench.stamped_node import MODEL
from tests.waiting import until

FIRST_TOKEN_ROUNDS = 100
RATES = (600.0, 5000.0)
STREAM_SECONDS = 5.0
FRAME_MS = 16.0


@dataclass(frozen=True, slots=True)
class Bench:
    client: httpx.AsyncClient
    servers: tuple[psutil.Process, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    # per frame: arrival at the client and the stamps in it (ns, one clock)
    frames: tuple[tuple[int, tuple[int, ...]], ...]
    produced_tps: float

    @property
    def delivered_tps(self) -> float:
        tokens = sum(len(stamps) for _, stamps in self.frames[1:])
        return tokens / ((self.frames[-1][0] - self.frames[0][0]) / 1e9)

    @property
    def first_ms(self) -> float:
        arrived, stamps = self.frames[0]
        return (arrived - stamps[0]) / 1e6

    def on_the_way_ms(self) -> list[float]:
        """Of every later token, framing included."""
        return [(arrived - stamp) / 1e6 for arrived, stamps in self.frames[1:] for stamp in stamps]


async def ask(client: httpx.AsyncClient, tokens: int) -> Answer:
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": "go"}], "max_tokens": tokens,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    frames: list[tuple[int, tuple[int, ...]]] = []
    produced = 0.0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            arrived = time.monotonic_ns()
            if not line.startswith("data: {"):
                continue
            chunk = orjson.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            if not chunk["choices"]:
                produced = chunk["tps"]["average"]
            elif text := chunk["choices"][0]["delta"].get("content"):
                frames.append((arrived, tuple(int(stamp) for stamp in text.split())))
    return Answer(tuple(frames), produced)


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, env=os.environ | environment) as child:
        try:
            yield child
        finally:
            child.terminate()


@asynccontextmanager
async def product(rate: float) -> AsyncGenerator[Bench]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
        store = EmbeddedStore.start(folder)
        stack.callback(store.stop)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        settings = {
            "BATON_REDIS_URL": store.url, "BATON_DATA_FOLDER": str(folder), "BATON_PORT": str(port),
            "BATON_REQUESTS_PER_MINUTE": "100000", "BATON_LOG_LEVEL": "error",
        }  # fmt: skip
        baton = str(Path(sys.executable).parent / "baton")
        web = stack.enter_context(process(baton, "web", **settings))
        stack.enter_context(
            process(sys.executable, "-m", "tests.bench.stamped_node", store.url, str(rate), "n1")
        )
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))

        async def ready() -> bool:
            try:
                return (await client.get("/readyz")).status_code == 200
            except httpx.TransportError:
                return False

        await until(ready, within_seconds=30, what="web and node")
        client.headers["Authorization"] = f"Bearer {await make_key(client, url)}"
        assert store.process is not None, "a store of an earlier run was adopted"
        yield Bench(client, (psutil.Process(web.pid), psutil.Process(store.process.pid)))


async def make_key(client: httpx.AsyncClient, url: str) -> str:
    person = {"name": "bench", "password": "only for this run"}
    signed = await client.post("/api/sign-up", json=person, headers={"Origin": url})
    signed.raise_for_status()
    made = await client.post(
        "/api/keys", json={"name": "b", "kind": "secret", "origins": []}, headers={"Origin": url}
    )
    made.raise_for_status()
    return made.json()["secret"]


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def first_tokens(bench: Bench) -> list[Row]:
    taken = [(await ask(bench.client, 2)).first_ms for _ in range(FIRST_TOKEN_ROUNDS)]
    return [
        Row("first token, added latency p50", statistics.median(taken), "ms", 2, "lower"),
        Row("first token, added latency p99", percentile(taken, 99), "ms", 10, "lower"),
    ]


async def streams(bench: Bench, rate: float) -> list[Row]:
    await ask(bench.client, round(rate))
    cpu_before, began_s = cpu_seconds(bench.servers), time.perf_counter()
    answer = await ask(bench.client, round(rate * STREAM_SECONDS))
    wall_s = time.perf_counter() - began_s
    cpu_percent = (cpu_seconds(bench.servers) - cpu_before) / wall_s * 100
    way = answer.on_the_way_ms()
    named = f"{rate:.0f} tok/s"
    return [
        Row(f"{named}: produced", answer.produced_tps, "tok/s", None, "higher"),
        Row(f"{named}: delivered / produced", answer.delivered_tps / answer.produced_tps, "ratio", 0.99, "higher"),
        Row(f"{named}: token on its way beyond the {FRAME_MS:.0f} ms frame, p50", max(0.0, statistics.median(way) - FRAME_MS), "ms", 2, "lower"),
        Row(f"{named}: token on its way beyond the {FRAME_MS:.0f} ms frame, p99", max(0.0, percentile(way, 99) - FRAME_MS), "ms", 10, "lower"),
        Row(f"{named}: token on its way, framing included, p50", statistics.median(way), "ms", None, "lower"),
        Row(f"{named}: processor time of web and store", cpu_percent, "% of a core", 10 if rate <= 600 else None, "lower"),
    ]  # fmt: skip


async def main() -> None:
    rows: list[Row] = []
    for rate in RATES:
        async with product(rate) as bench:
            if not rows:
                rows += await first_tokens(bench)
            rows += await streams(bench, rate)
    print_report("delivery", rows)


if __name__ == "__main__":
    asyncio.run(main())
