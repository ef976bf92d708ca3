"""Cables pulled for real: nobody says goodbye, packets just stop."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.app.store.servers import OwnServer
from tests.faults.island import Island, island
from tests.faults.people import Page, Person
from tests.faults.site import POOL, site
from tests.faults.wire import wire
from tests.history import events as e
from tests.waiting import until

pytestmark = pytest.mark.slow

CALM = {"BATON_SLICE_SECONDS": "120", "BATON_RECONNECT_GRACE_SECONDS": "5"}
# Asks, and prints what comes until the end of time.
ASK = """
import sys, urllib.request
url, cookie, body = sys.argv[1:]
headers = {"Origin": url, "Cookie": cookie, "Content-Type": "application/json"}
asked = urllib.request.Request(url + "/api/chat", body.encode(), headers)
for line in urllib.request.urlopen(asked):
    print(line.decode(), end="", flush=True)
"""


@pytest.fixture
def far() -> Iterator[Island]:
    with island() as made:
        yield made


async def test_a_phone_that_lost_its_network_gives_the_node_to_the_next(
    recorder: OwnServer, tmp_path: Path, far: Island
) -> None:
    async with site(tmp_path, recorder, webs=0, nodes=0, **CALM) as running:
        running.add_web(host=far.host)
        # ann's answer would take minutes
        running.add_node("slow", tokens_per_second=2)
        await running.ready()
        async with Person(running, "ann") as ann, Person(running, "bob") as bob:
            cookie = "; ".join(f"{name}={value}" for name, value in ann.cookies.items())
            body = json.dumps({"id": uuid4().hex, "question": "Why?", "pool": POOL})
            said = tmp_path / "said"
            with said.open("wb") as out:
                phone = await asyncio.create_subprocess_exec(
                    *far.prefix,
                    sys.executable,
                    "-c",
                    ASK,
                    running.urls[0],
                    cookie,
                    body,
                    stdout=out,
                )
            try:
                await until(lambda: "event: delta" in said.read_text(), within_seconds=30)
                page = Page(uuid4().hex)
                asking = asyncio.create_task(bob.ask("Why not?", page=page, max_tokens=2))
                await until(lambda: page.rank == 1, within_seconds=30, what="bob waits")
                far.pull_cable()
                async with asyncio.timeout(60):
                    await asking
            finally:
                phone.kill()
                await phone.wait()
            await bob.leave()
        await running.all_over()
        history = running.check()
    assert page.heard[-1].name == "done"
    cancelled = [one.data for _, one in history.events if isinstance(one, e.Written)]
    assert "gone" in [data.get("stop_reason") for data in cancelled]


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
