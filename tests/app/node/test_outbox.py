"""What an answer has yet to send, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from app.node import outbox as outbox_module
from app.node.outbox import Outbox
from engine.types import Step

FRAME_MS = 16.0


@dataclass(eq=False)
class Timer:
    at_ms: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass(eq=False)
class Clock:
    """A loop whose timers fire when the test says, `late_ms` after their time."""

    late_ms: float
    now_ms: float = 0.0
    timers: list[Timer] = field(default_factory=list[Timer])

    def call_later(self, delay_seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.now_ms + 1000 * delay_seconds, call)
        self.timers.append(timer)
        return timer

    def move_to(self, ms: float) -> None:
        self.now_ms = ms
        due = [timer for timer in self.timers if timer.at_ms + self.late_ms <= ms]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            if not timer.cancelled:
                timer.call()


@pytest.mark.parametrize("late_ms", [0.0, 0.05, 0.25, 1.5])
def test_no_token_waits_longer_than_a_frame_however_late_the_timers(
    late_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(late_ms)
    monkeypatch.setattr(outbox_module, "_now_ms", lambda: clock.now_ms)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    outbox = Outbox(FRAME_MS)
    waited_ms: list[float] = []
    taken = 0
    for count in range(2000):
        clock.move_to(count * 0.2)
        outbox.put_step(Step(token_ids=(count,), text="x", t_ms=clock.now_ms))
        for _, data in outbox._entries[taken:]:
            waited_ms += [clock.now_ms - t_ms for t_ms, _ in data["steps"]]
        taken = len(outbox._entries)
    assert len(waited_ms) > 1800
    assert max(waited_ms) <= FRAME_MS + max(late_ms, 0.2) + 1e-6
