"""What a watcher of a turn is told: frozen classes, their names on the wire, their JSON.

The page and the widget are pure functions of these events. A turn ends with exactly one `Done` or
`Failed`. A test compares `EVENTS` and the fields with the ones that `static/js` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from engine.types import Channel, Piece, TokenLogprobs

Phase = Literal[
    "waiting", "claim", "allocating", "reading", "answering", "holding", "ending", "ended", "lost",
    "refused",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeShown:
    name: str
    hardware: str


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Prompt tokens: in the cache now, in all, and those that an earlier turn had left there."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Moved:
    """The answer went on at another node."""

    # tokens written before it moved; spelled "from" on the wire
    from_token: int
    # whether the text is certainly the one the first node would have written
    exact: bool


@dataclass(frozen=True, slots=True)
class State:
    """Where the turn stands; sent on every change and at least every 5 s."""

    # grows from state to state of one turn, over reconnects and replicas too
    version: int
    phase: Phase
    # rank in the lane, 1..n; None once a node is given
    rank: int | None
    # tickets waiting in the lane
    waiting: int
    # own earlier questions that come first
    behind_own: int
    # shortest and longest wait to expect, in seconds
    eta: tuple[float, float] | None
    pool: str
    node: NodeShown | None
    slice_left_seconds: float | None
    prompt: PromptProgress | None
    moved: Moved | None
    # a sentence for a person, where there is something to explain
    reason: str | None
    # in the phase "claim": time left to take the turn
    claim_left_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the answer."""

    text: str
    # a call of a tool is told when it is complete: one line of JSON, {"name", "arguments"}
    channel: Channel
    # tokens that this piece stands for
    n: int
    # of its last token, in milliseconds since the first token of the answer
    t_ms: float
    # token ids with what the model thought of them, where a program asked; not told to pages
    logprobs: tuple[tuple[int, TokenLogprobs], ...] = ()
    # what follows in other channels and was made by the same step; told where there is some
    tail: tuple[Piece, ...] = ()

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (self.channel, self.text), *self.tail


@dataclass(frozen=True, slots=True)
class Rate:
    """The speedometer; ten times a second from the first token on, also when nothing comes."""

    # tokens per second now; None in the first quarter of a second
    live: float | None
    # tokens of the answer so far
    tokens: int
    # the answer's average and peak so far, as `engine/metrics.py` defines them; None: no time has
    # passed between two tokens
    average: float | None
    peak: float | None


@dataclass(frozen=True, slots=True)
class Done:
    finish_reason: str
    stop_reason: str | None
    # prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens
    usage: Mapping[str, int]
    # queue_ms, prefill_ms, decode_ms, total_ms
    timing: Mapping[str, float]
    # peak, average, e2e
    tps: Mapping[str, float]
    # mean, min, max tokens per step
    accepted: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Failed:
    code: str
    # a sentence for a person: what happened and what to do
    message: str
    # whether trying again helps
    retry: bool


Event = State | Delta | Rate | Done | Failed

EVENTS: dict[str, type[Event]] = {
    "state": State,
    "delta": Delta,
    "rate": Rate,
    "done": Done,
    "failed": Failed,
}

_NAMES: dict[type, str] = {kind: name for name, kind in EVENTS.items()}


def name_of(event: Event) -> str:
    """The event's name on the wire."""
    return _NAMES[type(event)]


def to_json(event: Event) -> bytes:
    """The event's fields as one line of JSON."""
    if isinstance(event, State) and event.moved is not None:
        moved = {"from": event.moved.from_token, "exact": event.moved.exact}
        return orjson.dumps(_shallow(event) | {"moved": moved})
    if isinstance(event, Delta):
        return orjson.dumps(_told(event))
    return orjson.dumps(event)


def _told(piece: Delta) -> dict[str, Any]:
    left_out = ("logprobs",) if piece.tail else ("logprobs", "tail")
    return {name: value for name, value in _shallow(piece).items() if name not in left_out}


def _shallow(event: State | Delta) -> dict[str, Any]:
    return {name: getattr(event, name) for name in event.__slots__}


def done_from(data: Mapping[str, Any]) -> Done:
    """From a stream's last entry (app/relay/types.py) or a turn's stored figures."""
    return Done(
        finish_reason=data["finish_reason"],
        stop_reason=data.get("stop_reason"),
        usage=data.get("usage") or {},
        timing=data.get("timing") or {},
        tps=data.get("tps") or {},
        accepted=data.get("accepted") or {},
    )


def failed_from(data: Mapping[str, Any]) -> Failed:
    return Failed(
        code=str(data["code"]), message=str(data["message"]), retry=bool(data.get("retry"))
    )
