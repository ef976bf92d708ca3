"""A whole Baton for a benchmark: store, web process and nodes, each a process of its own."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from app.line.line import Line
from app.settings import Settings
from app.store.client import Store
from app.store.embedded import EmbeddedStore
from tests.bench.stamped_node import MODEL
from tests.waiting import until

READY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Product:
    """What runs. `web` and `store` are processes to be measured."""

    url: str
    store_url: str
    folder: Path
    web: psutil.Process
    store: psutil.Process
    # without credentials
    client: httpx.AsyncClient

    @property
    def servers(self) -> tuple[psutil.Process, ...]:
        return self.web, self.store


@contextmanager
def running(
    *command: str, stdout: int | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of the block; killed if it does not end when told to."""
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(command, stdout=stdout, env=variables) as child:
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()


@contextmanager
def embedded_store(folder: Path) -> Iterator[EmbeddedStore]:
    """The store as `baton serve` starts it, persistence included."""
    store = EmbeddedStore.start(folder)
    try:
        yield store
    finally:
        store.stop()


@contextmanager
def stamped_node(
    store_url: str, rate: float, name: str, how_many: int = 1
) -> Iterator[subprocess.Popen[bytes]]:
    """Nodes whose tokens are the times at which they left the engine (`tests.bench.stamped_node`).

    Standard output has a line for each answer that was cancelled: when that was noticed, in ns.
    """
    command = (sys.executable, "-m", "tests.bench.stamped_node", store_url, str(rate), name)
    with running(*command, str(how_many), stdout=subprocess.PIPE) as node:
        yield node


@asynccontextmanager
async def product(**settings: str) -> AsyncGenerator[Product]:
    """Store and web process; nodes come extra. `settings`: further `BATON_*` variables."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
        store = stack.enter_context(embedded_store(folder))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        variables = {
            "BATON_REDIS_URL": store.url, "BATON_DATA_FOLDER": str(folder), "BATON_PORT": str(port),
            "BATON_REQUESTS_PER_MINUTE": "1000000", "BATON_LOG_LEVEL": "error",
            "BATON_SHUTDOWN_GRACE_SECONDS": "1", **settings,
        }  # fmt: skip
        web = stack.enter_context(
            running(str(Path(sys.executable).parent / "baton"), "web", environment=variables)
        )
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))

        async def alive() -> bool:
            try:
                return (await client.get("/healthz")).status_code == 200
            except httpx.TransportError:
                return False

        await until(alive, within_seconds=READY_SECONDS, what="the web process")
        assert store.process is not None, "a store of an earlier run was adopted"
        processes = psutil.Process(web.pid), psutil.Process(store.process.pid)
        yield Product(url, store.url, folder, *processes, client)


async def nodes_ready(store_url: str, count: int, pool: str = MODEL) -> None:
    """Wait until so many nodes of the pool are idle."""
    async with Store.connect(store_url) as store:
        line = Line(store, Settings(redis_url=store_url))

        async def ready() -> bool:
            return any(one.name == pool and one.idle_nodes >= count for one in await line.pools())

        await until(ready, within_seconds=READY_SECONDS, what=f"{count} idle nodes")


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in processes)


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def make_key(made: Product) -> str:
    """The secret API key of a new account."""
    person = {"name": "bench", "password": "only for this run"}
    headers = {"Origin": made.url}
    (await made.client.post("/api/sign-up", json=person, headers=headers)).raise_for_status()
    wish = {"name": "b", "kind": "secret", "origins": []}
    answer = await made.client.post("/api/keys", json=wish, headers=headers)
    answer.raise_for_status()
    made.client.cookies.clear()
    return answer.json()["secret"]
