"""Clocks that are wrong: only the store's counts, and even that may go back."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from app.node.kinds.scripted import Script
from app.store import keys
from app.store.client import Store
from tests.app.node.desk import POOL, Place, tokens_of, work
from tests.app.node.processes import process
from tests.app.node.test_process import EXPECTED
from tests.waiting import until

APP = Path(__file__).parents[3] / "app"


def test_the_line_and_its_nodes_never_read_a_wall_clock() -> None:
    """Durations are measured on the monotonic clock; moments are the store's."""
    files = [file for room in ("line", "node", "relay") for file in (APP / room).rglob("*.py")]
    assert len(files) > 20
    readers = [f for f in files if re.search(r"time\.time|datetime|time_ns|gmtime", f.read_text())]
    assert readers == []


async def test_nodes_with_clocks_twenty_minutes_apart_continue_each_others_answers(
    store: Store, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_time = time.time
    # this side is wrong too: in between, by seven minutes
    monkeypatch.setattr(time, "time", lambda: true_time() + 420)
    place = Place.on(store)
    stalls = ("--stall-at", "5")
    async with process(valkey_url, "ahead", *stalls, clock_wrong_seconds=600) as ahead:
        await until(place.has_nodes, within_seconds=30, what="registered")
        generation = await place.ask(work())

        async def has_written() -> bool:
            return len(tokens_of(await place.entries(generation))) == 5

        await until(has_written, what="five tokens")
        fast = ("--tokens-per-second", "5000")
        async with process(valkey_url, "behind", *fast, clock_wrong_seconds=-600):
            ahead.kill()
            entries = await place.ended(generation, within_seconds=60)
    assert entries[-1].kind == "done"
    assert tokens_of(entries) == EXPECTED[:50]
    timing = entries[-1].data["timing"]
    assert 0 <= timing["queue_ms"] < 60_000
    assert 0 <= timing["total_ms"] < 60_000


async def test_a_store_that_lost_all_and_whose_clock_went_back_is_served_on(store: Store) -> None:
    """The node has seen fences of a later time, and refuses lower ones: it must not refuse for ever."""
    place = Place.on(store, heartbeat_seconds=0.1)
    script = Script(tokens_per_second=5000, prefill_ms_per_token=0)
    async with place.node(script):
        before = await place.ended(await place.ask(work()))
        await store.command("FLUSHALL")
        await store.command("SET", keys.pool_prefix(POOL) + "clock", -86_400_000)
        await until(place.has_nodes, what="registered again")
        after = await place.ended(await place.ask(work()))
    assert [one[-1].kind for one in (before, after)] == ["done", "done"]
    assert len(tokens_of(after)) == 50
