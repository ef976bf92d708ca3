"""The pure part of watching: what places and stream entries become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.chat.events import Delta, Done, Event, Failed, Moved, Rate, State, to_json
from app.chat.story import START, Story
from app.line.types import NodePublic, Place
from app.relay.types import Entry
from engine.metrics import Gauge
from engine.types import TokenLogprobs

NODE = NodePublic("n1", "node one", "H200")
OTHER = NodePublic("n2", "node two", "H200")
WAITING = Place(
    generation="g", state="queued", ticket="t", rank=3, waiting=5, behind_own=0, eta_seconds=None,
    node=None, slice_left_seconds=None, ending=False, returned=False, queued_ms=0.0,
)  # fmt: skip
GIVEN = replace(WAITING, state="assigned", rank=None, node=NODE)
# when the node began, on the store's clock
ZERO_MS = 1_000_000


def reading(t_ms: float, done: int = 0, *, zero_ms: int = ZERO_MS, **more: Any) -> Entry:
    data = {"done": done, "total": 10, "cached": 0, "t_ms": t_ms} | more
    return Entry(f"{zero_ms + int(t_ms)}-0", "reading", data)


def delta(
    t_ms: float, n: int = 1, text: str = "x", *, channel: str = "text", zero_ms: int = ZERO_MS
) -> Entry:
    data = {"text": text, "channel": channel, "n": n, "ids": [], "t_ms": t_ms, "steps": [[t_ms, n]]}
    return Entry(f"{zero_ms + int(t_ms)}-1", "delta", data)


def done(t_ms: float) -> Entry:
    data = {"finish_reason": "stop", "stop_reason": None, "usage": {}, "timing": {}, "tps": {},
            "accepted": {}}  # fmt: skip
    return Entry(f"{ZERO_MS + int(t_ms)}-2", "done", data)


def states(story: Story, now_ms: float) -> list[State]:
    return [event for event in story.due(now_ms) if isinstance(event, State)]


def phase(story: Story, now_ms: float) -> str | None:
    told = states(story, now_ms)
    return told[-1].phase if told else None


def test_phases_follow_the_turn():
    story = Story("m")
    assert phase(story, 0.0) is None
    story.see(WAITING)
    assert phase(story, 10_000.0) == "waiting"
    story.see(GIVEN)
    assert phase(story, 10_001.0) == "allocating"
    story.take([reading(0)])
    assert phase(story, 10_002.0) == "reading"
    story.take([delta(100)])
    assert phase(story, 10_003.0) == "answering"
    story.see(replace(GIVEN, ending=True))
    assert phase(story, 10_004.0) == "ending"


def test_a_call_to_the_turn_is_a_phase_of_its_own():
    story = Story("m")
    story.see(WAITING)
    assert phase(story, 10_000.0) == "waiting"
    story.see(replace(WAITING, rank=1, claim_left_seconds=30.0))
    (state,) = states(story, 10_001.0)
    assert (state.phase, state.rank, state.claim_left_seconds) == ("claim", 1, 30.0)
    assert state.reason is not None
    story.see(replace(WAITING, rank=1))
    (state,) = states(story, 10_002.0)
    assert (state.phase, state.claim_left_seconds, state.reason) == ("waiting", None, None)


def test_a_place_older_than_the_entries_does_not_turn_the_phase_back():
    story = Story("m")
    story.see(WAITING)
    story.take([reading(0), delta(50)])
    story.see(WAITING)
    # it would say rank 3 and no node; nor does its watcher spin until the place comes
    assert states(story, 5001.0) == []
    assert Story.next_in(story, 5001.0) > 0
    story.see(GIVEN)
    (state,) = states(story, 5002.0)
    assert (state.phase, state.rank, state.node is None) == ("answering", None, False)
    story.see(GIVEN)
    assert phase(story, 10_000.0) == "answering"


def test_a_third_node_has_the_last_word_on_whether_it_is_exact():
    story = Story("m")
    story.see(GIVEN)
    story.take([reading(0), delta(100, 4), reading(0, exact=True), reading(9, 5)])
    assert states(story, ZERO_MS + 1.0)[-1].moved == Moved(4, exact=True)
    # the second one died before its first token
    story.take([reading(0, zero_ms=ZERO_MS + 6000, exact=False)])
    assert states(story, ZERO_MS + 6001.0)[-1].moved == Moved(4, exact=False)
    story.take([reading(10, 9, zero_ms=ZERO_MS + 6000), delta(20, zero_ms=ZERO_MS + 6000)])
    assert states(story, ZERO_MS + 6030.0)[-1].moved == Moved(4, exact=False)


def test_a_failed_node_shows_as_lost_and_then_as_moved():
    story = Story("m")
    story.see(GIVEN)
    story.take([reading(0), delta(100, 4), delta(200, 3)])
    story.see(replace(WAITING, returned=True, rank=1))
    (lost,) = states(story, ZERO_MS + 5000.0)
    assert (lost.phase, lost.rank) == ("lost", 1)
    assert lost.reason
    story.see(replace(GIVEN, node=OTHER))
    assert phase(story, ZERO_MS + 5001.0) == "allocating"
    zero_ms = ZERO_MS + 6000
    story.take([reading(0, zero_ms=zero_ms, exact=True)])
    (again,) = states(story, ZERO_MS + 6001.0)
    assert (again.phase, again.moved) == ("reading", Moved(7, exact=True))
    # times go on where the first node's clock would stand
    told = story.take([delta(500, 2, zero_ms=zero_ms)])
    assert told[0][1] == Delta("x", "text", 2, 6000 + 500 - 100)
    assert [event for event in story.due(ZERO_MS + 6600.0) if isinstance(event, Rate)][
        0
    ].tokens == 9


def test_state_comes_on_every_change_and_at_least_every_five_seconds():
    story = Story("m")
    story.see(WAITING)
    assert len(states(story, 100_000.0)) == 1
    assert states(story, 104_000.0) == []
    assert len(states(story, 104_600.0)) == 1
    story.see(replace(WAITING, rank=2))
    (state,) = states(story, 104_601.0)
    assert state.rank == 2
    # what others move is told once a second
    story.see(replace(WAITING, rank=2, waiting=6))
    assert states(story, 104_700.0) == []
    (state,) = states(story, 105_602.0)
    assert state.waiting == 6


def test_versions_grow_also_within_a_millisecond():
    story = Story("m")
    versions: list[int] = []
    for rank in range(9, 0, -1):
        story.see(replace(WAITING, rank=rank))
        versions += [state.version for state in states(story, 50_000.0)]
    assert versions == sorted(set(versions))
    assert len(versions) == 9
    later = Story("m")
    later.see(WAITING)
    assert states(later, 51_000.0)[0].version > versions[-1]


def test_trouble_is_told_at_once_and_taken_back():
    story = Story("m")
    story.trouble("away")
    (state,) = states(story, 1000.0)
    assert (state.phase, state.reason) == ("waiting", "away")
    story.see(GIVEN)
    story.trouble(None)
    (state,) = states(story, 1001.0)
    assert (state.phase, state.reason) == ("allocating", None)


def test_the_last_event_is_told_once_and_ends_the_story():
    story = Story("m")
    told = story.take([reading(0), delta(10), done(20)])
    assert [type(event) for _, event in told] == [Delta, Done]
    assert story.over
    failed = Entry("5-0", "failed", {"code": "c", "message": "m", "retry": True})
    story = Story("m", after="9-0")
    assert story.take([failed]) == [("5-0", Failed("c", "m", retry=True))]


PIECES = st.lists(
    st.tuples(
        st.floats(0, 400),
        st.integers(0, 5),
        st.text(max_size=3),
        st.sampled_from(["text", "reasoning"]),
    ),
    min_size=1,
    max_size=30,
)


def entries_of(pieces: list[tuple[float, int, str, str]]) -> list[Entry]:
    t_ms = 0.0
    made: list[Entry] = [reading(0)]
    for number, (gap_ms, n, text, channel) in enumerate(pieces):
        t_ms += gap_ms
        data = {"text": text, "channel": channel, "n": n, "t_ms": t_ms, "steps": [[t_ms, n]]}
        made.append(Entry(f"{ZERO_MS + int(t_ms)}-{number + 1}", "delta", data))
    return [*made, Entry(f"{ZERO_MS + int(t_ms)}-{len(pieces) + 1}", "done", done(0).data)]


def texts(events: list[Event]) -> dict[str, str]:
    made = {"text": "", "reasoning": ""}
    for event in events:
        if isinstance(event, Delta):
            made[event.channel] += event.text
    return made


@given(PIECES, st.integers(0, 40), st.integers(1, 7))
def test_whatever_is_read_together_and_resumed_the_text_is_the_same(
    pieces: list[tuple[float, int, str, str]], resumed_at: int, page: int
):
    entries = entries_of(pieces)
    at = min(resumed_at, len(entries) - 1)
    after = entries[at - 1].id if at else START
    story = Story("m", after)
    events = [
        event
        for i in range(0, len(entries), page)
        for _, event in story.take(entries[i : i + page])
    ]
    fresh = [entry.data for entry in entries[at:] if entry.kind == "delta"]
    for channel in ("text", "reasoning"):
        expected = "".join(data["text"] for data in fresh if data["channel"] == channel)
        assert texts(events)[channel] == expected
    assert sum(event.n for event in events if isinstance(event, Delta)) == sum(
        d["n"] for d in fresh
    )
    assert [type(event) for event in events if isinstance(event, Done | Failed)] == [Done]
    assert isinstance(events[-1], Done)
    times = [event.t_ms for event in events if isinstance(event, Delta)]
    assert times == sorted(times)


@given(PIECES, st.floats(0, 3000))
def test_the_live_rate_is_the_gauges_on_the_nodes_clock(
    pieces: list[tuple[float, int, str, str]], later_ms: float
):
    entries = entries_of(pieces)[:-1]
    story, gauge = Story("m"), Gauge()
    story.take(entries)
    for entry in entries[1:]:
        gauge.add(entry.data["t_ms"], entry.data["n"])
    last_ms = entries[-1].data["t_ms"]
    # the store's ids are whole milliseconds, so the mapping may be off by one
    rates = [event for event in story.due(ZERO_MS + last_ms + later_ms) if isinstance(event, Rate)]
    if gauge.tokens == 0:
        assert rates == []
        return
    (rate,) = rates
    assert rate.tokens == gauge.tokens
    assert (rate.average or 0.0) == round(gauge.average(), 2)
    assert (rate.peak or 0.0) == round(gauge.peak(), 2)
    near = [gauge.live(last_ms + later_ms + shift_ms) for shift_ms in (0, 0.25, 0.5, 0.75, 1.0)]
    if None not in near:
        shown = [value for value in near if value is not None]
        assert rate.live is not None
        assert min(shown) * 0.95 - 1 <= rate.live <= max(shown) * 1.05 + 1


def test_rates_come_ten_times_a_second_from_the_first_token_on():
    story = Story("m")
    story.take([reading(0)])
    assert [event for event in story.due(ZERO_MS + 50.0) if isinstance(event, Rate)] == []
    story.take([delta(100)])
    rates = [
        event
        for ms in range(100, 2100, 10)
        for event in story.due(ZERO_MS + float(ms))
        if isinstance(event, Rate)
    ]
    assert 19 <= len(rates) <= 21
    assert rates[0].live is None
    assert rates[-1].live == 0.0


def test_a_late_loop_does_not_catch_up_with_a_burst_of_rates():
    story = Story("m")
    story.take([reading(0), delta(100)])
    assert len([e for e in story.due(ZERO_MS + 100.0) if isinstance(e, Rate)]) == 1
    assert len([e for e in story.due(ZERO_MS + 5000.0) if isinstance(e, Rate)]) == 1
    assert [e for e in story.due(ZERO_MS + 5050.0) if isinstance(e, Rate)] == []


def test_logprobs_of_joined_pieces_keep_their_tokens_and_no_page_hears_of_them():
    pieces = [delta(100), delta(200), delta(300)]
    for n, token_id in enumerate((5, 7)):
        more = {"ids": [token_id], "logprobs": [[-0.5, [[9, -0.1]]]]}
        pieces[n] = replace(pieces[n], data={**pieces[n].data, **more})
    ((_, told),) = Story("m").take(pieces)
    assert isinstance(told, Delta)
    assert told.logprobs == tuple((i, TokenLogprobs(-0.5, ((9, -0.1),))) for i in (5, 7))
    assert b"logprobs" not in to_json(told)


def test_a_frame_with_several_parts_ends_its_piece():
    frames = [delta(float(t), text=text, channel="reasoning") for t, text in enumerate("abc")]
    frames[1] = replace(frames[1], data={**frames[1].data, "tail": [["text", "B"]]})
    events = [event for _, event in Story("m").take(frames)]
    assert [event.pieces for event in events if isinstance(event, Delta)] == [
        (("reasoning", "ab"), ("text", "B")),
        (("reasoning", "c"),),
    ]
    assert [orjson.loads(to_json(event)).get("tail") for event in events] == [[["text", "B"]], None]
