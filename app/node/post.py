"""What this node does right now: shared by its tasks, all on one event loop."""

from __future__ import annotations

import asyncio

from app.line.types import Assignment
from app.node.answer import Answer


class Post:
    """The running answer, the highest fence seen, and whose texts the kind may still hold."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.highest_fence = 0
        # the seat whose cache the kind keeps; None: nothing is kept
        self.kept_seat: str | None = None
        # that seat's lease is over
        self.must_forget = False
        # there may be something to do
        self.news = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def see_fence(self, fence: int | None) -> None:
        if fence is not None:
            self.highest_fence = max(self.highest_fence, fence)

    def see_seat(self, seat: str | None) -> None:
        """The lease belongs to `seat` now; only while nothing runs."""
        if self.kept_seat is not None and seat != self.kept_seat:
            self.must_forget = True
            self.news.set()

    def accepts(self, assignment: Assignment) -> bool:
        """A node serves exactly the highest fence that it has seen."""
        self.see_fence(assignment.fence)
        return assignment.fence == self.highest_fence

    def begin(self, answer: Answer, seat: str) -> None:
        self.answer = answer
        self.kept_seat = seat
        self.idle.clear()

    def end(self) -> None:
        self.answer = None
        self.idle.set()
