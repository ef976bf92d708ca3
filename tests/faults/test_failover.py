"""The store fails over to a replica that lacks the last writes: a node is held twice, by two memories."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest

from app.chat.history import LOST_CODE
from app.store import keys
from app.store.client import Store
from tests.app.store.servers import OwnServer
from tests.faults.node import runs_of
from tests.faults.people import Page, Person
from tests.faults.site import POOL, Site, site
from tests.faults.wire import wire
from tests.history import events as e
from tests.history.promises import assert_kept
from tests.waiting import until

pytestmark = pytest.mark.slow

# The node sleeps while the store changes, and is not to be declared dead by it.
PATIENT = {
    "BATON_SLICE_SECONDS": "120",
    "BATON_RECONNECT_GRACE_SECONDS": "30",
    "BATON_NODE_DEAD_SECONDS": "30",
}


@pytest.fixture
def primary() -> Iterator[OwnServer]:
    yield from _server(_free_port())


@pytest.fixture
def replica(primary: OwnServer) -> Iterator[OwnServer]:
    for server in _server():
        server.follow(primary)
        yield server


def _server(port: int = 0) -> Iterator[OwnServer]:
    """With a port it keeps from its start; without, from when it follows another."""
    folder = Path(tempfile.mkdtemp(prefix="bf-"))
    server = OwnServer(folder, keeps=bool(port), port=port)
    server.start()
    yield server
    server.kill()
    shutil.rmtree(folder)


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


# ten minutes slow: the replica's own fence for bob is below the one that the node serves already
@pytest.mark.parametrize("clock_wrong_seconds", [0, -600])
async def test_a_replica_that_lost_the_last_writes_mixes_no_answers_and_serves_on(
    primary: OwnServer, replica: OwnServer, tmp_path: Path, clock_wrong_seconds: int
) -> None:
    async with (
        wire(primary.socket) as address,
        site(tmp_path, primary, webs=0, nodes=0, **PATIENT) as running,
    ):
        running.add_web(store_url=address.url)
        node = running.add_node("only", store_url=address.url, tokens_per_second=30)
        await running.ready()
        async with Person(running, "ann") as ann, Person(running, "bob") as bob:
            replica.part()
            hers, his = Page(uuid4().hex), Page(uuid4().hex)
            async with asyncio.TaskGroup() as group:
                group.create_task(ann.ask("Why?", page=hers, max_tokens=300))
                await until(lambda: hers.text, within_seconds=30, what="ann's first token")
                node.signal(signal.SIGSTOP)
                running.store = replica
                await running.move_clock(clock_wrong_seconds)
                address.lead_to(replica.socket)
                group.create_task(bob.ask("Why not?", page=his, max_tokens=20))
                # she holds it by one memory, he by the other
                await until(lambda: _has_a_node(replica, his), within_seconds=30, what="granted")
                node.signal(signal.SIGCONT)
            await asyncio.gather(ann.leave(), bob.leave())
            # the node serves on, and so does the line
            again = await ann.ask("Why?", max_tokens=20)
            await ann.leave()
        await running.all_over()
        running.stop()
        lost, kept = _histories(running, primary, replica)
    assert_kept(lost)
    assert_kept(kept)
    last = hers.heard[-1]
    assert (last.name, last.data["code"], last.data["retry"]) == ("failed", LOST_CODE, True)
    assert (his.heard[-1].name, again.heard[-1].name) == ("done", "done")
    # by the node's own account, over both memories: never an old fence, never two answers at once
    runs = sorted(runs_of(tmp_path / "runs.jsonl"), key=lambda run: run.began_us)
    assert [run.generation for run in runs] == [
        page.generation for page in (hers, his, again)
    ]  # fmt: skip
    for one, two in pairwise(runs):
        assert one.fence < two.fence
        assert one.over_us is not None
        assert one.over_us <= two.began_us


async def _has_a_node(store: OwnServer, page: Page) -> bool:
    async with Store.connect(store.url) as connected:
        key = keys.generation_hash(POOL, page.generation)
        return await connected.command("HGET", key, "state") == b"assigned"


def _histories(running: Site, *stores: OwnServer) -> Iterator[e.History]:
    """One of each memory. What the nodes ran goes over both, and the fences of a slow clock are no
    times that it could be held against: the test looks at that itself."""
    for store in stores:
        store.stop()
        # what was under way at the fail-over has no end in the memory that was lost
        yield replace(running.history_of(store, is_whole=store is stores[-1]), runs=())
