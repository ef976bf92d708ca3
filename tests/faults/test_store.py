"""The store goes away under a site of real processes: killed, frozen, emptied, its disk full.

One person hears an answer, another waits; whatever becomes of them is read off the history at the end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from app.chat.history import LOST_CODE
from app.errors import StoreUnavailableError
from tests.app.store.servers import OwnServer
from tests.faults.people import Page, Person
from tests.faults.site import POOL, Site, site
from tests.history import events as e
from tests.waiting import until

pytestmark = pytest.mark.slow

# Longer than a node works without the store (3 s), and than it takes to be declared dead (5 s).
AWAY_SECONDS = 7.0
# A restart of a machine: longer than every grace here. Real minutes are for `make soak`; elsewhere it
# is longer than a node works without the store, and the store's clock makes up what is left.
GONE_SECONDS = 60.0
REALLY_GONE_SECONDS = GONE_SECONDS if float(os.environ.get("SOAK_SECONDS", "0")) else 4.0
# of ann's answer, at 100 a second
TOKENS = 250
CALM = {"BATON_SLICE_SECONDS": "120", "BATON_RECONNECT_GRACE_SECONDS": "30"}


@dataclass(frozen=True, slots=True)
class Scene:
    """Ann is being answered, bob is next in line."""

    site: Site
    bob_in_person: Person
    ann: Page
    bob: Page
    asking: list[asyncio.Task[None]]

    async def over(self) -> None:
        """Both have heard their end."""
        async with asyncio.timeout(90):
            await asyncio.wait(self.asking)


@asynccontextmanager
async def scene(folder: Path, recorder: OwnServer) -> AsyncGenerator[Scene]:
    async with (
        site(folder, recorder, webs=1, nodes=1, **CALM) as running,
        Person(running, "ann") as ann,
        Person(running, "bob") as bob,
    ):
        pages = Page(uuid4().hex), Page(uuid4().hex)
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(_ask(ann, pages[0], TOKENS))]
            await until(lambda: pages[0].text, within_seconds=30, what="ann's first token")
            asking.append(group.create_task(_ask(bob, pages[1], 20)))
            await until(lambda: pages[1].rank == 1, within_seconds=30, what="bob waits")
            yield Scene(running, bob, *pages, asking)


async def _ask(person: Person, page: Page, tokens: int) -> None:
    await person.ask("Why?", page=page, max_tokens=tokens)
    await person.leave()


async def test_a_store_that_is_away_for_a_minute_costs_a_pause_and_nothing_else(
    recorder: OwnServer, tmp_path: Path
) -> None:
    async with scene(tmp_path, recorder) as now:
        recorder.kill()
        await _is_told(now.site)
        await asyncio.sleep(REALLY_GONE_SECONDS)
        recorder.start()
        await now.site.move_clock(GONE_SECONDS - REALLY_GONE_SECONDS)
        await now.over()
        await now.site.all_over()
        history = now.site.check()
    assert [page.heard[-1].name for page in (now.ann, now.bob)] == ["done", "done"]
    assert now.ann.heard[-1].data["usage"]["completion_tokens"] == TOKENS
    # the place was kept: nobody was asked to wait anew, nobody lost a ticket
    opened = [one for _, one in history.events if isinstance(one, e.Opened)]
    assert len(opened) == 2


async def _is_told(site: Site) -> None:
    """The process lives, says that it cannot serve, and a program hears when to come back."""
    url = site.urls[0]
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await client.get(f"{url}/healthz")).status_code == 200
        ready = await client.get(f"{url}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "no store")


async def test_a_store_that_loses_its_data_ends_every_turn_and_starts_empty(
    recorder: OwnServer, tmp_path: Path
) -> None:
    async with scene(tmp_path, recorder) as now:
        recorder.kill()
        recorder.forget()
        recorder.start()
        await now.over()
        for page in (now.ann, now.bob):
            last = page.heard[-1]
            assert (last.name, last.data["code"], last.data["retry"]) == ("failed", LOST_CODE, True)
        # the node has registered anew, and the line serves on
        await now.site.ready()
        again = await now.bob_in_person.ask("Again?", max_tokens=5)
        assert again.heard[-1].name == "done"
        await now.bob_in_person.leave()
        await now.site.all_over()
        history = now.site.check()
    fences = [one.fence for _, one in history.events if isinstance(one, e.Given)]
    assert fences == sorted(fences)
    assert len(fences) == 2


async def test_a_full_disk_is_said_and_survived(recorder: OwnServer, tmp_path: Path) -> None:
    async with scene(tmp_path, recorder) as now:
        recorder.fill_disk()
        url = now.site.urls[0]
        async with httpx.AsyncClient(timeout=30, headers={"Origin": url}) as client:
            client.cookies = now.bob_in_person.cookies

            async def refused() -> httpx.Response | None:
                body = {"id": uuid4().hex, "question": "?", "pool": POOL}
                async with client.stream("POST", f"{url}/api/chat", json=body) as answer:
                    if answer.status_code != 503:
                        return None
                    await answer.aread()
                    return answer

            answer = await until(refused, within_seconds=30, what="writes are refused")
        assert answer is not None
        error = answer.json()["error"]
        assert (error["code"], error["message"]) == (
            StoreUnavailableError.code, StoreUnavailableError.message,
        )  # fmt: skip
        assert answer.headers["Retry-After"]
        await asyncio.sleep(AWAY_SECONDS)
        recorder.free_disk()
        await now.over()
        await now.site.all_over()
        now.site.check()
    assert [page.heard[-1].name for page in (now.ann, now.bob)] == ["done", "done"]
