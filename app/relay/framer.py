"""Joins engine steps into frames: fewer entries, the same figures. Pure.

The first step goes at once. Later ones go at once too while they come slower than one in
`frame_ms`; faster ones share a frame, and none waits longer than `frame_ms`. Every step's time and
token count travel along, so framing never changes a figure.
"""

from __future__ import annotations

from typing import Any

from engine.types import Step

Delta = dict[str, Any]


class Framer:
    """Frames of one generation. Give the same monotonic clock (ms) to every call."""

    def __init__(self, frame_ms: float) -> None:
        self._frame_ms = frame_ms
        self._steps: list[Step] = []
        # before this moment steps are kept back; None until the first one
        self._due_ms: float | None = None

    def add(self, step: Step, now_ms: float) -> Delta | None:
        """Take a step; return the data of a `delta` entry when one is due.

        A change of channel closes the frame before it, so a frame has one
        channel, but for the tail of its last step.
        """
        closed = None
        last = self._steps[-1] if self._steps else None
        if last is not None and (last.channel != step.channel or last.tail):
            closed = self._close(now_ms)
        self._steps.append(step)
        if closed is None and (self._due_ms is None or now_ms >= self._due_ms):
            return self._close(now_ms)
        return closed

    def due_in_ms(self, now_ms: float) -> float | None:
        """How long until `flush` should be called; None when nothing is kept back."""
        if not self._steps or self._due_ms is None:
            return None
        return max(0.0, self._due_ms - now_ms)

    def flush(self) -> Delta | None:
        """All that is kept back: call it when due, and before the last entry."""
        if not self._steps or self._due_ms is None:
            return None
        return self._close(self._due_ms)

    def _close(self, now_ms: float) -> Delta:
        steps, self._steps = self._steps, []
        self._due_ms = now_ms + self._frame_ms
        return _delta(steps)


def _delta(steps: list[Step]) -> Delta:
    """The data of one `delta` entry, as `app/relay/types.py` says. Times to the microsecond."""
    data: Delta = {
        "text": "".join(step.text for step in steps),
        "channel": steps[0].channel,
        "n": sum(len(step.token_ids) for step in steps),
        "ids": [token for step in steps for token in step.token_ids],
        "t_ms": round(steps[-1].t_ms, 3),
        "steps": [[round(step.t_ms, 3), len(step.token_ids)] for step in steps],
    }
    if steps[-1].tail:
        data["tail"] = steps[-1].tail
    spelled = "".join(step.spelled or "" for step in steps)
    if steps[0].spelled is not None and (spelled != data["text"] or steps[-1].tail):
        data["spelled"] = spelled
    logprobs = [one for step in steps for one in step.logprobs]
    if logprobs:
        data["logprobs"] = [
            [round(one.logprob, 6), [[i, round(p, 6)] for i, p in one.top]] for one in logprobs
        ]
    return data
