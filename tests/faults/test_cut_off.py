"""One process loses the network, or stands still, while the others go on: who holds what afterwards?"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from app.node.kinds import scripted_model
from tests.app.serving import heard
from tests.app.store.servers import OwnServer
from tests.faults.people import Page, Person
from tests.faults.site import Site, site
from tests.faults.wire import Wire, wire
from tests.history import events as e
from tests.history.events import Heard, Reading
from tests.waiting import until

pytestmark = pytest.mark.slow

CALM = {"BATON_SLICE_SECONDS": "120", "BATON_RECONNECT_GRACE_SECONDS": "30"}
TOKENS = 300


@pytest.fixture
async def cable(recorder: OwnServer) -> AsyncIterator[Wire]:
    async with wire(recorder.socket) as made:
        yield made


async def test_a_node_behind_a_cut_wire_stops_and_adds_nothing_when_it_is_mended(
    recorder: OwnServer, tmp_path: Path, cable: Wire
) -> None:
    async with (
        site(tmp_path, recorder, webs=1, nodes=0, **CALM) as running,
        Person(running, "ann") as ann,
    ):
        running.add_node("far", store_url=cable.url, tokens_per_second=10)
        await running.ready()
        page = Page(uuid4().hex)
        asking = asyncio.create_task(ann.ask("Why?", page=page, max_tokens=TOKENS))
        await until(lambda: page.text, within_seconds=30, what="the first token")
        running.add_node("near", tokens_per_second=60)
        await running.ready()
        cable.cut()
        await until(lambda: page.moved_to("near"), within_seconds=30, what="near goes on")
        cable.mend()
        await asking
        # the far one comes back by itself and is asked next
        await until(lambda: running.free_nodes(), within_seconds=30)
        await ann.leave()
        await running.all_over()
        history = running.check()
    assert page.heard[-1].name == "done"
    expected = _text(history, page)
    assert page.text == expected
    far, near = sorted(history.runs, key=lambda run: run.fence)
    assert (far.node, near.node) == ("far", "near")
    # it stopped by its own clock, before or soon after the line gave its work away
    assert far.over_us is not None
    assert far.over_us - near.fence < 1_000_000


def _text(history: e.History, page: Page) -> str:
    """What an undisturbed run would have written."""
    ids = history.expected_ids[page.generation]
    return scripted_model.tokenizer().decode(list(ids))


async def test_a_replica_behind_a_cut_wire_says_so_and_its_page_goes_on(
    recorder: OwnServer, tmp_path: Path, cable: Wire
) -> None:
    async with site(tmp_path, recorder, webs=0, nodes=1, **CALM) as running:
        running.add_web(store_url=cable.url)
        await running.ready()
        async with Person(running, "ann") as ann:
            page = Page(uuid4().hex)
            asking = asyncio.create_task(ann.ask("Why?", page=page, max_tokens=TOKENS))
            await until(lambda: page.text, within_seconds=30, what="the first token")
            cable.cut()
            await until(lambda: page.is_troubled, within_seconds=30, what="the page is told")
            cable.mend()
            await asking
            await ann.leave()
        await running.all_over()
        running.check()
    assert page.heard[-1].name == "done"


async def test_the_replica_of_a_holder_that_sleeps_and_wakes_up_delivers_nothing_old(
    recorder: OwnServer, tmp_path: Path
) -> None:
    """The holder's replica stands still for longer than every limit: the lease goes to the next;
    when the replica wakes up, not one token of the next one's answer is in the first one's page."""
    grace = {"BATON_RECONNECT_GRACE_SECONDS": "3"}
    async with (
        site(tmp_path, recorder, webs=2, nodes=0, **CALM | grace) as running,
        Person(running, "ann", only=0) as ann,
        Person(running, "bob", only=1) as bob,
    ):
        running.add_node("slow", tokens_per_second=30)
        await running.ready()
        page = Page(uuid4().hex)
        asking = asyncio.create_task(ann.ask("Why?", page=page, max_tokens=TOKENS))
        await until(lambda: page.text, within_seconds=30, what="ann's first token")
        running.webs[0].signal(signal.SIGSTOP)
        his = await bob.ask("Why not?", max_tokens=10)
        running.webs[0].signal(signal.SIGCONT)
        await asking
        await asyncio.gather(ann.leave(), bob.leave())
        await running.all_over()
        history = running.check()
    assert his.heard[-1].name == "done"
    last = page.heard[-1]
    assert (last.name, last.data["finish_reason"]) == ("done", "cancelled")
    one, two = (event for _, event in history.events if isinstance(event, e.LeaseBegan))
    assert one.ticket != two.ticket


async def test_a_killed_replicas_pages_go_on_elsewhere_two_at_once_too(
    recorder: OwnServer, tmp_path: Path
) -> None:
    async with (
        site(tmp_path, recorder, webs=2, nodes=1, **CALM) as running,
        Person(running, "ann", only=0) as ann,
    ):
        page = Page(uuid4().hex)
        asking = asyncio.create_task(ann.ask("Why?", page=page, max_tokens=TOKENS))
        await until(lambda: page.text, within_seconds=30, what="the first token")
        ann.only = 1
        await running.webs[0].killed()
        # a second device resumes the same turn in the same moment, from its beginning
        second = await _watch(running, ann, page.generation)
        await asking
        await ann.leave()
        await running.all_over()
        running.check()
    assert page.heard[-1].name == second[-1].name == "done"
    assert page.text == "".join(one.data["text"] for one in second if one.name == "delta")


async def _watch(running: Site, person: Person, generation: str) -> list[Heard]:
    url = f"{running.urls[1]}/api/turns/{generation}/events"
    async with (
        httpx.AsyncClient(timeout=60, cookies=person.cookies) as client,
        client.stream("GET", url) as response,
    ):
        events = [Heard(one.name, one.data) async for one in heard(response)]
    running.readings.append(Reading("second device", generation, events))
    return events


async def test_sigterm_with_fifty_open_streams_ends_in_time_and_all_go_on_elsewhere(
    recorder: OwnServer, tmp_path: Path
) -> None:
    async with (
        site(tmp_path, recorder, webs=2, nodes=1, **CALM) as running,
        Person(running, "ann", only=0) as ann,
    ):
        pages = [Page(uuid4().hex)]
        async with asyncio.TaskGroup() as group:
            group.create_task(ann.ask("Why?", page=pages[0], max_tokens=400))
            await until(lambda: pages[0].text, within_seconds=30, what="the first token")
            for _ in range(49):
                page = Page(pages[0].generation, position="0-0")
                pages.append(page)
                group.create_task(ann.ask("", page=page))
            await until(lambda: all(page.text for page in pages), within_seconds=30)
            ann.only = 1
            running.webs[0].signal(signal.SIGTERM)
            assert await running.webs[0].ended(within_seconds=20) == 0
        await ann.leave()
        await running.all_over()
        running.check()
    assert {page.text for page in pages} == {pages[0].text}
    assert {page.heard[-1].name for page in pages} == {"done"}
