"""One turn as its watcher sees it: places and stream entries go in, events come out. Pure.

No clock is read and nothing is awaited here. All times are milliseconds on the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from app.chat.events import (
    Delta,
    Event,
    Moved,
    NodeShown,
    Phase,
    PromptProgress,
    Rate,
    State,
    done_from,
    failed_from,
)
from app.line.types import Place
from app.relay.types import Entry
from engine.metrics import Gauge
from engine.types import TokenLogprobs

# An event and its place in the stream; None for events that have none.
Told = tuple[str | None, Event]

START = "0-0"
RATE_EVERY_MS = 100.0
# a little less than the 5 s promised, so that a late loop still keeps them
STATE_EVERY_MS = 4500.0
# numbers that others move (how many wait, the wait to expect) are told this often at most
SLOW_STATE_MS = 1000.0

# phases that only a node's work brings about
_AT_NODE: tuple[Phase, ...] = ("reading", "answering")
_RETURNED = "Your node is gone. You are first in line for the next one."
_CLAIM = (
    "It is your turn, and nobody seems to be here. Say that you are, or the turn goes to others."
)
_ENDING = "Your time is over and others wait. This answer may finish; then the node moves on."
_DRAINED = (
    "Your node is being taken out of service. This answer may finish; "
    "what you have asked since goes first at the next node."
)


class NodeTime:
    """Maps node times (ms since the request reached the node) to the store's clock.

    An entry reaches the store a little after the node's time of its last token, never before, so
    the smallest difference seen is the truest. Another node's times begin anew.
    """

    __slots__ = ("_first_zero_ms", "_shift_ms", "_zero_ms")

    def __init__(self) -> None:
        # store time - node time, of the node that writes now
        self._zero_ms: float | None = None
        # the first node's zero: times of all nodes are given from there
        self._first_zero_ms: float | None = None
        self._shift_ms = 0.0

    def moved(self) -> None:
        self._zero_ms = None

    def see(self, entry: Entry, t_ms: float) -> None:
        zero_ms = entry.store_ms - t_ms
        if self._zero_ms is None:
            if self._first_zero_ms is None:
                self._first_zero_ms = zero_ms
            else:
                self._shift_ms = zero_ms - self._first_zero_ms
            self._zero_ms = zero_ms
        self._zero_ms = min(self._zero_ms, zero_ms)

    def common(self, t_ms: float) -> float:
        """A node time on the one scale that all nodes of this turn share."""
        return t_ms + self._shift_ms

    def now(self, store_ms: float) -> float:
        """The store's time on that scale."""
        return store_ms - (self._zero_ms or 0.0) + self._shift_ms


class Story:
    """Feed it with `see` and `take`; ask it with `due`."""

    # thousands of these wait at once
    __slots__ = (
        "_after", "_answering", "_gauge", "_moved", "_place", "_pool", "_prompt", "_rate_ms",
        "_shown", "_state_ms", "_time", "_tokens", "_trouble", "_version", "_withheld", "_wrote",
        "over", "read_to",
    )  # fmt: skip

    def __init__(self, pool: str, after: str = START) -> None:
        self._pool = pool
        self._after = position(after)
        self._place: Place | None = None
        self._prompt: PromptProgress | None = None
        # tokens came from the node that wrote last, and it has the answer still
        self._wrote = False
        self._answering = False
        self._moved: Moved | None = None
        self._trouble: str | None = None
        self._time = NodeTime()
        # made with the first token: thousands of stories only wait
        self._gauge: Gauge | None = None
        self._tokens = 0
        # where reading goes on, and whether the last event was told
        self.read_to = START
        self.over = False
        self._version = 0
        self._shown: tuple[tuple[object, ...], tuple[object, ...]] | None = None
        self._state_ms = 0.0
        # a change of what others move waits for its second to be over
        self._withheld = False
        self._rate_ms = 0.0

    @property
    def began(self) -> bool:
        """Whether anything of the answer's stream was read."""
        return self.read_to != START

    # -- what comes in ----------------------------------------------------------------------------
    def trouble(self, reason: str | None) -> None:
        """The store is out of reach (a sentence), or is back (None)."""
        self._trouble = reason

    def see(self, place: Place | None) -> None:
        """The place may be older than the entries taken: it is asked for in rounds."""
        before, self._place = self._place, place or self._place
        if place is None or before is None or before.state != "assigned":
            return
        if place.state == "queued" or before.node != place.node:
            # its node failed; the next one reads the prompt again
            self._prompt, self._answering = None, False

    def take(self, entries: Sequence[Entry]) -> list[Told]:
        """The entries' events, those up to `after` left out.

        Pieces of one channel that were read together are told as one. A stream's last event is
        told even if it is not new: a watcher always gets one.
        """
        told: list[Told] = []
        joined: list[Entry] = []
        for entry in entries:
            self.read_to = entry.id
            new = position(entry.id) > self._after
            if entry.kind == "delta":
                self._count(entry)
                if joined and _is_apart(joined[-1], entry):
                    told.append(self._piece(joined))
                    joined = []
                if new:
                    joined.append(entry)
            elif entry.kind == "reading":
                self._read_prompt(entry)
            if entry.is_last:
                self.over = True
                break
        if joined:
            told.append(self._piece(joined))
        if self.over:
            told.append((self.read_to, last_event(entries)))
        return told

    def _count(self, entry: Entry) -> None:
        data = entry.data
        self._time.see(entry, data["t_ms"])
        self._tokens += data["n"]
        gauge = self._gauge = self._gauge or Gauge()
        for t_ms, n in data.get("steps") or [[data["t_ms"], data["n"]]]:
            gauge.add(self._time.common(t_ms), n)
        self._wrote = self._answering = True

    def _piece(self, entries: Sequence[Entry]) -> Told:
        last = entries[-1].data
        at_ms = self._time.common(last["t_ms"])
        began_ms = self._gauge.first_ms if self._gauge else None
        first_ms = at_ms if began_ms is None else began_ms
        piece = Delta(
            text="".join(entry.data["text"] for entry in entries),
            channel=last["channel"],
            n=sum(entry.data["n"] for entry in entries),
            t_ms=round(max(0.0, at_ms - first_ms), 3),
            logprobs=tuple(one for entry in entries for one in _logprobs(entry)),
            tail=tuple((channel, text) for channel, text in last.get("tail", ())),
        )
        return entries[-1].id, piece

    def _read_prompt(self, entry: Entry) -> None:
        data = entry.data
        if self._wrote or "exact" in data:
            # nobody reads the prompt again but another node
            self._time.moved()
            self._moved = Moved(self._tokens, bool(data.get("exact")))
        self._wrote = self._answering = False
        self._prompt = PromptProgress(data["done"], data["total"], data["cached"])

    # -- what goes out ----------------------------------------------------------------------------
    def due(self, store_ms: float) -> Iterable[Event]:
        """The state if it is new or old enough, and the rate if it is time for one."""
        state = self._state(store_ms)
        if state is not None:
            yield state
        if self._gauge and self._tokens and store_ms - self._rate_ms >= RATE_EVERY_MS:
            # counted from the plan, not from now, so that a late loop does not slow the rate down
            late = store_ms - self._rate_ms >= 2 * RATE_EVERY_MS
            self._rate_ms = store_ms if late else self._rate_ms + RATE_EVERY_MS
            yield self._rate(self._gauge, store_ms)

    def _rate(self, gauge: Gauge, store_ms: float) -> Rate:
        live = gauge.live(self._time.now(store_ms))
        speed = gauge.speed()
        return Rate(
            live=None if live is None else round(live, 2),
            tokens=self._tokens,
            average=round(speed.average, 2) or None,
            peak=round(speed.peak, 2) or None,
        )

    def next_in(self, store_ms: float) -> float:
        """Milliseconds until something is due by the clock alone."""
        state_every_ms = SLOW_STATE_MS if self._withheld else STATE_EVERY_MS
        left_ms = self._state_ms + state_every_ms - store_ms
        if self._tokens:
            left_ms = min(left_ms, self._rate_ms + RATE_EVERY_MS - store_ms)
        return max(0.0, left_ms)

    @property
    def waits(self) -> bool:
        """Whether nothing can be in the stream yet, as far as the line says."""
        return self._place is not None and self._place.state == "queued" and not self.began

    def _phase(self) -> Phase | None:
        """None: nothing can be said yet, or nothing any more."""
        place = self._place
        if place is None:
            return "waiting" if self._trouble else None
        if place.state == "queued" and place.returned:
            return "lost"
        if place.state == "queued" and place.claim_left_seconds is not None:
            return "claim"
        if place.ending:
            return "ending"
        if self._answering:
            return "answering"
        if self._prompt is not None:
            return "reading"
        if place.state == "ended":
            return None
        return "waiting" if place.state == "queued" else "allocating"

    def _is_late(self, phase: Phase, place: Place | None) -> bool:
        """Whether the stream is ahead of the place, which then tells of a rank and of no node. The
        next round brings the right one within a moment, unless the store is in trouble."""
        queued = place is not None and place.state == "queued"
        return queued and phase in _AT_NODE and self._trouble is None

    def _reason(self, phase: Phase) -> str | None:
        ending = _DRAINED if self._place and self._place.drained else _ENDING
        reasons = {"lost": _RETURNED, "claim": _CLAIM, "ending": ending}
        return self._trouble or reasons.get(phase)

    def _state(self, store_ms: float) -> State | None:
        phase = self._phase()
        if phase is None:
            return None
        place = self._place
        if self._is_late(phase, place):
            # nothing is due by the clock until the place has come
            self._state_ms = max(self._state_ms, store_ms - STATE_EVERY_MS + SLOW_STATE_MS)
            return None
        shown = (self._at_once(phase, place), _slowly(place))
        age_ms = store_ms - self._state_ms
        same = self._shown is not None and shown[0] == self._shown[0]
        self._withheld = same and shown != self._shown and age_ms < SLOW_STATE_MS
        if same and age_ms < (SLOW_STATE_MS if shown != self._shown else STATE_EVERY_MS):
            return None
        self._shown, self._state_ms = shown, store_ms
        # the store's clock makes versions grow over reconnects and replicas
        self._version = max(self._version + 1, int(store_ms))
        node = place.node if place else None
        return State(
            version=self._version,
            phase=phase,
            rank=place.rank if place and phase not in _AT_NODE else None,
            waiting=place.waiting if place else 0,
            behind_own=place.behind_own if place else 0,
            eta=place.eta_seconds if place else None,
            pool=self._pool,
            node=NodeShown(node.name, node.hardware) if node else None,
            slice_left_seconds=place.slice_left_seconds if place else None,
            prompt=self._prompt,
            moved=self._moved,
            reason=self._reason(phase),
            claim_left_seconds=place.claim_left_seconds if place else None,
        )

    def _at_once(self, phase: Phase, place: Place | None) -> tuple[Any, ...]:
        """What is told in the moment it changes."""
        known = (
            (place.rank, place.behind_own, place.node, place.slice_left_seconds is None)
            if place
            else ()
        )
        return phase, self._prompt, self._moved, self._reason(phase), *known


def _slowly(place: Place | None) -> tuple[Any, ...]:
    if place is None:
        return ()
    eta = place.eta_seconds
    return place.waiting, eta and (round(eta[0]), round(eta[1]))


def _is_apart(before: Entry, entry: Entry) -> bool:
    """Whether two frames cannot be told as one piece."""
    return before.data["channel"] != entry.data["channel"] or "tail" in before.data


def _logprobs(entry: Entry) -> Iterable[tuple[int, TokenLogprobs]]:
    told = entry.data.get("logprobs")
    if told:
        for token_id, (logprob, top) in zip(entry.data["ids"], told, strict=True):
            yield token_id, TokenLogprobs(logprob, tuple((i, p) for i, p in top))


def last_event(entries: Sequence[Entry]) -> Event:
    """The event of a stream's last entry."""
    last = next(entry for entry in entries if entry.is_last)
    return done_from(last.data) if last.kind == "done" else failed_from(last.data)


def position(text: str) -> tuple[int, int]:
    """A stream position as numbers. Raises ValueError for anything else."""
    ms, _, n = text.partition("-")
    return int(ms), int(n)
