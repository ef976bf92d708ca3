"""What happened, in words of the line: the store's side, the nodes' side and the readers' side.

The store's events come from its append-only file (chronicle.py) in the order in which they happened.
Times `at_ms` are the line's clock. A node's runs and a reader's events are written down by the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Limits:
    """The line's durations in force from here on, in ms."""

    grace_ms: int
    dead_ms: int


@dataclass(frozen=True, slots=True)
class Outage:
    """The line noticed that the store had been away, or its clock set back."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Forgot:
    """The store lost its memory."""


@dataclass(frozen=True, slots=True)
class Now:
    """It is that time in the step that follows."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Pumped:
    """A step that lets time take effect is over; it made so many writes."""

    at_ms: int
    writes: int


@dataclass(frozen=True, slots=True)
class NodeCame:
    node: str
    boot: str


@dataclass(frozen=True, slots=True)
class NodeReported:
    node: str
    # dead unless it reports again by then
    until_ms: int


@dataclass(frozen=True, slots=True)
class NodeFreed:
    node: str


@dataclass(frozen=True, slots=True)
class NodeHeldBack:
    node: str


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """Taken out of service; nothing runs on it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    node: str


@dataclass(frozen=True, slots=True)
class Opened:
    """A seat gets a ticket."""

    ticket: str
    seat: str
    tier: str
    grace_ms: int = 0


@dataclass(frozen=True, slots=True)
class Stood:
    """A ticket goes to the tail of a lane."""

    ticket: str
    lane: str
    seq: int


@dataclass(frozen=True, slots=True)
class Kept:
    """A ticket must be watched again before that time."""

    ticket: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Unkept:
    """A ticket need not be watched (it rests on a node), or nobody did."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Hidden:
    """Its page is in front of nobody (or is again)."""

    ticket: str
    hidden: bool


@dataclass(frozen=True, slots=True)
class Called:
    """Its turn has come and nobody seems to be there: the node goes to the next meanwhile."""

    ticket: str


@dataclass(frozen=True, slots=True)
class CallOver:
    """Answered, or not."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A race: it has an idle node until somebody waits for one."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Ending:
    """Its lease ends with the running answer, or that was taken back."""

    ticket: str
    is_ending: bool


@dataclass(frozen=True, slots=True)
class LeaseBegan:
    ticket: str
    node: str


@dataclass(frozen=True, slots=True)
class Closed:
    ticket: str
    reason: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A question is there; or its seat's place is another ticket now (then without its work)."""

    generation: str
    ticket: str
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Given:
    """A question is given to a node, behind so many entries of its stream."""

    generation: str
    node: str
    fence: int
    length: int


@dataclass(frozen=True, slots=True)
class TakenBack:
    generation: str


@dataclass(frozen=True, slots=True)
class Written:
    """One entry of a stream; `fence`: of the node that wrote it, None where the file does not say."""

    generation: str
    kind: str
    data: Mapping[str, Any]
    fence: int | None


@dataclass(frozen=True, slots=True)
class Ended:
    generation: str


Event = (
    Limits | Outage | Forgot | Now | Pumped | NodeCame | NodeReported | NodeFreed | NodeHeldBack | NodeDrained
    | NodeGone | Opened | Stood | Kept | Unkept | Hidden | Called | CallOver | Borrowed | Ending | LeaseBegan | Closed | Asked | Given | TakenBack | Written | Ended
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """A node's own account of one answer, in µs of this machine's clock."""

    node: str
    generation: str
    fence: int
    began_us: int
    # None: its process ended in the middle
    over_us: int | None


@dataclass(frozen=True, slots=True)
class Heard:
    """One event as a reader got it."""

    name: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """What one person heard of one question, over all of their connections."""

    reader: str
    generation: str
    heard: Sequence[Heard]
    # stayed until the end: must have heard it
    stayed: bool = True


@dataclass(frozen=True, slots=True)
class History:
    """One run: what happened in the store (pool, event), and what nodes and readers say."""

    events: Sequence[tuple[str, Event]]
    runs: Sequence[Run] = ()
    readings: Sequence[Reading] = ()
    # generation -> the tokens that an undisturbed run would have made, as far as known
    expected_ids: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    # everybody had gone by then, so that everything must be over
    is_whole: bool = True
