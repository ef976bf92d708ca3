"""How much of the engine's speed reaches a client: python -m tests.bench.delivery

Starts a store, a web process and a node whose tokens carry the time at which they left the engine,
each a process of its own, and reads answers through `/v1/chat/completions` as a client would.
Prints, per rate: delivered / produced tokens per second; the time a token is on its way, first
tokens and later ones apart; the processor time of web and store. Last line: JSON.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import orjson
import psutil

from engine.bench.report import Row, print_report
from tests.bench.product import (
    cpu_seconds,
    make_key,
    nodes_ready,
    percentile,
    product,
    stamped_node,
)
from tests.bench.stamped_node import MODEL

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

    def beyond_frame_ms(self, percent: int) -> float:
        """Of the later tokens: a percentile of the time on the way, less the frame's."""
        return max(0.0, percentile(self.on_the_way_ms(), percent) - FRAME_MS)

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


@asynccontextmanager
async def bench_at(rate: float, how_many: int = 1) -> AsyncGenerator[Bench]:
    """A product with so many nodes, each making `rate` tokens a second, and a client with a key."""
    async with product() as made:
        with stamped_node(made.store_url, rate, "n1", how_many):
            await nodes_ready(made.store_url, how_many)
            made.client.headers["Authorization"] = f"Bearer {await make_key(made)}"
            yield Bench(made.client, made.servers)


async def first_tokens(bench: Bench) -> list[Row]:
    taken = [(await ask(bench.client, 2)).first_ms for _ in range(FIRST_TOKEN_ROUNDS)]
    return [
        Row("first token, added latency p50", statistics.median(taken), "ms", 2, "lower"),
        Row("first token, added latency p99", percentile(taken, 99), "ms", 10, "lower"),
    ]


async def measured(bench: Bench, rate: float) -> tuple[Answer, float]:
    """An answer of `STREAM_SECONDS`, and what web and store took for it, in percent of a core."""
    cpu_before, began_s = cpu_seconds(bench.servers), time.perf_counter()
    answer = await ask(bench.client, round(rate * STREAM_SECONDS))
    wall_s = time.perf_counter() - began_s
    return answer, (cpu_seconds(bench.servers) - cpu_before) / wall_s * 100


async def streams(bench: Bench, rate: float) -> list[Row]:
    await ask(bench.client, round(rate))
    answer, cpu_percent = await measured(bench, rate)
    way = answer.on_the_way_ms()
    named = f"{rate:.0f} tok/s"
    return [
        Row(f"{named}: produced", answer.produced_tps, "tok/s", None, "higher"),
        Row(f"{named}: delivered / produced", answer.delivered_tps / answer.produced_tps, "ratio", 0.99, "higher"),
        Row(f"{named}: token on its way beyond the {FRAME_MS:.0f} ms frame, p50", answer.beyond_frame_ms(50), "ms", 2, "lower"),
        Row(f"{named}: token on its way beyond the {FRAME_MS:.0f} ms frame, p99", answer.beyond_frame_ms(99), "ms", 10, "lower"),
        Row(f"{named}: token on its way, framing included, p50", statistics.median(way), "ms", None, "lower"),
        Row(f"{named}: processor time of web and store", cpu_percent, "% of a core", 10 if rate <= 600 else None, "lower"),
    ]  # fmt: skip


async def main() -> None:
    rows: list[Row] = []
    for rate in RATES:
        async with bench_at(rate) as bench:
            if not rows:
                rows += await first_tokens(bench)
            rows += await streams(bench, rate)
    print_report("delivery", rows)


if __name__ == "__main__":
    asyncio.run(main())
