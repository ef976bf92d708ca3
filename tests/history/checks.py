"""What every single event of the store must be like: promises 1 to 3, 6, 8 and 9 of the line.

Each check gets the pool as it was before the event, and yields (promise, what is wrong).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tests.history import events as e
from tests.history.pool import RETURNED, Pool

Fault = tuple[int, str]
# Reaping is done in portions of 100 and a ticket's end is some fifteen writes; a step that makes
# more than this has a loop without a bound.
MOST_WRITES = 4000
# What is overdue may wait for the next portion.
SLACK_MS = 2000
# Watchers report at least every 5 s; after this nobody seems to be there. Who is not is called twice.
UNWATCHED_MS = 9900
CALLS = 2
# The smallest share of a tier is 2 grants of 11.
MOST_BYPASSES = 11


def lease_began(pool: Pool, event: e.LeaseBegan) -> Iterator[Fault]:
    node, ticket = pool.nodes.get(event.node), pool.tickets[event.ticket]
    if node is None:
        yield 1, f"{event.ticket} got {event.node}, which is not there"
    elif node.state == "leased":
        yield 1, f"{event.ticket} got {event.node}, which {node.ticket} holds"
    elif node.state == "drained":
        yield 1, f"{event.ticket} got {event.node}, which is out of service"
    elif node.state == "stop":
        yield 1, f"{event.ticket} got {event.node}, which had not said that nothing runs"
    if ticket.state != "waiting":
        yield 3, f"{event.ticket} was {ticket.state} when it got {event.node}"
        return
    lane = pool.lane(ticket.lane)
    for ahead in lane[: lane.index(event.ticket)]:
        if not pool.tickets[ahead].is_called:
            yield 3, f"{event.ticket} got {event.node} before {ahead}, which came first"
    if ticket.lane != RETURNED and pool.lane(RETURNED):
        yield 3, f"{event.ticket} got {event.node} before one whose node had failed"


def given(pool: Pool, event: e.Given) -> Iterator[Fault]:
    generation, node = pool.generations[event.generation], pool.nodes.get(event.node)
    if event.fence <= pool.highest_fence:
        yield 2, f"fence {event.fence} came after {pool.highest_fence}"
    if node is None or node.ticket != generation.ticket:
        yield 1, f"{event.generation} was given to {event.node} without a lease"
    for name, other in pool.generations.items():
        if other.state == "assigned" and other.node == event.node and not other.is_forgotten:
            yield 1, f"{event.generation} was given to {event.node} beside {name}"
    if generation.state != "queued":
        yield 2, f"{event.generation} was given to a node while {generation.state}"
    if event.length != generation.entries:
        yield (
            7,
            (f"{event.generation} went on behind {event.length} entries of {generation.entries}"),
        )


def written(pool: Pool, event: e.Written) -> Iterator[Fault]:
    generation = pool.generations.get(event.generation)
    if generation is None:
        yield 2, f"an entry was written into {event.generation}, which nobody asked"
    elif generation.state == "ended":
        yield 2, f"{event.kind} was written into {event.generation} after its end"
    elif generation.lasts:
        yield 5, f"{event.kind} was written into {event.generation} behind its last entry"
    elif event.kind == "failed":
        return  # the line itself may end any question
    elif generation.state != "assigned":
        yield 2, f"{event.kind} was written into {event.generation}, which no node has"
    elif event.fence is not None and event.fence != generation.fence:
        yield (
            2,
            (
                f"{event.generation} took {event.kind} of fence {event.fence}, "
                f"not {generation.fence}"
            ),
        )


def opened(pool: Pool, event: e.Opened) -> Iterator[Fault]:
    for name, ticket in pool.tickets.items():
        if ticket.seat == event.seat and ticket.state != "ended":
            yield 3, f"{event.seat} got {event.ticket} while it had {name}"
    if not pool.nodes and not any(t.seat == event.seat for t in pool.tickets.values()):
        yield 8, f"{event.seat} was let into a line that has no node"


def stood(pool: Pool, event: e.Stood) -> Iterator[Fault]:
    ticket = pool.tickets[event.ticket]
    if ticket.state in ("waiting", "ended"):
        yield 3, f"{event.ticket} was {ticket.state} and stood in {event.lane} again"
    for name in pool.lane(event.lane):
        if pool.tickets[name].seq >= event.seq:
            yield 3, f"{event.ticket} stood before {name}, which was there"


def called(pool: Pool, event: e.Called) -> Iterator[Fault]:
    """Only who is not there is passed over."""
    ticket = pool.tickets[event.ticket]
    seen_ms = ticket.promised_until_ms - ticket.grace_ms
    if not ticket.is_hidden and pool.now_ms - seen_ms < UNWATCHED_MS:
        yield 3, f"{event.ticket} was passed over though somebody was there"


def closed(pool: Pool, event: e.Closed) -> Iterator[Fault]:
    """Only being away, or not to be found when the turn comes, is nobody's own act; it needs a whole grace, and one after an outage."""
    ticket = pool.tickets[event.ticket]
    if event.reason == "unclaimed" and ticket.calls < CALLS:
        yield 3, f"{event.ticket} lost its place after {ticket.calls} calls"
    if event.reason != "away" or ticket.state != "waiting":
        return
    early_ms = ticket.promised_until_ms - pool.now_ms
    if early_ms > 0:
        yield 3, f"{event.ticket} lost its place {early_ms:.0f} ms early"
    if pool.held_since_ms + pool.limits.grace_ms > pool.now_ms:
        yield 8, f"{event.ticket} lost its place by an outage"


def ended(pool: Pool, event: e.Ended) -> Iterator[Fault]:
    generation = pool.generations.get(event.generation)
    if generation is not None and not generation.lasts:
        yield 5, f"{event.generation} ended without a last entry"


def pumped(pool: Pool, event: e.Pumped) -> Iterator[Fault]:
    now_ms, limits = event.at_ms, pool.limits
    if event.writes > MOST_WRITES:
        yield 6, f"one step made {event.writes} writes"
    free = [n for n, node in pool.nodes.items() if node.state == "idle" and node.until_ms > now_ms]
    if free and (waiting := pool.waiting()):
        yield 8, f"{waiting[0]} waits beside {free[0]}, which is free"
    # a ticket that this very step put in line is seen by the next
    for name in pool.races_in_the_way & pool.races_kept():
        yield 3, f"{name} had only borrowed its node and kept it from those who wait"
    if now_ms >= pool.held_since_ms + limits.grace_ms:
        for name, ticket in pool.tickets.items():
            if ticket.kept_until_ms + SLACK_MS < now_ms:
                yield 9, f"{name} still had its place {now_ms - ticket.kept_until_ms:.0f} ms late"
    if now_ms >= pool.held_since_ms + 2 * limits.dead_ms:
        for name, node in pool.nodes.items():
            if node.until_ms + SLACK_MS < now_ms:
                yield 9, f"{name} had been silent for too long and was still there"


class Starvation:
    """Promise 3: no tier with somebody in it is passed over for longer than its share."""

    def __init__(self) -> None:
        self._bypassed: dict[str, int] = {}

    def lease_began(self, pool: Pool, event: e.LeaseBegan) -> Iterator[Fault]:
        lane = pool.tickets[event.ticket].lane
        if lane == RETURNED:
            return
        waiting = {pool.tickets[name].lane for name in pool.waiting()} - {RETURNED}
        for name in waiting | {lane}:
            passed = self._bypassed.get(name, 0) + 1 if name != lane else 0
            self._bypassed[name] = passed
            if passed > MOST_BYPASSES:
                yield 3, f"lane {name} was passed over {passed} times"
        self._bypassed = {name: n for name, n in self._bypassed.items() if name in waiting | {lane}}


CHECKS: Mapping[type, Callable[..., Iterator[Fault]]] = {
    e.LeaseBegan: lease_began,
    e.Given: given,
    e.Written: written,
    e.Opened: opened,
    e.Stood: stood,
    e.Called: called,
    e.Closed: closed,
    e.Ended: ended,
    e.Pumped: pumped,
}
