"""One assignment from its bytes to its last entry.

The engine's side and the sending side run side by side, joined by an `Outbox`: the engine never
waits for the store, and the store sees whole frames. The store may be away for a while; what was
made is kept and sent when it is back, and the fence decides whether it still counts.

An answer that another node began is continued: its tokens are read from the stream first. A node
that is shut down in the middle of an answer, or loses touch with the store, hands it over: it writes
what it made and no last entry.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

import structlog

from app.errors import (
    AppError,
    FencedError,
    GenerationNotFoundError,
    StoreUnavailableError,
)
from app.line.types import Assignment, CancelReason
from app.node import entries
from app.node.backoff import Backoff
from app.node.divider import Divider
from app.node.kinds.base import NodeKind
from app.node.outbox import Entry, Outbox
from app.relay.writer import EntriesLostError, RelayWriter
from app.relay.written import Written
from app.settings import Settings
from app.work import Work
from engine.types import (
    EngineError,
    Finished,
    Piece,
    Reading,
    Step,
)

log = structlog.get_logger(__name__)

# Why an answer ends early: somebody asked, or the node itself cannot go on.
StopReason = CancelReason | Literal["store_lost", "node_stopped"]

# Then another node goes on, or this one under a new fence.
_HANDED_OVER = ("store_lost", "node_stopped")


class Answer:
    """Runs one generation. `run` returns when nothing of it runs any more."""

    def __init__(
        self, assignment: Assignment, kind: NodeKind, writer: RelayWriter, settings: Settings
    ) -> None:
        self.generation = assignment.generation
        self.fence = assignment.fence
        self._assignment = assignment
        self._kind = kind
        self._writer = writer
        self._cancel = threading.Event()
        self._outbox = Outbox(settings.frame_ms)
        # it ended here without its end
        self.is_handed_over = False
        self._written = Written()
        self._says_exact = False
        self._divider: Divider | None = None
        self._finished: Finished | None = None
        # what waited for more tokens at the end
        self._held: list[Piece] = []
        self._error: EngineError | None = None
        # the relay would take no more of it
        self._refused: AppError | None = None
        self._reason: str | None = None
        self._dropped = asyncio.Event()
        self._asked_s: float | None = None
        self._engine_ended = False

    @property
    def engine_ignores_for_seconds(self) -> float:
        """How long the engine has gone on since it was asked to end early."""
        if self._asked_s is None or self._engine_ended:
            return 0.0
        return time.monotonic() - self._asked_s

    def stop(self, reason: str) -> None:
        """End it early; the first reason counts. The engine looks between two steps."""
        if self._reason is None:
            self._reason = reason
            self._stop_engine()
            log.info("stopping", generation=self.generation, reason=reason)

    def drop(self) -> None:
        """It is another node's, or nobody's: stop and write nothing more."""
        self._dropped.set()
        self._stop_engine()

    def _stop_engine(self) -> None:
        if self._asked_s is None:
            self._asked_s = time.monotonic()
        self._cancel.set()

    async def run(self) -> None:
        """Generate, send, write the one last entry. Raises nothing that belongs to the turn."""
        try:
            work = _readable(self._assignment.payload)
        except (ValueError, KeyError, TypeError) as error:
            log.error("unreadable work", generation=self.generation, error=repr(error))
            self._error = EngineError(
                "The node could not read this question; web and node are of different versions. "
                "Ask again once both are updated."
            )
        else:
            await self._go_on(work)
        if not self._dropped.is_set():
            await self._end()
        self._log_end()

    async def _go_on(self, work: Work) -> None:
        """Generate and send, behind what other nodes wrote."""
        try:
            if self._assignment.stream_length:
                self._written = await self._read_written()
        except (GenerationNotFoundError, KeyError, TypeError, ValueError) as error:
            log.error("unreadable answer", generation=self.generation, error=repr(error))
            self._error = EngineError(
                "The node could not read what is written of this answer, so it ends here. Ask again."
            )
        else:
            await self._generate_and_send(replace(work, resume_ids=self._written.ids))

    async def _read_written(self) -> Written:
        """Raises ValueError when that is not what the line counted."""
        backoff = Backoff()
        while not self._dropped.is_set():
            try:
                written = await self._writer.written(self.generation)
            except StoreUnavailableError:
                await backoff.wait(unless=self._dropped)
            else:
                if written.length != self._assignment.stream_length:
                    raise ValueError(f"{written.length} entries are there")
                return written
        return Written()

    async def _generate_and_send(self, work: Work) -> None:
        if work.parsing is not None:
            self._divider = Divider(work.parsing, self._written.spelled)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._generate(work), name=f"engine {self.generation}")
            both.create_task(self._send(), name=f"relay {self.generation}")

    # -- the engine's side ------------------------------------------------------------------------

    async def _generate(self, work: Work) -> None:
        try:
            async with aclosing(self._kind.generate(work, self._cancel)) as events:
                async for event in events:
                    self._take_event(event)
        except EngineError as error:
            self._error = error
        finally:
            self._engine_ended = True
            self._outbox.close()

    def _take_event(self, event: Reading | Step | Finished) -> None:
        match event:
            case Reading():
                self._outbox.put_reading(event, exact=self._exactness(event))
            case Step():
                self._outbox.put_step(self._divider.divide(event) if self._divider else event)
            case Finished():
                self._finish(event)

    def _finish(self, finished: Finished) -> None:
        if self._divider is None:
            self._held = [("text", finished.text)] if finished.text else []
            self._finished = finished
            return
        self._held = self._divider.finish(finished.text)
        thoughts = self._written.reasoning_tokens + self._outbox.reasoning_tokens
        self._finished = replace(finished, usage=replace(finished.usage, reasoning_tokens=thoughts))

    def _exactness(self, reading: Reading) -> bool | None:
        """Said once, by a node that continues: whether its text is the one it would have been."""
        if self._says_exact or not self._written.ids:
            return None
        self._says_exact = True
        is_cold = self._written.was_cold and reading.cached_tokens == 0
        return is_cold and self._assignment.same_numerics

    # -- the sending side -------------------------------------------------------------------------

    async def _send(self) -> None:
        while (due := await self._outbox.take()) is not None:
            if self._refused is None:
                await self._append(due)

    async def _append(self, due: list[Entry]) -> None:
        """One append, repeated while the store is away: the writer skips what had arrived."""
        backoff = Backoff()
        while not self._dropped.is_set():
            try:
                appended = await self._writer.append(self.generation, self.fence, due)
            except StoreUnavailableError:
                await backoff.wait(unless=self._dropped)
            except FencedError:
                self.drop()
            except EntriesLostError:
                self._give_up_for_gap()
                return
            except AppError as error:
                # the answer reached a bound of the relay
                self._refused = error
                self._stop_engine()
                return
            else:
                if appended.cancel is not None:
                    self.stop(appended.cancel)
                return

    async def _end(self) -> None:
        last = self._last_entry()
        if last is None:
            return
        backoff = Backoff()
        while not self._dropped.is_set():
            try:
                held = entries.held(self._finished, self._held)
                await self._writer.end(self.generation, self.fence, *last, held=held)
            except StoreUnavailableError:
                await backoff.wait(unless=self._dropped)
            except FencedError:
                self.drop()
            except EntriesLostError:
                self._give_up_for_gap()
                return
            else:
                return

    def _give_up_for_gap(self) -> None:
        """The stream lacks entries of this node: whoever reads it anew can go on without a gap."""
        self.stop("store_lost")
        self.is_handed_over = True

    # -- how it ended -----------------------------------------------------------------------------

    def _last_entry(self) -> tuple[Literal["done", "failed"], dict[str, Any]] | None:
        """None: the answer is handed over, and goes on from what is written."""
        if self.is_handed_over:
            return None
        error = self._refused or self._error
        if error is not None:
            return "failed", entries.failure(error)
        finished = self._finished
        if finished is None:
            return "failed", entries.failure(
                EngineError("The engine ended without a result. Ask again.")
            )
        queued_ms = self._assignment.queued_ms
        if finished.finish_reason != "cancelled":
            return "done", entries.done(finished, finished.finish_reason, None, queued_ms)
        if self._reason in _HANDED_OVER:
            self.is_handed_over = True
            return None
        reason = "length" if self._reason == "slice_ended" else "cancelled"
        return "done", entries.done(finished, reason, self._reason, queued_ms)

    def _log_end(self) -> None:
        finished = self._finished
        log.info(
            "answer over",
            generation=self.generation,
            dropped=self._dropped.is_set(),
            reason=self._reason,
            error=type(self._error).__name__ if self._error else None,
            tokens=self._outbox.tokens,
            tps=round(finished.speed.average, 1) if finished else None,
        )


def _readable(payload: bytes) -> Work:
    """Raises ValueError, KeyError or TypeError for bytes that would only break the engine."""
    work = Work.from_bytes(payload)
    if not work.prompt_ids or any(type(token) is not int or token < 0 for token in work.prompt_ids):
        raise ValueError("the prompt is no list of token ids")
    if type(work.max_tokens) is not int or work.max_tokens < 1:
        raise ValueError("max_tokens is no positive number")
    return work
