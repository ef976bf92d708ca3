"""A replica whose machine's clock is wrong by ten minutes, beside one whose clock is right."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from tests.app.store.servers import OwnServer
from tests.faults.people import Page, Person
from tests.faults.site import site
from tests.history import events as e
from tests.waiting import until

pytestmark = pytest.mark.slow

WRONG_SECONDS = 600
CALM = {"BATON_SLICE_SECONDS": "120", "BATON_RECONNECT_GRACE_SECONDS": "30"}
TOKENS = 150


@pytest.mark.parametrize("wrong_seconds", [WRONG_SECONDS, -WRONG_SECONDS])
async def test_a_replica_whose_clock_is_wrong_serves_beside_one_whose_is_right(
    recorder: OwnServer, tmp_path: Path, wrong_seconds: int
) -> None:
    """Ann is answered by way of the wrong one, bob waits by way of the right one; then each goes on
    at the other: the sign-in counts there, the place is the same, and so are text and figures."""
    async with site(tmp_path, recorder, webs=0, nodes=0, **CALM) as running:
        running.add_web(clock_wrong_seconds=wrong_seconds)
        running.add_web()
        running.add_node(tokens_per_second=50)
        await running.ready()
        async with Person(running, "ann", only=0) as ann, Person(running, "bob", only=1) as bob:
            pages = Page(uuid4().hex), Page(uuid4().hex)
            async with asyncio.TaskGroup() as group:
                group.create_task(ann.ask("Why?", page=pages[0], max_tokens=TOKENS))
                await until(lambda: pages[0].text, within_seconds=30, what="ann's first token")
                group.create_task(bob.ask("Why not?", page=pages[1], max_tokens=10))
                await until(lambda: pages[1].rank == 1, within_seconds=30, what="bob waits")
                bob.only, ann.only = 0, 1
                # his page is opened again, there
                again = Page(pages[1].generation, position="0-0")
                group.create_task(bob.ask("", page=again))
                await until(lambda: again.rank == 1, within_seconds=30, what="the same place")
                await until(lambda: pages[0].is_over, within_seconds=60)
                await ann.leave()
            await bob.leave()
        await running.all_over()
        history = running.check()
    assert [page.heard[-1].name for page in (*pages, again)] == ["done"] * 3
    assert pages[1].text == again.text
    assert sum(isinstance(event, e.Opened) for _, event in history.events) == 2
    for page in (*pages, again):
        timing = page.heard[-1].data["timing"]
        assert all(0 <= ms < 60_000 for ms in timing.values() if ms is not None), timing
    # the clock was wrong: otherwise this showed nothing
    off_by_seconds = [abs(seconds) for seconds in _sign_ups_ago_seconds(tmp_path)]
    assert max(off_by_seconds) > WRONG_SECONDS - 120
    assert min(off_by_seconds) < 300


def _sign_ups_ago_seconds(folder: Path) -> list[float]:
    with sqlite3.connect(folder / "baton.db") as database:
        made = [row[0] for row in database.execute("SELECT created_at FROM users")]
    moments = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in made]
    return [(datetime.now(UTC) - moment).total_seconds() for moment in moments]
