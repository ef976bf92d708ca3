"""A scripted node whose every token is the time at which it left the engine. For benchmarks.

    python -m tests.bench.stamped_node STORE_URL TOKENS_PER_SECOND NAME [HOW_MANY]

The time is the machine's monotonic clock in nanoseconds, which all processes share, so a client on
the same machine can tell how long each token was on its way. For each answer that was cancelled it
prints the time at which it noticed. Several nodes may share one process: what they cost is not
measured.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from uuid import uuid4

from app.line.nodes import NodeDesk
from app.line.types import NodeInfo
from app.node.agent import Agent
from app.node.kinds.scripted import Script, ScriptedKind
from app.ops import logs
from app.relay.writer import RelayWriter
from app.settings import Settings
from app.store.client import Store
from app.work import Work
from engine.card import card_to_bytes
from engine.types import Event, Finished, Step

MODEL = "stamped"


class StampedKind(ScriptedKind):
    async def generate(self, work: Work, cancel: threading.Event) -> AsyncGenerator[Event, None]:
        async with aclosing(super().generate(work, cancel)) as events:
            async for event in events:
                if isinstance(event, Step):
                    stamps = f"{time.monotonic_ns()} " * len(event.token_ids)
                    event = replace(event, text=stamps)
                elif isinstance(event, Finished) and event.finish_reason == "cancelled":
                    print(time.monotonic_ns(), flush=True)
                yield event


async def serve(store_url: str, tokens_per_second: float, name: str, how_many: int) -> None:
    script = Script(
        model=MODEL, tokens_per_second=tokens_per_second, tokens_per_step=1, answer_tokens=100_000,
        context_tokens=200_000, prefill_ms_per_token=0.01,
    )  # fmt: skip
    kind = StampedKind(script)
    card = await kind.open()
    settings = Settings(redis_url=store_url, log_level="error")
    logs.configure(settings)
    async with Store.connect(store_url) as store, asyncio.TaskGroup() as nodes:
        agents: list[Agent] = []
        for count in range(how_many):
            named = f"{name}-{count}" if count else name
            info = NodeInfo(named, uuid4().hex, named, "benchmark", "scripted", card.numerics)
            desk, writer = NodeDesk(store, MODEL, settings), RelayWriter(store, MODEL)
            agents.append(Agent(desk, writer, kind, info, settings, card_to_bytes(card)))
            nodes.create_task(agents[-1].run())

        def stop() -> None:
            for agent in agents:
                agent.stop()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]), sys.argv[3], int((*sys.argv, "1")[4])))
