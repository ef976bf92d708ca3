"""What crosses the line's door. Frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tier = Literal["browser", "api", "priority"]
# where a question stands: not yet given to a node, given to one, over
TurnState = Literal["queued", "assigned", "ended"]
CancelReason = Literal["stopped", "gone", "slice_ended", "admin", "revoked", "wanted"]


@dataclass(frozen=True, slots=True)
class Job:
    """One question on its way into the line. The caller chooses the id: a repeat changes nothing."""

    generation: str
    # for the node; the line never looks inside (see app/work.py)
    payload: bytes
    # True: keep the lease after the answer (a browser); False: give it back at once (the API)
    hold: bool
    # keep the lease between a program's requests of this name; "end": give it back after this one
    session: str = ""


@dataclass(frozen=True, slots=True)
class NodePublic:
    """What everybody may know of a node."""

    id: str
    name: str
    hardware: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where one question stands at one moment, as the store says."""

    generation: str
    state: TurnState
    ticket: str
    # rank in the lane, 1..n; None once granted or ended
    rank: int | None
    # tickets waiting in that lane
    waiting: int
    # own earlier questions that come first
    behind_own: int
    # shortest and longest wait to expect; None until enough turns were measured
    eta_seconds: tuple[float, float] | None
    node: NodePublic | None
    # time left of the slice; None while nobody waits
    slice_left_seconds: float | None
    # this answer may finish, nothing more: the slice is over, or the node is being taken out
    ending: bool
    # True: the seat's earlier node failed and the seat waits in the returned lane
    returned: bool
    # time spent in line so far, or until the node was given
    queued_ms: float
    # its turn came and nobody was there: time left to take it; None: not called
    claim_left_seconds: float | None = None
    # why it is `ending`: the node is being taken out of service
    drained: bool = False


@dataclass(frozen=True, slots=True)
class SeatView:
    """What a seat has in a pool when no question is being watched."""

    # none: neither place nor lease; waiting; busy: an answer is running; holding: a lease at rest
    state: Literal["none", "waiting", "busy", "holding"]
    pool: str | None = None
    # its oldest unfinished question
    generation: str | None = None
    node: NodePublic | None = None
    slice_left_seconds: float | None = None
    # until the lease ends for want of a question
    idle_left_seconds: float | None = None
    # of the slice, should somebody come; None: no lease
    certain_seconds: float | None = None
    may_extend: bool = False


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool from outside: for the page, `/v1/models` and health."""

    name: str
    # that take work; each slot of a node that batches counts
    nodes: int
    idle_nodes: int
    waiting: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as its operator sees it, with all its slots."""

    id: str
    name: str
    hardware: str
    kind: str
    slots: int
    # slots with a running answer, and slots without a lease
    busy_slots: int
    free_slots: int
    # True: no slot gets a new lease
    drained: bool
    # True: by an operator, so that it stays out over restarts
    ordered_out: bool


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node says of itself when it registers. Each slot of a node that batches registers."""

    # the first slot has the node's own id, the others <id>/2, <id>/3..
    id: str
    # new at every start of the process: tells a restart from a pause
    boot: str
    name: str
    hardware: str
    kind: str
    # equal labels promise equal texts
    numerics: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One generation given to a node. The node serves exactly the highest fence it has seen."""

    generation: str
    fence: int
    payload: bytes
    seat: str
    # time in the line, for the turn's timing
    queued_ms: float
    # entries that other nodes left in the stream; their tokens are where this one goes on
    stream_length: int = 0
    # all those nodes had this one's numerics label: equal arithmetic, equal text
    same_numerics: bool = False


@dataclass(frozen=True, slots=True)
class Orders:
    """The answer to a heartbeat."""

    # the generation and fence that this node should be running; None: nothing
    generation: str | None
    fence: int | None
    # set: stop the running generation, for this reason
    cancel: CancelReason | None
    # whose lease it is; None: no lease, so nothing of an earlier seat may be kept
    seat: str | None
