"""What one answer has yet to send: frames of tokens, and how far the reading is.

The engine's side puts events in, the sending side takes entries out when they are due. Both run on
the event loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from app.relay.framer import Delta, Framer
from app.relay.types import EntryKind
from engine.types import Reading, Step

# Progress of the prefill travels at most this often, its first and last report always.
READING_EVERY_MS = 100.0

Entry = tuple[EntryKind, dict[str, Any]]


class Outbox:
    """Entries of one answer, in order."""

    def __init__(self, frame_ms: float) -> None:
        self._framer = Framer(frame_ms)
        self._entries: list[Entry] = []
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._reading_ms = float("-inf")
        self._closed = False
        # tokens put in so far, and of these the ones of thoughts
        self.tokens = 0
        self.reasoning_tokens = 0

    def put_reading(self, reading: Reading, *, exact: bool | None = None) -> None:
        """`exact` goes with the first report of a node that continues an answer."""
        is_last = reading.done_tokens >= reading.total_tokens
        if not is_last and reading.t_ms < self._reading_ms + READING_EVERY_MS:
            return
        self._reading_ms = reading.t_ms
        data: dict[str, Any] = {
            "done": reading.done_tokens,
            "total": reading.total_tokens,
            "cached": reading.cached_tokens,
            "t_ms": round(reading.t_ms, 3),
        }
        if exact is not None:
            data["exact"] = exact
        self._entries.append(("reading", data))
        self._due.set()

    def put_step(self, step: Step) -> None:
        self.tokens += len(step.token_ids)
        if step.channel == "reasoning":
            self.reasoning_tokens += len(step.token_ids)
        now_ms = _now_ms()
        delta = self._framer.add(step, now_ms)
        if delta is not None and self._timer is not None:
            # It stood for the frame that goes now. Firing late, as it does on a busy loop, it would
            # close the next one, and push the one after that a whole frame back.
            self._timer.cancel()
            self._timer = None
        self._put(delta)
        wait_ms = self._framer.due_in_ms(now_ms)
        if wait_ms is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._flush)

    def close(self) -> None:
        """Nothing more comes: what is kept back is due now."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        self._closed = True
        self._due.set()

    async def take(self) -> list[Entry] | None:
        """The entries that are due, as soon as there are some; None after the last."""
        await self._due.wait()
        entries, self._entries = self._entries, []
        if not self._closed:
            self._due.clear()
        return entries or None if self._closed else entries

    def _flush(self) -> None:
        self._timer = None
        self._put(self._framer.flush())

    def _put(self, delta: Delta | None) -> None:
        if delta is not None:
            self._entries.append(("delta", delta))
            self._due.set()


def _now_ms() -> float:
    return time.monotonic() * 1000
