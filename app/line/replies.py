"""From what the line's scripts return to the types that cross its door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import orjson

from app.line import eta
from app.line.types import NodePublic, NodeView, Place, SeatView, TurnState


@dataclass(frozen=True, slots=True)
class Shared:
    """What all places of one reply have in common."""

    # nodes that take work, each slot counted
    nodes: int
    # lane -> tickets waiting there
    waiting: Mapping[str, int]
    # durations of the last leases
    turns_ms: tuple[int, ...]

    def eta_seconds(self, lane: str, rank: int) -> tuple[float, float] | None:
        if eta.quartiles(self.turns_ms) is None:
            return None
        ahead = eta.position(lane, rank, self.waiting)
        return eta.wait_seconds(self.turns_ms, ahead, self.nodes)


def shared(row: Sequence[bytes]) -> Shared:
    """From `shared()` of `scripts/_places.lua`."""
    nodes, returned, priority, browser, api, *turns = (int(value) for value in row)
    waiting = {"r": returned, "priority": priority, "browser": browser, "api": api}
    return Shared(nodes=nodes, waiting=waiting, turns_ms=tuple(turns))


def place(common: Shared, row: Sequence[bytes]) -> Place:
    """From `place()` of `scripts/_places.lua`."""
    generation, state, ticket, lane, rank, behind, node, info, slice_left, *rest = (
        value.decode() for value in row
    )
    ending, queued, claim_left = rest
    return Place(
        generation=generation,
        state=cast(TurnState, state),
        ticket=ticket,
        rank=int(rank) if rank else None,
        waiting=common.waiting.get(lane, 0),
        behind_own=int(behind),
        eta_seconds=common.eta_seconds(lane, int(rank)) if rank else None,
        node=node_public(node, info),
        slice_left_seconds=_seconds(slice_left),
        ending=ending != "",
        drained=ending == "drained",
        returned=rank != "" and lane == "r",
        queued_ms=float(queued),
        claim_left_seconds=_seconds(claim_left),
    )


@dataclass(frozen=True, slots=True)
class Standings:
    """Where every waiting ticket of a pool stands at one moment."""

    shared: Shared
    # ticket -> (lane, rank)
    ranks: Mapping[str, tuple[str, int]]
    # called ticket -> seconds left to take the turn
    claims: Mapping[str, float]

    def place(self, known: Place) -> Place | None:
        """A waiting question's place as it is now, from what was known of it before.

        None: its ticket stands there no longer, so it has to be looked up. What happened to the
        seat's other questions since then is not seen.
        """
        lane, rank = self.ranks.get(known.ticket, ("", 0))
        if known.rank is None or rank == 0 or known.returned != (lane == "r"):
            return None
        waiting = self.shared.waiting[lane]
        claim_left = self.claims.get(known.ticket)
        if (rank, waiting, claim_left) == (known.rank, known.waiting, known.claim_left_seconds):
            return known
        return replace(
            known,
            rank=rank,
            waiting=waiting,
            eta_seconds=self.shared.eta_seconds(lane, rank),
            claim_left_seconds=claim_left,
        )


def standings(row: Sequence[Sequence[bytes]]) -> Standings:
    """From `scripts/lanes.lua`."""
    ranks = {
        ticket.decode(): (lane, rank)
        for lane, tickets in zip(("r", "priority", "browser", "api"), row[2:], strict=True)
        for rank, ticket in enumerate(tickets, 1)
    }
    called = iter(row[1])
    claims = {
        ticket.decode(): int(left) / 1000 for ticket, left in zip(called, called, strict=True)
    }
    return Standings(shared=shared(row[0]), ranks=ranks, claims=claims)


def seat_view(pool: str, row: Sequence[bytes]) -> SeatView:
    """From `scripts/seat.lua`."""
    if not row:
        return SeatView(state="none")
    state, generation, node, info, slice_left, *rest = (value.decode() for value in row)
    idle_left, certain, may_extend = rest
    return SeatView(
        state="holding" if state == "holding" else "busy" if state == "busy" else "waiting",
        pool=pool,
        generation=generation or None,
        node=node_public(node, info),
        slice_left_seconds=_seconds(slice_left),
        idle_left_seconds=_seconds(idle_left),
        certain_seconds=_seconds(certain),
        may_extend=may_extend == "1",
    )


def node_views(rows: Sequence[Any]) -> list[NodeView]:
    """From `scripts/nodes.lua`: slots joined to their nodes, by id."""
    ordered_out = {name.decode() for name in rows[0]}
    slots: dict[str, list[Sequence[Any]]] = {}
    for row in rows[1:]:
        slots.setdefault(row[0].decode().partition("/")[0], []).append(row)
    views: list[NodeView] = []
    for node, own in sorted(slots.items()):
        info = orjson.loads(own[0][1])
        views.append(
            NodeView(
                id=node,
                name=info["name"],
                hardware=info["hardware"],
                kind=info["kind"],
                slots=len(own),
                busy_slots=sum(row[3] != b"" for row in own),
                free_slots=sum(row[2] == b"idle" for row in own),
                drained=all(row[4] for row in own),
                ordered_out=node in ordered_out,
            )
        )
    return views


def node_public(node: str, info: str) -> NodePublic | None:
    """None without a node, or when it has left since."""
    if not node or not info:
        return None
    known = orjson.loads(info)
    return NodePublic(id=node, name=known["name"], hardware=known["hardware"])


def _seconds(ms: str) -> float | None:
    return int(ms) / 1000 if ms else None
