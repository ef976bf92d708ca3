"""Cables pulled for real: nobody says goodbye, packets just stop."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.app.store.servers import OwnServer
from tests.bench.line.people import make_people
from tests.faults.island import Island, island
from tests.faults.people import Page, Person
from tests.faults.site import POOL, Site, site
from tests.faults.wire import wire
from tests.history import events as e
from tests.waiting import until

pytestmark = pytest.mark.slow

CALM = {"BATON_SLICE_SECONDS": "120", "BATON_RECONNECT_GRACE_SECONDS": "5"}
# So many phones wait behind the one that is answered.
PHONES = 20
# Each asks, and prints what comes until the end of time.
ASK = """
import json, sys, threading, urllib.request
url = sys.argv[1]
def ask(number, cookie, body):
    headers = {"Origin": url, "Cookie": cookie, "Content-Type": "application/json"}
    asked = urllib.request.Request(url + "/api/chat", body.encode(), headers)
    for line in urllib.request.urlopen(asked):
        print(number, line.decode(), end="", flush=True)
for line in sys.stdin:
    threading.Thread(target=ask, args=json.loads(line)).start()
"""


@pytest.fixture
def far() -> Iterator[Island]:
    with island() as made:
        yield made


async def test_phones_that_lost_their_network_give_node_and_places_to_the_next(
    recorder: OwnServer, tmp_path: Path, far: Island
) -> None:
    async with (
        site(tmp_path, recorder, webs=0, nodes=0, **CALM) as running,
        AsyncExitStack() as stack,
    ):
        running.add_web(host=far.host)
        # the first one's answer would take minutes
        running.add_node("slow", tokens_per_second=2)
        await running.ready()
        bob = await stack.enter_async_context(Person(running, "bob"))
        cookies = [one.cookie for one in await make_people(tmp_path, PHONES + 1, POOL)]
        said = tmp_path / "said"
        phones = await stack.enter_async_context(_phones(far, running.urls[0], said))

        async def ask(number: int) -> None:
            body = json.dumps({"id": uuid4().hex, "question": "Why?", "pool": POOL})
            phones.write(json.dumps([number, cookies[number], body]).encode() + b"\n")
            await phones.drain()

        await ask(0)
        await until(lambda: "0 event: delta" in said.read_text(), within_seconds=30)
        for number in range(1, PHONES + 1):
            await ask(number)
        await until(lambda: _waiting_are(running, PHONES), within_seconds=30, what="all wait")
        page = Page(uuid4().hex)
        asking = asyncio.create_task(bob.ask("Why not?", page=page, max_tokens=2))
        await until(lambda: page.rank == PHONES + 1, within_seconds=30, what="bob waits")
        far.pull_cable()
        async with asyncio.timeout(90):
            await asking
        await bob.leave()
        await running.all_over()
        history = running.check()
    assert page.heard[-1].name == "done"
    events = [event for _, event in history.events]
    cancelled = [event.data for event in events if isinstance(event, e.Written)]
    assert "gone" in [data.get("stop_reason") for data in cancelled]
    reasons = [event.reason for event in events if isinstance(event, e.Closed)]
    assert reasons.count("away") == PHONES + 1


@asynccontextmanager
async def _phones(far: Island, url: str, said: Path) -> AsyncGenerator[asyncio.StreamWriter]:
    """A line `[number, cookie, body]` is one more phone that asks."""
    with said.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *far.prefix, sys.executable, "-c", ASK, url, stdin=subprocess.PIPE, stdout=out
        )
    try:
        assert process.stdin is not None
        yield process.stdin
    finally:
        process.kill()
        await process.wait()


async def _waiting_are(running: Site, count: int) -> bool:
    async with running.line() as line:
        return (await line.pools())[0].waiting == count


async def test_a_node_whose_cable_was_pulled_hands_over_and_comes_back(
    recorder: OwnServer, tmp_path: Path, far: Island
) -> None:
    async with (
        wire(recorder.socket, far.host) as there,
        site(tmp_path, recorder, webs=1, nodes=0, **CALM) as running,
        Person(running, "ann") as ann,
    ):
        running.add_node("far", store_url=there.url, prefix=far.prefix, tokens_per_second=10)
        await running.ready()
        page = Page(uuid4().hex)
        asking = asyncio.create_task(ann.ask("Why?", page=page, max_tokens=300))
        await until(lambda: page.text, within_seconds=30, what="the first token")
        running.add_node("near", tokens_per_second=400)
        await running.ready()
        far.pull_cable()
        await asking
        far.plug_in()
        await running.ready()
        await ann.leave()
        await running.all_over()
        history = running.check()
    assert page.heard[-1].name == "done"
    assert [run.node for run in sorted(history.runs, key=lambda r: r.fence)] == ["far", "near"]
