"""A whole site of real processes that a test may kill, freeze and wake: store, web replicas, nodes.

The append-only file of the store is the run's history, and `check` reads it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import httpx

from app.line.line import Line
from app.node.kinds import scripted_model
from app.settings import Settings
from app.store import keys
from app.store.client import Store
from app.work import Work
from tests.app.node.processes import wrong_clock
from tests.app.store.servers import OwnServer
from tests.faults.node import ANSWER_TOKENS, runs_of
from tests.history import events as e
from tests.history.aof import steps_of
from tests.history.chronicle import chronicle
from tests.history.promises import assert_kept
from tests.waiting import until

ROOT = Path(__file__).parents[2]
POOL = "scripted"
# Short times, so that much happens; in the order that the settings ask for.
BRISK: Mapping[str, str] = {
    "BATON_SLICE_SECONDS": "6",
    "BATON_IDLE_LIMIT_SECONDS": "3",
    "BATON_RECONNECT_GRACE_SECONDS": "10",
    "BATON_ANSWER_CAP_SECONDS": "4",
    "BATON_STUCK_SECONDS": "8",
    "BATON_RESCUE_SECONDS": "30",
    "BATON_SIGN_IN_TRIES_PER_MINUTE": "10000",
    "BATON_REQUESTS_PER_MINUTE": "100000",
    "BATON_SHUTDOWN_GRACE_SECONDS": "1",
}
# A connection whose other end is silent is given up after this.
PULLED_CABLE_MS = 3000


class Process:
    """One process that can be started again as it was."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        fd: int = -1,
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._words = [*prefix, sys.executable, *words]
        self._variables = variables
        self._log = log
        self._fds = () if fd < 0 else (fd,)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, cwd=ROOT, env={**os.environ, **self._variables},
                stdout=log, stderr=log, pass_fds=self._fds,
            )  # fmt: skip

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def killed(self) -> None:
        self.signal(signal.SIGKILL)
        await self.ended()

    async def ended(self, within_seconds: float = 30) -> int:
        process = self._process
        assert process is not None
        await until(lambda: process.poll() is not None, within_seconds=within_seconds)
        return process.returncode

    def stop(self) -> None:
        """At the end of a test, however it ends."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Site:
    """Start it with `site`."""

    def __init__(self, folder: Path, store: OwnServer, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.store = store
        self.webs: list[Process] = []
        self.nodes: list[Process] = []
        self.urls: list[str] = []
        self.readings: list[e.Reading] = []
        self._variables = {
            **BRISK, **settings,
            "BATON_DATA_FOLDER": str(folder), "BATON_LOG_JSON": "true",
        }  # fmt: skip
        self._listeners: list[socket.socket] = []

    def add_web(
        self,
        store_url: str | None = None,
        *,
        host: str = "127.0.0.1",
        clock_wrong_seconds: int = 0,
    ) -> Process:
        """One more replica; its port outlives it, as under a supervisor."""
        listener = socket.create_server((host, 0), backlog=512)
        # as app/web.py does, but sooner
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, PULLED_CABLE_MS)
        os.set_inheritable(listener.fileno(), True)
        self._listeners.append(listener)
        self.urls.append(f"http://{host}:{listener.getsockname()[1]}")
        fd = listener.fileno()
        words = ["-m", "app.cli", "web", "--listener-fd", str(fd)]
        more = wrong_clock(clock_wrong_seconds) if clock_wrong_seconds else {}
        web = self._process(f"web-{len(self.webs)}", words, store_url, fd, more=more)
        self.webs.append(web)
        return web

    def add_node(
        self,
        name: str = "",
        *,
        tokens_per_second: float = 100,
        store_url: str | None = None,
        prefix: Sequence[str] = (),
    ) -> Process:
        name = name or f"node-{len(self.nodes)}"
        runs_file = str(self.folder / "runs.jsonl")
        words = ["-m", "tests.faults.node", runs_file, name, POOL, str(tokens_per_second)]
        node = self._process(name, words, store_url, prefix=prefix)
        self.nodes.append(node)
        return node

    def _process(
        self,
        name: str,
        words: Sequence[str],
        store_url: str | None,
        fd: int = -1,
        prefix: Sequence[str] = (),
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> Process:
        variables = {
            **self._variables, "BATON_REDIS_URL": store_url or self.store.url, **more,
        }  # fmt: skip
        process = Process(name, words, variables, self.folder / f"{name}.log", fd, prefix)
        process.start()
        return process

    async def ready(self, nodes: int | None = None) -> None:
        """All replicas answer, and so many nodes have come (all, unless told)."""
        async with httpx.AsyncClient(timeout=5) as client:
            for url in self.urls:
                await until(lambda url=url: _is_ready(client, url), within_seconds=60, what=url)
        if not self.nodes:
            return
        wanted = len(self.nodes) if nodes is None else nodes
        await until(lambda: self._has_nodes(wanted), within_seconds=60, what="nodes")

    async def _has_nodes(self, count: int) -> bool:
        for process in (*self.webs, *self.nodes):
            assert process.is_running, f"{process.name} ended: {process.log[-2000:]}"
        async with self.line() as line:
            return any(pool.nodes >= count for pool in await line.pools()) or not count

    @asynccontextmanager
    async def line(self) -> AsyncGenerator[Line]:
        """A look at the line that changes nothing of it."""
        async with Store.connect(self.store.url) as store:
            yield Line(store, Settings(redis_url=self.store.url))

    async def move_clock(self, seconds: float) -> None:
        """The store's, as the line reads it."""
        async with Store.connect(self.store.url) as store:
            await store.command("INCRBY", keys.pool_prefix(POOL) + "clock", round(seconds * 1000))

    async def free_nodes(self) -> bool:
        """No node is held, and all are there."""
        async with self.line() as line:
            pools = await line.pools()
            return any(pool.nodes == len(self.nodes) for pool in pools)

    async def all_over(self, within_seconds: float = 60) -> None:
        """Everybody has gone: nobody waits and nothing is held."""

        async def is_empty() -> bool:
            async with Store.connect(self.store.url) as store:
                return not await store.command("HLEN", keys.seats(POOL))

        await until(is_empty, within_seconds=within_seconds, what="everything is over")

    def check(self, *, is_whole: bool = True) -> e.History:
        """Stop everything and read the history: no promise may be broken in it."""
        self.stop()
        self.store.stop()
        history = self.history_of(self.store, is_whole=is_whole)
        assert_kept(history)
        return history

    def history_of(self, store: OwnServer, *, is_whole: bool = True) -> e.History:
        """As that store wrote it down; it must have been stopped."""
        events = list(chronicle(map(steps_of, store.lives())))
        asked = {
            ev.generation: ev.payload for _, ev in events if isinstance(ev, e.Asked) and ev.payload
        }
        return e.History(
            events=events,
            runs=runs_of(self.folder / "runs.jsonl"),
            readings=self.readings,
            expected_ids={name: _expected(payload) for name, payload in asked.items()},
            is_whole=is_whole,
        )

    def stop(self) -> None:
        for process in (*self.webs, *self.nodes):
            process.stop()
        for listener in self._listeners:
            listener.close()


def _expected(payload: bytes) -> list[int]:
    work = Work.from_bytes(payload)
    return list(scripted_model.answer_ids(work.prompt_ids, None, ANSWER_TOKENS))[: work.max_tokens]


async def _is_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/healthz")).status_code == 200
    except httpx.TransportError:
        return False


@asynccontextmanager
async def site(
    folder: Path, store: OwnServer, *, webs: int = 2, nodes: int = 2, **settings: str
) -> AsyncGenerator[Site]:
    """A running site; `store` keeps (see `recorder`). Nothing of it is left at the end."""
    made = Site(folder, store, settings)
    try:
        for _ in range(webs):
            made.add_web()
        for _ in range(nodes):
            made.add_node()
        await made.ready()
        yield made
    finally:
        made.stop()
        await asyncio.sleep(0)
