"""Keeps touch with the line: registers, reports every second, obeys what comes back.

Two clocks decide about a store that is away. The line declares a node dead `node_dead_seconds`
after its last report; the node, on its own clock, ends its answer `node_stop_seconds` after the
moment it sent its last report that was heard. The second is shorter and starts no later, so at most
one node writes, whatever the network does.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from app.errors import StoreUnavailableError
from app.line.nodes import NodeDesk, NodeUnknownError
from app.line.types import NodeInfo, Orders
from app.node.answer import Answer
from app.node.backoff import Backoff
from app.node.post import Post
from app.settings import Settings

log = structlog.get_logger(__name__)


# A node that was heard this often in a row has its name for good. One that was not, and whose name
# another start takes again and again, shares it with one that has.
SETTLED_REPORTS = 20
MOST_REPLACED = 3


class NameTakenError(Exception):
    """Two nodes answer to one name; `str(error)` says what to do. The newcomer gives way."""


class Heart:
    """The node's reports. `beat_now` asks for one at once."""

    def __init__(
        self, desk: NodeDesk, post: Post, info: NodeInfo, card: bytes, settings: Settings
    ) -> None:
        self._desk = desk
        self._post = post
        self._info = info
        self._card = card
        self._every_seconds = settings.heartbeat_seconds
        self._stop_seconds = settings.node_stop_seconds
        self._hurry = asyncio.Event()
        self._heard_s = time.monotonic()
        self._in_touch = True
        # cleared when `watch` gives up an answer, set when the line is heard in time again
        self.touch = asyncio.Event()
        self.touch.set()
        self._heard_in_a_row = 0
        self._settled = False
        # how often another start stood in this node's place
        self._replaced = 0

    def beat_now(self) -> None:
        self._hurry.set()

    async def register(self) -> None:
        """Register, for as long as it takes to reach the store."""
        backoff = Backoff()
        while True:
            sent_s = time.monotonic()
            try:
                async with asyncio.timeout(self._stop_seconds):
                    await self._desk.register(self._info, self._card)
            except (StoreUnavailableError, TimeoutError) as error:
                self._missed(error)
                self._hurry.clear()
                await backoff.wait(unless=self._hurry)
            else:
                self._heard(sent_s)
                return

    async def beat(self) -> None:
        """Report for ever. An answer never delays a report. Raises NameTakenError."""
        while True:
            await self.report()
            await _event_within(self._hurry, self._every_seconds)
            self._hurry.clear()

    async def watch(self) -> None:
        """End the running answer once the line has heard nothing for `node_stop_seconds`."""
        while True:
            left_seconds = self._heard_s + self._stop_seconds - time.monotonic()
            if left_seconds <= 0 and self._post.answer is not None:
                self.touch.clear()
                self._post.answer.stop("store_lost")
            await asyncio.sleep(left_seconds if left_seconds > 0 else self._every_seconds / 4)

    async def report(self) -> None:
        answer = self._post.answer
        sent_s = time.monotonic()
        try:
            async with asyncio.timeout(self._stop_seconds):
                orders = await self._desk.heartbeat(
                    self._info.id,
                    self._info.boot,
                    running=(answer.generation, answer.fence) if answer else None,
                    highest_fence=self._post.highest_fence,
                )
        except NodeUnknownError as error:
            await self._come_back(replaced=error.replaced)
        except (StoreUnavailableError, TimeoutError) as error:
            self._missed(error)
        else:
            self._heard(sent_s)
            self._heard_in_a_row += 1
            self._settled = self._settled or self._heard_in_a_row >= SETTLED_REPORTS
            self._obey(orders, answer)

    async def _come_back(self, *, replaced: bool) -> None:
        """The line does not know this node (any more): whatever ran here is not ours.

        A store that lost its memory forgets any node, however often; only one that is `replaced`
        has a rival.
        """
        log.warning("the line does not know this node; registering again", node=self._info.id)
        if self._post.answer is not None:
            self._post.answer.drop()
        self._heard_in_a_row = 0
        self._replaced += replaced
        if replaced and not self._settled and self._replaced > MOST_REPLACED:
            raise NameTakenError(
                f"Another node named {self._info.name!r} serves this pool. "
                "Give this one a name of its own with --name."
            )
        # the line may grant as soon as it knows us, so nothing may run then
        await self._post.idle.wait()
        await self.register()
        self._post.news.set()

    def _obey(self, orders: Orders, reported: Answer | None) -> None:
        """`reported` ran when the report was sent; the orders say nothing of what began since."""
        self._post.see_fence(orders.fence)
        if self._post.answer is not reported:
            return
        if reported is None:
            self._post.see_seat(orders.seat)
            if orders.generation is not None:
                self._post.news.set()
        elif (orders.generation, orders.fence) != (reported.generation, reported.fence):
            reported.drop()
        elif orders.cancel is not None:
            reported.stop(orders.cancel)

    def _heard(self, sent_s: float) -> None:
        self._heard_s = sent_s
        if time.monotonic() < sent_s + self._stop_seconds:
            self.touch.set()
        if not self._in_touch:
            log.info("the store is back", node=self._info.id)
        self._in_touch = True

    def _missed(self, error: Exception) -> None:
        if self._in_touch:
            why = str(error.__cause__ or error)
            log.warning("the store is out of reach; trying on", node=self._info.id, why=why)
        self._in_touch = False


async def _event_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
