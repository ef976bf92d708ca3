"""Events on the wire, and their agreement with what the page reads."""

from __future__ import annotations

import re
from pathlib import Path

import orjson

from app.chat.events import (
    EVENTS,
    Delta,
    Done,
    Failed,
    Moved,
    NodeShown,
    PromptProgress,
    Rate,
    State,
    to_json,
)
from app.chat.sse import encode_data, encode_event

STREAM_JS = Path(__file__).parents[3] / "static" / "js" / "stream.js"

STATE = State(
    version=3, phase="reading", rank=None, waiting=2, behind_own=0, eta=(10.0, 20.0), pool="m",
    node=NodeShown("one", "H200"), slice_left_seconds=12.5, prompt=PromptProgress(5, 10, 2),
    moved=Moved(7, exact=False), reason=None,
)  # fmt: skip


def test_the_page_knows_the_same_events():
    listed = re.search(r"export const EVENTS = (\[.*?\]);", STREAM_JS.read_text("utf-8"))
    assert listed
    assert orjson.loads(listed[1]) == list(EVENTS)


def test_a_state_has_its_fields_as_documented():
    assert orjson.loads(to_json(STATE)) == {
        "version": 3, "phase": "reading", "rank": None, "waiting": 2, "behind_own": 0,
        "eta": [10.0, 20.0], "pool": "m", "node": {"name": "one", "hardware": "H200"},
        "slice_left_seconds": 12.5, "prompt": {"done": 5, "total": 10, "cached": 2},
        "moved": {"from": 7, "exact": False}, "reason": None, "claim_left_seconds": None,
    }  # fmt: skip


def test_an_event_is_one_block_of_lines_whatever_its_text_holds():
    nasty = "a\r\nb\n\n\rdata: c\u2028\u2029\x85\0 🙂"
    sent = encode_event("5-0", Delta(nasty, "text", 2, 1.5))
    assert b"\r" not in sent
    head, name, data, *end = sent.split(b"\n")
    assert (head, name, end) == (b"id: 5-0", b"event: delta", [b"", b""])
    assert orjson.loads(data.removeprefix(b"data: "))["text"] == nasty


def test_only_events_with_a_position_have_an_id():
    for event in (STATE, Rate(None, 3, None, None), Failed("c", "m", retry=False)):
        assert b"id:" not in encode_event(None, event)


def test_done_and_v1_data():
    done = Done("stop", None, {"prompt_tokens": 1}, {"queue_ms": 0.5}, {"peak": 9.0}, {"mean": 1.0})
    assert orjson.loads(to_json(done))["timing"] == {"queue_ms": 0.5}
    assert encode_data(b"{}") == b"data: {}\n\n"
