"""A real line with real agents on it, in one process: what the agent's tests stand on."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from app.errors import StoreUnavailableError
from app.line.line import Line
from app.line.nodes import NodeDesk
from app.line.types import Job, NodeInfo
from app.node.agent import Agent
from app.node.kinds.base import NodeKind
from app.node.kinds.scripted import Script, ScriptedKind
from app.relay.reader import RelayReader
from app.relay.types import Entry
from app.relay.writer import RelayWriter
from app.settings import Settings
from app.store.client import Store
from app.work import Work
from engine.card import card_to_bytes
from engine.types import SamplingParams
from tests.waiting import until

POOL = "main"


def work(
    prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 50, stop: tuple[str, ...] = ()
) -> Work:
    return Work("scripted", tuple(prompt), max_tokens, SamplingParams(seed=1), stop)


def _nobody_dies() -> None:
    raise AssertionError("the engine did not stop")


@dataclass(frozen=True, slots=True)
class Place:
    """The web side's view of one pool, and one node on it."""

    store: Store
    settings: Settings
    line: Line
    reader: RelayReader

    @classmethod
    def on(cls, store: Store, **settings: object) -> Place:
        values = Settings.model_validate(settings)
        return cls(store, values, Line(store, values), RelayReader(store))

    async def ask(self, job: Work | bytes, *, seat: str = "u:1", hold: bool = False) -> str:
        """Submit; the generation's id."""
        generation = uuid.uuid4().hex
        payload = job if isinstance(job, bytes) else job.to_bytes()
        await self.line.submit(POOL, seat, Job(generation, payload, hold), tier="browser")
        return generation

    async def entries(self, generation: str) -> list[Entry]:
        return await self.reader.read(POOL, generation)

    async def ended(self, generation: str, *, within_seconds: float = 10) -> list[Entry]:
        """All entries, once the last one is there. The line is pumped meanwhile."""

        async def look() -> list[Entry]:
            await self.line.pump(POOL)
            entries = await self.entries(generation)
            return entries if entries and entries[-1].is_last else []

        return await until(look, within_seconds=within_seconds, what=f"{generation} ended")

    async def writing(self, generation: str) -> None:
        """Wait for the first token."""

        async def look() -> bool:
            return any(entry.kind == "delta" for entry in await self.entries(generation))

        await until(look, what="first token")

    async def agent(
        self,
        kind: NodeKind,
        node: str = "n1",
        *,
        die: Callable[[], None] = _nobody_dies,
        writer: RelayWriter | None = None,
    ) -> Agent:
        """A node's agent that does not run yet; opens the kind."""
        card = await kind.open()
        info = NodeInfo(node, uuid.uuid4().hex, node, "test", "scripted", card.numerics)
        desk = NodeDesk(self.store, POOL, self.settings)
        writer = writer or RelayWriter(self.store, POOL)
        return Agent(desk, writer, kind, info, self.settings, card_to_bytes(card), die)

    @asynccontextmanager
    async def node(
        self,
        kind: NodeKind | Script,
        node: str = "n1",
        *,
        die: Callable[[], None] = _nobody_dies,
        writer: RelayWriter | None = None,
    ) -> AsyncGenerator[Agent]:
        """A registered node that takes work; stopped in order at the end."""
        opened = ScriptedKind(kind) if isinstance(kind, Script) else kind
        agent = await self.agent(opened, node, die=die, writer=writer)
        running = asyncio.create_task(agent.run())
        try:
            await until(self.has_nodes, what="node registered")
            yield agent
        finally:
            agent.stop()
            agent.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await opened.close()

    async def has_nodes(self) -> bool:
        try:
            return any(pool.idle_nodes for pool in await self.line.pools())
        except StoreUnavailableError:
            return False


def text_of(entries: Sequence[Entry]) -> str:
    return "".join(entry.data["text"] for entry in entries if entry.kind == "delta")


def tokens_of(entries: Sequence[Entry]) -> list[int]:
    return [token for entry in entries if entry.kind == "delta" for token in entry.data["ids"]]
