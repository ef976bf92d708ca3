"""What a pool looks like after some events: what the checks compare the next one with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Literal

from tests.history import events as e

# a ticket stands here while its node failed
RETURNED = "r"


@dataclass(slots=True)
class Ticket:
    seat: str
    state: Literal["new", "waiting", "granted", "ended"] = "new"
    lane: str = ""
    seq: int = 0
    node: str = ""
    # must be watched again by then; and what that was last
    kept_until_ms: float = math.inf
    promised_until_ms: float = -math.inf
    grace_ms: int = 0
    is_hidden: bool = False
    is_called: bool = False
    calls: int = 0
    is_borrowed: bool = False
    is_ending: bool = False


@dataclass(slots=True)
class Node:
    boot: str
    state: Literal["stop", "idle", "leased", "drained"] = "stop"
    ticket: str = ""
    until_ms: int = 0


@dataclass(slots=True)
class Generation:
    ticket: str
    state: Literal["queued", "assigned", "ended"] = "queued"
    node: str = ""
    fence: int = 0
    entries: int = 0
    ids: list[int] = field(default_factory=list[int])
    text: list[str] = field(default_factory=list[str])
    lasts: list[str] = field(default_factory=list[str])
    # how often its seat lost the place that this question stood on
    places_lost: int = 0
    # the store forgot it: asked again under the same id, it is another one
    is_forgotten: bool = False


class Pool:
    """Feed it with `see`. What the store forgets, this does too, all but fences and generations."""

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.nodes: dict[str, Node] = {}
        self.generations: dict[str, Generation] = {}
        self.highest_fence = 0
        self.now_ms = 0
        # races that went on at the end of the last pump though somebody waited
        self.races_in_the_way: set[str] = set()
        self.held_since_ms = -math.inf
        self.limits = e.Limits(grace_ms=0, dead_ms=0)

    def lane(self, name: str) -> list[str]:
        """The tickets that wait there, first come first."""
        waiting = [n for n, t in self.tickets.items() if t.state == "waiting" and t.lane == name]
        return sorted(waiting, key=lambda n: self.tickets[n].seq)

    def waiting(self) -> list[str]:
        return [name for name, t in self.tickets.items() if t.state == "waiting"]

    def races_kept(self) -> set[str]:
        """Races that go on though more wait than races are ending."""
        races = {n: t for n, t in self.tickets.items() if t.is_borrowed and t.state == "granted"}
        going_on = {name for name, ticket in races.items() if not ticket.is_ending}
        return going_on if len(self.waiting()) > len(races) - len(going_on) else set()

    @singledispatchmethod
    def see(self, event: e.Event) -> None:
        raise TypeError(event)

    @see.register
    def _limits(self, event: e.Limits) -> None:
        self.limits = event

    @see.register
    def _outage(self, event: e.Outage) -> None:
        self.held_since_ms = event.at_ms

    @see.register
    def _now(self, event: e.Now) -> None:
        self.now_ms = event.at_ms

    @see.register
    def _pumped(self, event: e.Pumped) -> None:
        self.races_in_the_way = self.races_kept()

    @see.register
    def _forgot(self, event: e.Forgot) -> None:
        self.tickets.clear()
        self.nodes.clear()
        self.held_since_ms = -math.inf
        for generation in self.generations.values():
            generation.is_forgotten = True

    @see.register
    def _came(self, event: e.NodeCame) -> None:
        known = self.nodes.get(event.node)
        if known is None or known.boot != event.boot:
            self.nodes[event.node] = Node(event.boot)

    @see.register
    def _reported(self, event: e.NodeReported) -> None:
        if event.node in self.nodes:
            self.nodes[event.node].until_ms = event.until_ms

    @see.register
    def _freed(self, event: e.NodeFreed) -> None:
        self.nodes[event.node].state, self.nodes[event.node].ticket = "idle", ""

    @see.register
    def _held_back(self, event: e.NodeHeldBack) -> None:
        self.nodes[event.node].state, self.nodes[event.node].ticket = "stop", ""

    @see.register
    def _drained(self, event: e.NodeDrained) -> None:
        self.nodes[event.node].state, self.nodes[event.node].ticket = "drained", ""

    @see.register
    def _hidden(self, event: e.Hidden) -> None:
        self.tickets[event.ticket].is_hidden = event.hidden

    @see.register
    def _called(self, event: e.Called) -> None:
        self.tickets[event.ticket].is_called = True
        self.tickets[event.ticket].calls += 1

    @see.register
    def _borrowed(self, event: e.Borrowed) -> None:
        self.tickets[event.ticket].is_borrowed = True

    @see.register
    def _ending(self, event: e.Ending) -> None:
        if event.ticket in self.tickets:
            self.tickets[event.ticket].is_ending = event.is_ending

    @see.register
    def _call_over(self, event: e.CallOver) -> None:
        if event.ticket in self.tickets:
            self.tickets[event.ticket].is_called = False

    @see.register
    def _gone(self, event: e.NodeGone) -> None:
        self.nodes.pop(event.node, None)

    @see.register
    def _opened(self, event: e.Opened) -> None:
        self.tickets[event.ticket] = Ticket(event.seat, grace_ms=event.grace_ms)

    @see.register
    def _stood(self, event: e.Stood) -> None:
        ticket = self.tickets[event.ticket]
        ticket.state, ticket.lane, ticket.seq, ticket.node = "waiting", event.lane, event.seq, ""
        for generation in self._of(event.ticket):
            generation.places_lost += event.lane == RETURNED

    @see.register
    def _kept(self, event: e.Kept) -> None:
        ticket = self.tickets[event.ticket]
        ticket.kept_until_ms = ticket.promised_until_ms = event.until_ms

    @see.register
    def _unkept(self, event: e.Unkept) -> None:
        if event.ticket in self.tickets:
            self.tickets[event.ticket].kept_until_ms = math.inf

    @see.register
    def _lease(self, event: e.LeaseBegan) -> None:
        ticket = self.tickets[event.ticket]
        ticket.state, ticket.node = "granted", event.node
        if event.node in self.nodes:
            node = self.nodes[event.node]
            node.state, node.ticket = "leased", event.ticket

    @see.register
    def _closed(self, event: e.Closed) -> None:
        if event.ticket in self.tickets:
            ticket = self.tickets[event.ticket]
            ticket.state, ticket.kept_until_ms = "ended", math.inf

    @see.register
    def _asked(self, event: e.Asked) -> None:
        known = self.generations.get(event.generation)
        if known is None or known.is_forgotten:
            self.generations[event.generation] = Generation(event.ticket)
        elif known.ticket != event.ticket:
            known.ticket = event.ticket
            known.places_lost += 1

    @see.register
    def _given(self, event: e.Given) -> None:
        generation = self.generations[event.generation]
        generation.state, generation.node = "assigned", event.node
        generation.fence = event.fence
        self.highest_fence = max(self.highest_fence, event.fence)

    @see.register
    def _taken_back(self, event: e.TakenBack) -> None:
        generation = self.generations[event.generation]
        generation.state, generation.fence, generation.node = "queued", 0, ""

    @see.register
    def _written(self, event: e.Written) -> None:
        generation = self.generations.get(event.generation)
        if generation is None:
            return
        generation.entries += 1
        generation.ids += event.data.get("ids", ())
        if event.kind == "delta" and event.data.get("channel", "text") == "text":
            generation.text.append(event.data.get("text", ""))
        if event.kind in ("done", "failed"):
            generation.lasts.append(event.kind)

    @see.register
    def _ended(self, event: e.Ended) -> None:
        if event.generation in self.generations:
            self.generations[event.generation].state = "ended"

    def _of(self, ticket: str) -> list[Generation]:
        return [g for g in self.generations.values() if g.ticket == ticket and g.state != "ended"]
