"""The node's work: takes one assignment after the other and runs each to its end.

Agent.run -> Heart (register, report, obey)        every second, and when the bell says cancel
          -> _listen (doorbell)                    "job" wakes the work, "cancel" the heart
          -> _work: take -> Answer.run -> finished
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from app.errors import StoreUnavailableError
from app.line.nodes import NodeDesk, NodeUnknownError
from app.line.types import Assignment, NodeInfo
from app.node.answer import Answer
from app.node.backoff import Backoff
from app.node.heart import Heart
from app.node.kinds.base import NodeKind
from app.node.post import Post
from app.process import exit_within
from app.relay.writer import RelayWriter
from app.settings import Settings

log = structlog.get_logger(__name__)

# One wait at the doorbell; it only bounds how long a dead connection goes unnoticed.
BELL_SECONDS = 5.0
# After this long without news the line is asked all the same.
LOOK_SECONDS = 5.0
# The engine's and the store's time after the grace of a shutdown.
LAST_SECONDS = 2.0


class Agent:
    """One node of one pool, or one slot of it. The kind is open; `card` is its model card as bytes."""

    def __init__(
        self,
        desk: NodeDesk,
        writer: RelayWriter,
        kind: NodeKind,
        info: NodeInfo,
        settings: Settings,
        card: bytes,
        die: Callable[[], None] = lambda: exit_within(0, 1),
    ) -> None:
        """`die` ends this process at once: an engine that hangs cannot be stopped otherwise."""
        self._die = die
        self._desk = desk
        self._writer = writer
        self._kind = kind
        self._info = info
        self._settings = settings
        self._post = Post()
        self._heart = Heart(desk, self._post, info, card, settings)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Take nothing more; the running answer may go on for the grace, then another node has it.

        Twice: at once.
        """
        answer = self._post.answer
        if answer is not None:
            loop = asyncio.get_running_loop()
            grace = 0 if self._stopping.is_set() else self._settings.shutdown_grace_seconds
            loop.call_later(grace, answer.stop, "node_stopped")
            loop.call_later(grace + LAST_SECONDS, answer.drop)
        self._stopping.set()
        self._post.news.set()

    async def run(self) -> None:
        """Serve until `stop`, then leave the line.

        Raises an ExceptionGroup: of NameTakenError when another node answers to this one's name,
        of EngineError when the kind cannot forget its last seat.
        """
        async with asyncio.TaskGroup() as group:
            registering = group.create_task(self._heart.register(), name="register")
            await _first_of(registering, self._stopping)
            if not registering.done():
                registering.cancel()
                return
            helpers = [
                group.create_task(self._heart.beat(), name="heart"),
                group.create_task(self._heart.watch(), name="lifeline"),
                group.create_task(self._listen(), name="doorbell"),
                group.create_task(self._watch_engine(), name="watchdog"),
                group.create_task(self._say_that_it_goes(), name="farewell"),
            ]
            await self._work()
            for helper in helpers:
                helper.cancel()
        await self._leave()

    async def _listen(self) -> None:
        """What the bell says is looked up in the store; a bell that is lost costs a second."""
        backoff = Backoff()
        while True:
            try:
                async with asyncio.timeout(BELL_SECONDS + LAST_SECONDS):
                    word = await self._desk.wait(self._info.id, BELL_SECONDS)
            except (StoreUnavailableError, TimeoutError):
                await backoff.wait(unless=self._stopping)
                continue
            backoff = Backoff()
            if word == "job":
                self._post.news.set()
            elif word == "cancel":
                self._heart.beat_now()

    async def _watch_engine(self) -> None:
        """The line gives up on a node that does not stop; a new process can serve again."""
        limit_seconds = 2 * self._settings.node_dead_seconds
        while True:
            answer = self._post.answer
            if answer is not None and answer.engine_ignores_for_seconds > limit_seconds:
                log.critical(
                    "the engine does not stop; ending this process", generation=answer.generation
                )
                self._die()
                return
            await asyncio.sleep(limit_seconds / 10)

    async def _work(self) -> None:
        while not self._stopping.is_set():
            self._post.news.clear()
            if self._post.must_forget:
                await self._forget()
            assignment = await self._take()
            if self._stopping.is_set():
                return
            if assignment is None:
                await self._wait_for_news()
            elif self._post.accepts(assignment):
                await self._serve(assignment)
            else:
                await self._refuse(assignment)

    async def _take(self) -> Assignment | None:
        try:
            return await self._desk.take(self._info.id, self._info.boot)
        except (StoreUnavailableError, NodeUnknownError):
            # the heart finds out what is wrong, and rings when there is work again
            self._heart.beat_now()
            return None

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._post.news.wait()
        except TimeoutError:
            return

    async def _serve(self, assignment: Assignment) -> None:
        # what another node began is read from the start: only so is its text the same
        is_ours = assignment.seat == self._post.kept_seat and not assignment.stream_length
        if self._post.kept_seat is not None and not is_ours:
            await self._forget()
        answer = Answer(assignment, self._kind, self._writer, self._settings)
        self._post.begin(answer, assignment.seat)
        try:
            await answer.run()
        finally:
            self._post.end()
        # a node that goes says so by leaving: "finished" would ask for the next job
        if self._stopping.is_set():
            return
        if answer.is_handed_over:
            await self._hand_over(answer)
        else:
            await self._say_finished(answer)

    async def _hand_over(self, work: Answer | Assignment) -> None:
        """Said until it is heard: the line would have this node begin once more.

        Not before this node is in touch again, or what it is given next would end like this one.
        """
        self._heart.beat_now()
        in_touch = asyncio.create_task(self._heart.touch.wait())
        await _first_of(in_touch, self._stopping)
        in_touch.cancel()
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                await self._desk.finished(
                    self._info.id,
                    self._info.boot,
                    generation=work.generation,
                    fence=work.fence,
                    handed_over=True,
                )
            except StoreUnavailableError:
                await backoff.wait(unless=self._stopping)
            else:
                return

    async def _refuse(self, assignment: Assignment) -> None:
        """An assignment under an older fence than one seen already: the store lost its last seconds,
        or failed over to one that never had them. The line hears of the higher fence and gives the
        question again, above it."""
        log.warning("refused an old fence", generation=assignment.generation)
        await self._heart.report()
        await self._hand_over(assignment)

    async def _say_finished(self, work: Answer | Assignment) -> None:
        try:
            await self._desk.finished(
                self._info.id, self._info.boot, generation=work.generation, fence=work.fence
            )
        except (StoreUnavailableError, NodeUnknownError):
            # the next report says the same: nothing runs here
            self._heart.beat_now()

    async def _forget(self) -> None:
        await self._kind.forget()
        self._post.kept_seat = None
        self._post.must_forget = False

    async def _say_that_it_goes(self) -> None:
        """While the last answer may still finish, the line gives nothing new and tells its holder."""
        await self._stopping.wait()
        try:
            await self._desk.drain(self._info.id, self._info.boot)
        except StoreUnavailableError:
            log.warning("could not say that it will go", node=self._info.id)

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._desk.leave(self._info.id, self._info.boot)
        except (StoreUnavailableError, NodeUnknownError, TimeoutError):
            log.warning("could not say goodbye; the line will notice", node=self._info.id)


async def _first_of(task: asyncio.Task[Any], event: asyncio.Event) -> None:
    """Wait until the task is done or the event is set."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
