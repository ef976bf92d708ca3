from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.relay.framer import Framer
from engine.types import Channel, Step, TokenLogprobs

CHANNELS: list[Channel] = ["text", "reasoning"]
steps = st.lists(
    st.tuples(
        st.floats(0, 60),  # ms since the step before
        st.lists(st.integers(0, 200_000), min_size=1, max_size=8),
        st.text(max_size=4),
        st.sampled_from(CHANNELS),
    ),
    max_size=60,
)


@dataclass
class Sent:
    at_ms: float
    data: dict[str, Any]


@dataclass
class Sender:
    """Uses a framer as a node does: steps come, a timer flushes when due."""

    framer: Framer
    sent: list[Sent] = field(default_factory=list[Sent])

    def run(self, timed: list[tuple[float, Step]]) -> None:
        now = 0.0
        for at_ms, step in timed:
            due = self.framer.due_in_ms(now)
            if due is not None and now + due < at_ms:
                self.take(now + due, self.framer.flush())
            now = at_ms
            self.take(now, self.framer.add(step, now))
        due = self.framer.due_in_ms(now)
        if due is not None:
            self.take(now + due, self.framer.flush())

    def take(self, at_ms: float, data: dict[str, Any] | None) -> None:
        if data is not None:
            self.sent.append(Sent(at_ms, data))


def timed_steps(raw: list[tuple[float, list[int], str, Channel]]) -> list[tuple[float, Step]]:
    now = 100.0
    timed: list[tuple[float, Step]] = []
    for gap_ms, ids, text, channel in raw:
        now += gap_ms
        timed.append((now, Step(tuple(ids), text, now, channel)))
    return timed


@given(raw=steps, frame_ms=st.sampled_from([0.0, 16.0, 50.0]))
def test_frames_hold_every_step_once_in_order_and_none_is_late(
    raw: list[tuple[float, list[int], str, Channel]], frame_ms: float
) -> None:
    timed = timed_steps(raw)
    sender = Sender(Framer(frame_ms))
    sender.run(timed)
    frames = [sent.data for sent in sender.sent]

    assert [i for f in frames for i in f["ids"]] == [i for _, s in timed for i in s.token_ids]
    assert [pair for f in frames for pair in f["steps"]] == [
        [round(s.t_ms, 3), len(s.token_ids)] for _, s in timed
    ]
    for channel in CHANNELS:
        assert "".join(f["text"] for f in frames if f["channel"] == channel) == "".join(
            s.text for _, s in timed if s.channel == channel
        )
    for sent in sender.sent:
        frame = sent.data
        assert frame["n"] == len(frame["ids"]) == sum(n for _, n in frame["steps"])
        assert frame["t_ms"] == frame["steps"][-1][0]
        assert sent.at_ms - frame["steps"][0][0] <= frame_ms + 0.001
    if timed:
        assert sender.sent[0].at_ms == timed[0][0]


@given(raw=steps)
def test_a_frame_has_one_channel(raw: list[tuple[float, list[int], str, Channel]]) -> None:
    timed = timed_steps(raw)
    sender = Sender(Framer(16.0))
    sender.run(timed)
    channels = iter([s.channel for _, s in timed])
    for sent in sender.sent:
        for _ in sent.data["steps"]:
            assert next(channels) == sent.data["channel"]


def step(t_ms: float, channel: Channel = "text") -> Step:
    return Step((1,), "x", t_ms, channel)


def test_slow_steps_are_not_kept_back() -> None:
    framer = Framer(16)
    assert all(framer.add(step(t), t) for t in (0.0, 30.0, 46.0, 100.0))
    assert framer.due_in_ms(100.0) is None


def test_fast_steps_share_a_frame() -> None:
    framer = Framer(16)
    assert framer.add(step(0.0), 0.0)
    assert framer.add(step(2.0), 2.0) is None
    assert framer.add(step(10.0), 10.0) is None
    assert framer.due_in_ms(10.0) == 6.0
    assert framer.due_in_ms(20.0) == 0.0
    frame = framer.add(step(16.5), 16.5)
    assert frame is not None
    assert frame["steps"] == [[2.0, 1], [10.0, 1], [16.5, 1]]
    assert framer.flush() is None


def test_a_flush_counts_as_a_frame() -> None:
    framer = Framer(16)
    framer.add(step(0.0), 0.0)
    framer.add(step(2.0), 2.0)
    assert framer.flush()
    assert framer.add(step(17.0), 17.0) is None
    assert framer.due_in_ms(17.0) == 15.0


def test_a_change_of_channel_closes_the_frame() -> None:
    framer = Framer(16)
    framer.add(step(0.0, "reasoning"), 0.0)
    framer.add(step(1.0, "reasoning"), 1.0)
    closed = framer.add(step(2.0, "text"), 2.0)
    assert closed is not None
    assert (closed["channel"], closed["n"]) == ("reasoning", 1)
    rest = framer.flush()
    assert rest is not None
    assert (rest["channel"], rest["n"]) == ("text", 1)


def test_logprobs_travel_with_the_ids_they_belong_to() -> None:
    framer = Framer(16)
    framer.add(step(0), 0)
    first = Step((5, 6), "ab", 1, logprobs=(TokenLogprobs(-0.5), TokenLogprobs(-1.5)))
    second = Step((7,), "c", 2, logprobs=(TokenLogprobs(-0.25, ((7, -0.25), (9, -2.0))),))
    framer.add(first, 1)
    framer.add(second, 2)
    frame = framer.flush()
    assert frame
    assert frame["ids"] == [5, 6, 7]
    assert frame["logprobs"] == [[-0.5, []], [-1.5, []], [-0.25, [[7, -0.25], [9, -2.0]]]]
