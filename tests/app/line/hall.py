"""A line with nodes and a clock that tests move: what most tests of the line need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import orjson

from app.line.line import Line
from app.line.nodes import NodeDesk, NodeUnknownError
from app.line.types import Assignment, Job, NodeInfo, Orders, Place, Tier
from app.relay.types import EntryKind
from app.relay.writer import RelayWriter
from app.settings import Settings
from app.store import keys
from app.store.client import Store

POOL = "m"
# Longer steps would look like an outage of the store.
LONGEST_STEP_SECONDS = 4.0


def limits(**changes: float) -> Settings:
    """Settings with their defaults and these changes, whatever the environment says.

    Nodes here write only when a test says so, which would look like standing still.
    """
    return Settings.model_validate({"stuck_seconds": 3600, **changes})


def job(generation: str, *, hold: bool = True, session: str = "") -> Job:
    payload = f"work {generation}".encode()
    return Job(generation=generation, payload=payload, hold=hold, session=session)


@dataclass(eq=False)
class FakeNode:
    """A node that runs what it is told, until a test says that it is done."""

    desk: NodeDesk
    relay: RelayWriter
    name: str
    boot: str = "boot-1"
    running: tuple[str, int] | None = None
    highest_fence: int = 0
    orders: Orders | None = None
    fences: list[int] = field(default_factory=list[int])
    numerics: str = "label"

    async def register(self) -> None:
        info = NodeInfo(
            self.name, self.boot, f"node {self.name}", "H200", "scripted", self.numerics
        )
        await self.desk.register(info, b"card")

    async def come(self) -> None:
        await self.register()
        await self.beat()

    async def beat(self) -> Orders:
        self.orders = await self.desk.heartbeat(
            self.name, self.boot, running=self.running, highest_fence=self.highest_fence
        )
        return self.orders

    async def take(self) -> Assignment | None:
        taken = await self.desk.take(self.name, self.boot)
        if taken is not None and taken.fence > self.highest_fence:
            self.running = (taken.generation, taken.fence)
            self.highest_fence = taken.fence
            self.fences.append(taken.fence)
        return taken

    async def finish(self, *, handed_over: bool = False) -> None:
        assert self.running is not None
        (generation, fence), self.running = self.running, None
        await self.desk.finished(
            self.name, self.boot, generation=generation, fence=fence, handed_over=handed_over
        )


class Hall:
    """One pool, as seen by one replica, and its nodes."""

    def __init__(self, store: Store, settings: Settings | None = None) -> None:
        self.store = store
        self.settings = settings or limits()
        self.line = Line(store, self.settings)
        self.nodes: dict[str, FakeNode] = {}
        # nodes that do not report while time passes
        self.silent: set[str] = set()
        # questions that somebody watches while time passes
        self.watched: set[str] = set()
        self._ids = count(1)

    async def node(
        self, name: str = "n1", *, pool: str = POOL, numerics: str = "label"
    ) -> FakeNode:
        desk, relay = NodeDesk(self.store, pool, self.settings), RelayWriter(self.store, pool)
        node = FakeNode(desk, relay, name, numerics=numerics)
        self.nodes[name] = node
        await node.come()
        return node

    async def ask(
        self,
        seat: str,
        *,
        tier: Tier = "browser",
        hold: bool = True,
        generation: str | None = None,
        address: str = "",
    ) -> Place:
        name = generation or f"g{next(self._ids)}"
        asked = job(name, hold=hold)
        return await self.line.submit(POOL, seat, asked, tier=tier, address=address)

    async def slots(self, name: str, count: int) -> list[FakeNode]:
        """A node that serves `count` at once."""
        names = [name, *(f"{name}/{number}" for number in range(2, count + 1))]
        return [await self.node(slot) for slot in names]

    async def ask_at_node(self, seat: str, generation: str, node: FakeNode) -> None:
        """Ask; `node`, the only free one, fetches it."""
        await self.ask(seat, generation=generation)
        await node.take()
        assert node.running is not None

    async def crash(self) -> None:
        """The node that runs something dies and is declared dead."""
        (node,) = (node for node in self.nodes.values() if node.running)
        node.running = None
        self.silent.add(node.name)
        await self.pass_time(self.settings.node_dead_seconds + 1)
        del self.nodes[node.name]

    async def failure(self, generation: str) -> dict[str, str | bool]:
        """The data of a generation's last event, which must be `failed`, and must be the only one."""
        stream = keys.generation_stream(POOL, generation)
        entries = await self.store.command("XRANGE", stream, "-", "+")
        kinds = [fields[b"k"] for _, fields in entries]
        assert [kind for kind in kinds if kind in (b"done", b"failed")] == [b"failed"], kinds
        assert kinds[-1] == b"failed"
        return orjson.loads(entries[-1][1][b"d"])

    async def place(self, generation: str) -> Place:
        return (await self.line.places(POOL, [generation], watched=False))[generation]

    async def ranks(self, generations: Sequence[str]) -> list[int | None]:
        places = await self.line.places(POOL, generations, watched=False)
        return [places[generation].rank for generation in generations]

    async def shift_clock(self, seconds: float) -> None:
        """Move the store's clock without anybody noticing in between."""
        await self.store.command("INCRBY", keys.pool_prefix(POOL) + "clock", round(seconds * 1000))

    async def pass_time(self, seconds: float) -> None:
        """Let time go by: nodes report, watchers watch, the pump runs."""
        while seconds > 0:
            step = min(seconds, LONGEST_STEP_SECONDS)
            seconds -= step
            await self.shift_clock(step)
            for node in self.nodes.values():
                if node.name not in self.silent:
                    try:
                        await node.beat()
                    except NodeUnknownError:
                        node.running = None
                        await node.come()
            if self.watched:
                await self.line.places(POOL, sorted(self.watched), watched=True)
            await self.line.pump(POOL)

    async def now_ms(self) -> int:
        seconds, micros = await self.store.command("TIME")
        shift = await self.store.command("GET", keys.pool_prefix(POOL) + "clock")
        return int(seconds) * 1000 + int(micros) // 1000 + int(shift or 0)

    async def begin_writing(self, generation: str, *, kind: EntryKind = "delta") -> None:
        """Its node reads (`reading`) or has its first token (`delta`)."""
        node = self._runner(generation)
        await node.relay.append(generation, node.highest_fence, [(kind, {})])

    async def write_end(self, generation: str) -> None:
        """Its node ends a generation in order."""
        node = self._runner(generation)
        await node.relay.end(generation, node.highest_fence, "done", {})

    def _runner(self, generation: str) -> FakeNode:
        return next(n for n in self.nodes.values() if n.running and n.running[0] == generation)
