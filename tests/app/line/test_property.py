"""Anything may happen in any order; the invariants hold after every step."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from app.errors import (
    AddressFullError,
    FencedError,
    LineFullError,
    NoLeaseError,
    OthersWaitError,
    PoolEmptyError,
    RaceBusyError,
    TooManyQuestionsError,
)
from app.line.line import Line
from app.line.nodes import NodeUnknownError
from app.line.types import CancelReason, Place, Tier
from app.store import keys
from app.store.client import Store
from tests.app.line import picture as pictures
from tests.app.line.hall import POOL, FakeNode, Hall, job, limits
from tests.app.line.picture import Picture

T = TypeVar("T")

LIMITS = limits(
    slice_seconds=16,
    slice_extensions=1,
    idle_limit_seconds=6,
    reconnect_grace_seconds=14,
    claim_seconds=7,
    answer_cap_seconds=5,
    node_dead_seconds=5,
    stuck_seconds=20,
    rescue_seconds=8,
    max_waiting=4,
    max_waiting_per_address=2,
    max_questions_per_seat=3,
)
LIMITS_MS = {
    "grace": 14_000,
    "claim": 7_000,
    "idle": 6_000,
    "slice": 16_000,
    "dead": 5_000,
    "stop": 10_000,
    "stuck": 20_000,
    "rescue": 8_000,
    "cap": 5_000,
}
SEATS: dict[str, tuple[Tier, bool]] = {
    "boss": ("priority", True),
    "ann": ("browser", True),
    "bob": ("browser", True),
    "cid": ("browser", True),
    "dan": ("browser", True),
    "bot": ("api", False),
    "bot2": ("api", False),
}
# who share one address
HOME = ("ann", "bob", "cid")
# n2 serves two at once
NODES = ("n1", "n2", "n2/2", "n3")
FROZEN_US = 1_800_000_000_000_000
# walks of up to 40 steps: a fixed 120 where the tests are run; in `make soak-line` new ones, until
# so many steps were made
EXAMPLES = 120
SOAK_STEPS = int(os.environ.get("SOAK_STEPS", "0"))
REFUSALS = (AddressFullError, LineFullError, PoolEmptyError, TooManyQuestionsError)
REASONS: tuple[CancelReason, ...] = ("stopped", "gone", "admin")

seats = st.sampled_from(sorted(SEATS))
nodes = st.sampled_from(NODES)
picks = st.integers(0, 30)


class LineMachine(RuleBasedStateMachine):
    url: ClassVar[str]
    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.store: Store = self.run(self.stack.enter_async_context(Store.connect(self.url)))
        self.run(self.store.command("FLUSHALL"))
        # time stands still but for what the rules do, so an example can be run again
        self.run(self.store.command("SET", keys.pool_prefix(POOL) + "frozen", FROZEN_US))
        self.hall = Hall(self.store, LIMITS)
        # three replicas, each with its own way to the store, used in turn and at once
        self.lines = [self.hall.line, self.run(self.replica()), self.run(self.replica())]
        self.asked: list[str] = []
        self.absent: set[str] = set()
        # seats whose page is behind another, and all who may not have been looking in this step
        self.hidden: set[str] = set()
        self.away: set[str] = set()
        # reports on their way: (node, running, highest fence)
        self.late: list[tuple[FakeNode, tuple[str, int] | None, int]] = []
        self.before: Picture = self.run(Picture.take(self.store, POOL))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def replica(self) -> Line:
        return Line(await self.stack.enter_async_context(Store.connect(self.url)), LIMITS)

    def teardown(self) -> None:
        try:
            if self.hall.nodes:
                self.run(self.drain())
        finally:
            self.run(self.stack.aclose())
            self.runner.close()

    @initialize()
    def come(self) -> None:
        for name in NODES[:3]:
            self.run(self.hall.node(name))

    # -- people -----------------------------------------------------------------------------------

    @rule(who=st.lists(seats, min_size=1, max_size=5), again=st.booleans())
    def ask(self, who: list[str], again: bool) -> None:
        for seat in who:
            self.next_replica()
            name = f"{seat}-{len(self.asked)}"
            try:
                place = self.run(self.ask_once(seat, name))
            except REFUSALS:
                continue
            self.asked.append(name)
            self.look()
            if again:
                second = self.run(self.ask_once(seat, name))
                assert (second.ticket, second.rank) == (place.ticket, place.rank)

    @rule(who=st.lists(seats, min_size=2, max_size=4))
    def ask_at_once(self, who: list[str]) -> None:
        """Over all replicas at the same moment: their steps mix as they like."""
        asks = {f"{seat}-{len(self.asked) + i}": seat for i, seat in enumerate(who)}
        came = self.run(self.together(asks))
        for name, outcome in zip(asks, came, strict=True):
            if isinstance(outcome, Place):
                self.asked.append(name)
            elif not isinstance(outcome, REFUSALS):
                raise AssertionError(f"{name} ended in {outcome!r}")
        self.look()

    async def together(self, asks: dict[str, str]) -> list[Place | BaseException]:
        return await asyncio.gather(
            *(
                self.lines[i % len(self.lines)].submit(
                    POOL, seat, job(name, hold=SEATS[seat][1]), tier=SEATS[seat][0]
                )
                for i, (name, seat) in enumerate(asks.items())
            ),
            return_exceptions=True,
        )

    def next_replica(self) -> None:
        self.lines.append(self.lines.pop(0))
        self.hall.line = self.lines[0]

    async def ask_once(self, seat: str, name: str) -> Place:
        tier, hold = SEATS[seat]
        address = "home" if seat in HOME else ""
        return await self.hall.ask(seat, tier=tier, hold=hold, generation=name, address=address)

    def look(self) -> None:
        """Everybody but the absent watches all of their questions while time passes."""
        self.hall.watched = {n for n in self.asked if n.split("-")[0] not in self.absent}

    @precondition(lambda self: self.asked)
    @rule(pick=picks, reason=st.sampled_from(REASONS))
    def cancel(self, pick: int, reason: CancelReason) -> None:
        self.next_replica()
        generation = self.asked[-1 - pick % len(self.asked)]
        self.run(self.hall.line.cancel(POOL, generation, reason))

    @rule(seat=seats)
    def leave(self, seat: str) -> None:
        self.next_replica()
        self.run(self.hall.line.leave(seat))

    @rule(absent=st.sets(seats, max_size=3))
    def go_away(self, absent: set[str]) -> None:
        """From now on exactly these seats do not watch."""
        self.away |= self.absent
        self.absent = absent
        self.look()

    @rule(seat=seats, hidden=st.booleans())
    def turn_to(self, seat: str, hidden: bool) -> None:
        """The page comes to the front, or goes behind another."""
        self.away |= self.hidden
        self.hidden = self.hidden | {seat} if hidden else self.hidden - {seat}
        self.run(self.hall.line.presence(seat, hidden=hidden))

    @rule(seat=st.sampled_from(["bot", "bot2", "ann"]), session=st.sampled_from(["s", "end"]))
    def call_in_a_session(self, seat: str, session: str) -> None:
        name = f"{seat}-{len(self.asked)}"
        asked = job(name, hold=False, session=session)
        try:
            self.run(self.hall.line.submit(POOL, seat, asked, tier="api"))
        except REFUSALS:
            return
        self.asked.append(name)
        self.look()

    @rule(seat=seats)
    def end_session(self, seat: str) -> None:
        self.run(self.hall.line.end_session(seat, "s"))

    @rule(seat=seats)
    def race(self, seat: str) -> None:
        name = f"{seat}~race-{len(self.asked)}"
        with suppress(*REFUSALS, RaceBusyError):
            self.run(self.hall.line.borrow(POOL, seat, job(name), tier="browser"))
            self.asked.append(name)
            self.look()

    @rule(seat=seats)
    def extend(self, seat: str) -> None:
        with suppress(NoLeaseError, OthersWaitError):
            self.run(self.hall.line.extend(seat))

    # -- nodes ------------------------------------------------------------------------------------

    async def report(self, node: FakeNode) -> None:
        """A heartbeat, and what a node does about the answer."""
        try:
            orders = await node.beat()
        except NodeUnknownError:
            await node.register()  # what it runs it stops only when the next answer says so
            return
        if node.running and (orders.generation, orders.fence) != node.running:
            node.running = None

    @rule(name=nodes)
    def beat(self, name: str) -> None:
        if name in self.hall.nodes:
            self.run(self.report(self.hall.nodes[name]))
        else:
            self.run(self.hall.node(name))

    @rule(name=nodes, reply_is_lost=st.sampled_from([False, False, False, True]))
    def take(self, name: str, reply_is_lost: bool) -> None:
        if (node := self.hall.nodes.get(name)) is None:
            return
        if reply_is_lost:
            self.run(node.desk.take(node.name, node.boot))
        else:
            self.run(node.take())
        self.run(self.hall.line.pump(POOL))

    @rule(name=nodes, kinds=st.lists(st.sampled_from(["delta", "reading"]), max_size=2))
    def work(self, name: str, kinds: list[Any]) -> None:
        """Report, fetch what there is, and write a little."""
        if (node := self.hall.nodes.get(name)) is None:
            return
        self.run(self.report(node))
        self.run(node.take())
        for kind in sorted(kinds, reverse=True):
            if node.running:
                try:
                    self.run(node.relay.append(*node.running, [(kind, {})]))
                except FencedError:
                    node.running = None
        self.run(self.hall.line.pump(POOL))

    @rule(name=nodes, in_order=st.sampled_from([True, True, False]), is_heard=st.booleans())
    def finish(self, name: str, in_order: bool, is_heard: bool) -> None:
        node = self.hall.nodes.get(name)
        if not node or not node.running:
            return
        if in_order:
            # fenced: somebody else has it; the node stops all the same
            with suppress(FencedError):
                self.run(node.relay.end(*node.running, "done", {}))
        if is_heard or not in_order:
            self.run(node.finish())
        else:
            node.running = None

    @rule(name=nodes)
    def hand_over(self, name: str) -> None:
        node = self.hall.nodes.get(name)
        if node and node.running:
            self.run(node.finish(handed_over=True))

    @rule(name=nodes)
    def delay_a_report(self, name: str) -> None:
        if node := self.hall.nodes.get(name):
            self.late.append((node, node.running, node.highest_fence))

    @precondition(lambda self: self.late)
    @rule()
    def deliver_a_report(self) -> None:
        node, running, highest = self.late.pop(0)
        with suppress(NodeUnknownError):  # its answer goes nowhere
            self.run(
                node.desk.heartbeat(node.name, node.boot, running=running, highest_fence=highest)
            )

    @rule(name=nodes, kind=st.sampled_from(["crash", "restart", "depart", "silence", "noise"]))
    def trouble(self, name: str, kind: str) -> None:
        if kind in ("crash", "restart"):
            self.crash(name, kind == "restart")
        elif kind == "depart":
            self.depart(name)
        else:
            self.hall.silent = {name} if kind == "silence" else set()

    def crash(self, name: str, comes_back: bool) -> None:
        if node := self.hall.nodes.get(name):
            node.boot, node.running = node.boot + "+", None
            self.late = [late for late in self.late if late[0] is not node]
            if comes_back:
                self.run(node.come())

    @rule(name=st.sampled_from(["n1", "n2", "n3"]), out=st.booleans())
    def operate(self, name: str, out: bool) -> None:
        """An operator takes a node out of service, or back."""
        self.run(self.hall.line.drain(POOL, name, out=out))

    @rule(name=nodes)
    def hear_of_its_end(self, name: str) -> None:
        """A node is told to stop, and says so; it leaves later, or is restarted."""
        if node := self.hall.nodes.get(name):
            self.run(node.desk.drain(node.name, node.boot))

    def depart(self, name: str) -> None:
        node = self.hall.nodes.get(name)
        if node and not node.running:
            self.run(node.desk.leave(node.name, node.boot))

    # -- time -------------------------------------------------------------------------------------

    async def let_pass(self, seconds: float) -> None:
        self.late.clear()  # no report is on its way for seconds
        await self.hall.shift_clock(seconds)
        for node in self.hall.nodes.values():
            if node.name not in self.hall.silent:
                await self.report(node)
        if self.hall.watched:
            await self.hall.line.places(POOL, sorted(self.hall.watched), watched=True)
        await self.hall.line.pump(POOL)

    @rule(seconds=st.sampled_from([0.5, 1, 2, 4]), times=st.integers(1, 5))
    def step(self, seconds: float, times: int) -> None:
        for _ in range(times):
            self.run(self.let_pass(seconds))
            # a ticket may be granted, lose its node and stand again within one rule
            self.all_is_in_order()

    @rule(seconds=st.integers(6, 300))
    def outage(self, seconds: int) -> None:
        """I12: whoever had a place when the store went away has it when it comes back."""
        self.late.clear()
        live = self.run(Picture.take(self.store, POOL)).live()
        self.run(self.hall.shift_clock(seconds))
        self.run(self.hall.line.pump(POOL))
        assert self.run(Picture.take(self.store, POOL)).live() == live

    async def drain(self) -> None:
        """I10: with everybody gone and half of the nodes silent, everything ends by itself."""
        self.hall.watched, self.hall.silent = set(), {"n2"}
        for _ in range(24):
            await self.let_pass(4)
            for node in self.hall.nodes.values():
                if node.running and node.orders and node.orders.cancel and node.name != "n2":
                    with suppress(FencedError):  # given up on meanwhile
                        await node.relay.end(*node.running, "done", {})
                    await node.finish()
        end = await Picture.take(self.store, POOL)
        assert end.live() == set()
        assert {g["state"] for g in end.all("g").values()} <= {"ended"}
        pictures.check_generations(end)

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def all_is_in_order(self) -> None:
        LineMachine.steps += 1
        after = self.run(Picture.take(self.store, POOL))
        pictures.check_tickets(after)
        pictures.check_addresses(after)
        pictures.check_leases(after)
        pictures.check_generations(after)
        pictures.check_deadlines(after, LIMITS_MS)
        pictures.check_flow(after, LIMITS_MS)
        pictures.check_step(self.before, after, self.away | self.hidden | self.absent)
        self.before, self.away = after, self.hidden | self.absent

    @invariant()
    def no_node_is_given_work_while_it_runs_something_else(self) -> None:
        """I2, looking at the nodes themselves and not at what the store believes."""
        for name, n in self.before.all("n").items():
            node = self.hall.nodes[name]
            if n["boot"] != node.boot or node.running is None:
                continue
            assert n["state"] != "idle", f"{name} is free but runs {node.running}"
            if n["generation"] and n["fence"] != n.get("taken"):
                raise AssertionError(f"{name} runs {node.running} and was given more")


def walk(examples: int, *, fixed: bool) -> None:
    run_state_machine_as_test(
        LineMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=fixed,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            phases=[Phase.generate, Phase.shrink],
            database=None,
        ),
    )


# shrinking a fault to its smallest walk takes many runs
@pytest.mark.timeout(100_000 if SOAK_STEPS else 300)
def test_the_line_keeps_its_promises_whatever_happens(
    valkey_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if SOAK_STEPS:
        # hours on a busy machine: a store that comes late is not what is tested
        monkeypatch.setattr("app.store.pipeline.CONNECT_SECONDS", 60.0)
        monkeypatch.setattr("app.store.client.CALL_SECONDS", 60.0)
    LineMachine.url, LineMachine.steps = valkey_url, 0
    if not SOAK_STEPS:
        walk(EXAMPLES, fixed=True)
    began_s = time.monotonic()
    # in portions: hypothesis remembers every walk of one run
    while LineMachine.steps < SOAK_STEPS:
        walk(500, fixed=False)
        with capsys.disabled():
            print(f"{LineMachine.steps:,} steps, {time.monotonic() - began_s:.0f} s", flush=True)  # noqa: T201 hours pass
