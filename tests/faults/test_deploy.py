"""A new version is put in place while many wait: replicas are replaced one by one, nobody moves."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from tests.app.store.servers import OwnServer
from tests.bench.line.people import make_people
from tests.faults.people import Page, Person
from tests.faults.site import POOL, site
from tests.history import events as e
from tests.waiting import until

pytestmark = pytest.mark.slow

WAITING = 300
CALM = {
    "BATON_SLICE_SECONDS": "600",
    "BATON_RECONNECT_GRACE_SECONDS": "60",
    "BATON_MAX_WAITING": "1000",
    "BATON_MAX_WAITING_PER_ADDRESS": "1000",
}


async def test_replicas_are_replaced_one_by_one_and_three_hundred_keep_their_places(
    recorder: OwnServer, tmp_path: Path
) -> None:
    async with (
        site(tmp_path, recorder, webs=2, nodes=0, **CALM) as running,
        Person(running, "ann") as ann,
    ):
        # ann's answer takes longer than all of this
        running.add_node(tokens_per_second=2)
        await running.ready()
        cookies = [one.cookie for one in await make_people(tmp_path, WAITING, POOL)]
        people = [Person(running, f"p{n}", cookie=cookie) for n, cookie in enumerate(cookies)]
        hers = Page(uuid4().hex)
        pages = [Page(uuid4().hex) for _ in people]
        async with asyncio.TaskGroup() as group:
            group.create_task(ann.ask("Why?", page=hers))
            await until(lambda: hers.text, within_seconds=30, what="ann's first token")
            for person, page in zip(people, pages, strict=True):
                group.create_task(person.ask("?", page=page, max_tokens=2))
            await until(lambda: _all_heard(pages, [0] * WAITING), within_seconds=90)
            places = await _settled(pages)
            for web in running.webs:
                web.signal(signal.SIGTERM)
                assert await web.ended(within_seconds=30) == 0
                web.start()
                await running.ready()
                heard = [len(page.heard) for page in pages]
                await until(lambda heard=heard: _all_heard(pages, heard), within_seconds=60)
                assert [page.rank for page in pages] == places
            # grants go on: in the same order
            await ann.leave()
            at_head = places.index(1)
            await until(lambda: pages[at_head].is_over, within_seconds=30, what="the next's answer")
            assert pages[at_head].heard[-1].name == "done"
            await asyncio.gather(*(person.leave() for person in people))
        await asyncio.gather(*(person.__aexit__() for person in people))
        await running.all_over()
        history = running.check()
    opened = [event for _, event in history.events if isinstance(event, e.Opened)]
    assert len(opened) == WAITING + 1


async def _settled(pages: Sequence[Page]) -> list[int | None]:
    """Everybody's rank, once all are told of all who came."""
    wanted = list(range(1, len(pages) + 1))
    await until(lambda: sorted(page.rank or 0 for page in pages) == wanted, within_seconds=60)
    return [page.rank for page in pages]


def _all_heard(pages: Sequence[Page], before: Sequence[int]) -> bool:
    return all(len(page.heard) > count for page, count in zip(pages, before, strict=True))
