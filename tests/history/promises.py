"""The history checker: reports every breach of the line's nine promises (docs/architecture.md).

    breaches(history) -> what was broken, empty when the line held

The promises' numbers are those of docs/architecture.md, "The line's promises".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.history import events as e
from tests.history.checks import CHECKS, Fault, Starvation
from tests.history.pool import Generation, Pool


@dataclass(frozen=True, slots=True)
class Breach:
    promise: int
    what: str
    # where in its pool's events; None: no single one
    at: int | None = None

    def __str__(self) -> str:
        where = "" if self.at is None else f" (event {self.at})"
        return f"promise {self.promise}: {self.what}{where}"


def breaches(history: e.History) -> list[Breach]:
    found: list[Breach] = []
    pools: dict[str, Pool] = {}
    starvation: dict[str, Starvation] = {}
    for at, (name, event) in enumerate(history.events):
        faults = _check(pools, starvation, name, event)
        found += [Breach(promise, f"{name}: {what}", at) for promise, what in faults]
    for faults in (
        _runs(history),
        _tokens(history, pools),
        _readings(history, pools),
        _ends(history, pools),
    ):
        found += [Breach(promise, what) for promise, what in faults]
    return found


def assert_kept(history: e.History) -> None:
    """Fail with every breach."""
    found = breaches(history)
    assert not found, "\n".join(map(str, found))


def _check(
    pools: dict[str, Pool], starvation: dict[str, Starvation], name: str, event: e.Event
) -> list[Fault]:
    """What is wrong with this event; the pool has taken it in afterwards."""
    pool = pools.setdefault(name, Pool())
    faults: list[Fault] = []
    try:
        if check := CHECKS.get(type(event)):
            faults += check(pool, event)
        if isinstance(event, e.Opened):
            faults += _elsewhere(pools, name, event)
        if isinstance(event, e.LeaseBegan):
            faults += starvation.setdefault(name, Starvation()).lease_began(pool, event)
        pool.see(event)
    except KeyError as unknown:
        faults.append((5, f"{event} is about {unknown}, of which nothing was heard"))
    return faults


def _elsewhere(pools: Mapping[str, Pool], name: str, event: e.Opened) -> Iterator[Fault]:
    for other, pool in pools.items():
        for ticket, known in pool.tickets.items():
            if other != name and known.seat == event.seat and known.state != "ended":
                yield 3, f"{event.seat} got {event.ticket} while it had {ticket} in {other}"


def _runs(history: e.History) -> Iterator[Fault]:
    """Promises 1 and 2, by the nodes' own account."""
    fences = _grants_by_node(history)
    by_node: dict[str, list[e.Run]] = {}
    for run in sorted(history.runs, key=lambda run: run.began_us):
        by_node.setdefault(run.node, []).append(run)
    for node, runs in by_node.items():
        for one, two in pairwise(runs):
            if one.over_us is not None and two.began_us < one.over_us:
                yield 1, f"{node} ran {two.generation} beside {one.generation}"
            if two.fence <= one.fence:
                yield 2, f"{node} served fence {two.fence} after {one.fence}"
        for run in runs:
            if run.over_us is None:
                continue
            for fence in fences.get(node, ()):
                # a fence is the time of its grant in µs, or a little more
                if run.fence < fence < run.over_us:
                    yield 1, f"{node} was given fence {fence} while it ran {run.generation}"


def _grants_by_node(history: e.History) -> Mapping[str, Sequence[int]]:
    fences: dict[str, list[int]] = {}
    for _, event in history.events:
        if isinstance(event, e.Given):
            fences.setdefault(event.node, []).append(event.fence)
    return fences


def _tokens(history: e.History, pools: Mapping[str, Pool]) -> Iterator[Fault]:
    """Promise 7: no gap, no duplicate, and the text that an undisturbed run would have made."""
    for name, expected in history.expected_ids.items():
        generation = _find(pools, name)
        if generation is None:
            continue
        length = len(generation.ids)
        if generation.ids != list(expected[:length]):
            wrong = next(i for i, t in enumerate(generation.ids) if expected[i : i + 1] != [t])
            yield 7, f"{name} is not the expected text from token {wrong} on"


def _readings(history: e.History, pools: Mapping[str, Pool]) -> Iterator[Fault]:
    for reading in history.readings:
        name = f"{reading.reader} on {reading.generation}"
        generation = _find(pools, reading.generation)
        yield from _ranks(name, reading, generation)
        lasts = [i for i, one in enumerate(reading.heard) if one.name in ("done", "failed")]
        if len(lasts) > 1 or (lasts and lasts[0] != len(reading.heard) - 1):
            yield 5, f"{name} heard on behind the last event"
        if reading.stayed and not lasts:
            yield 5, f"{name} stayed and heard no last event"
        if generation is not None:
            yield from _text(name, reading, generation)


def _ranks(name: str, reading: e.Reading, generation: Generation | None) -> Iterator[Fault]:
    """Promise 4: a rank grows only with a place that was lost: a failed node, a slice's end."""
    allowed = 0 if generation is None else generation.places_lost
    states = [one.data for one in reading.heard if one.name == "state"]
    ranks = [state["rank"] for state in states if state["rank"] is not None]
    if any(rank < 1 for rank in ranks):
        yield 4, f"{name} was told rank {min(ranks)}"
    grown = [(a, b) for a, b in pairwise(ranks) if b > a]
    if len(grown) > allowed:
        yield 4, f"{name} fell back from rank {grown[-1][0]} to {grown[-1][1]}"


def _text(name: str, reading: e.Reading, generation: Generation) -> Iterator[Fault]:
    deltas = [one.data for one in reading.heard if one.name == "delta"]
    heard = "".join(data["text"] for data in deltas if data["channel"] == "text")
    written = "".join(generation.text)
    if not written.startswith(heard):
        yield 7, f"{name} heard what was not written: {_difference(heard, written)}"
    elif heard != written and reading.heard and reading.heard[-1].name == "done":
        yield 7, f"{name} heard {len(heard)} characters of {len(written)}"


def _difference(heard: str, written: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(heard, written, strict=False)) if a != b), -1)
    at = len(written) if at < 0 else at
    return f"at {at}: {heard[at : at + 20]!r}, not {written[at : at + 20]!r}"


def _ends(history: e.History, pools: Mapping[str, Pool]) -> Iterator[Fault]:
    """Promise 5: once everybody has gone, everything is over."""
    for pool_name, pool in pools.items():
        for name, generation in pool.generations.items():
            if len(generation.lasts) > 1:
                yield 5, f"{pool_name}: {name} has {len(generation.lasts)} last entries"
            over = generation.state == "ended" or generation.is_forgotten
            if history.is_whole and not over:
                yield 5, f"{pool_name}: {name} is still {generation.state}"
        for name, ticket in pool.tickets.items():
            if history.is_whole and ticket.state != "ended":
                yield 5, f"{pool_name}: {name} of {ticket.seat} is still {ticket.state}"


def _find(pools: Mapping[str, Pool], generation: str) -> Generation | None:
    for pool in pools.values():
        if generation in pool.generations:
            return pool.generations[generation]
    return None
