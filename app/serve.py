"""The supervisor: everything that Baton needs on one machine, started, watched, stopped in order.

port -> embedded Valkey (unless BATON_REDIS_URL) -> nodes and web -> "ready"
stop: web, while its streams may end -> nodes, which finish or hand back -> Valkey
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from redis.exceptions import RedisError

from app.accounts.db import Database
from app.accounts.first_start import first_start_token
from app.children import Child, ChildRefusedError, ChildSpec
from app.errors import StoreUnavailableError
from app.line.line import Line
from app.node.backoff import Backoff
from app.ops import logs
from app.process import EXIT_CONFIGURATION
from app.settings import Settings
from app.store.client import Store
from app.store.valkey import EmbeddedStoreError, take_lock
from app.store_keeper import StoreKeeper, store_for
from app.web import PortError, listening_socket, stop_seconds, url_of

log = structlog.get_logger(__name__)

# A child gets this much longer than it may take by itself before it is killed.
KILL_AFTER_SECONDS = 10.0

_MISSING = {
    "no node": "The web process is up; the node is loading its model ...",
    "no store": "The web process is up, but the store does not answer yet ...",
}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    nodes: int
    # what each `baton node` is started with, without its name
    node_arguments: tuple[str, ...]
    # "host:port" on which the embedded store lets nodes of other machines in
    listen: str | None


class FolderError(Exception):
    """The data folder cannot be used; `str(error)` says what to do."""


def run_serve(options: ServeOptions, settings: Settings) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP; the exit code. Faults of the set-up are one sentence."""
    logs.configure(settings)
    try:
        # before anything else starts: nothing has to be cleaned up when the port is taken
        with (
            listening_socket(settings.host, settings.port) as listener,
            _alone_in(settings.data_folder),
            store_for(settings, options.listen) as store,
        ):
            return asyncio.run(_Supervisor(options, settings, listener, store).run())
    except (PortError, FolderError, EmbeddedStoreError) as error:
        print(f"baton serve: {error}", file=sys.stderr, flush=True)
        return EXIT_CONFIGURATION


@contextmanager
def _alone_in(folder: Path) -> Generator[None]:
    """Hold the data folder: two of us would stop each other's store. Raises FolderError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take_lock(folder / "serve.lock")
    except OSError as error:
        raise FolderError(
            f"The data folder {folder} cannot be written ({error.strerror}). "
            "Choose another with --data-folder or BATON_DATA_FOLDER."
        ) from None
    if lock is None:
        raise FolderError(
            f"Baton already runs on the data folder {folder}. "
            "Stop that one, or choose another folder with --data-folder."
        )
    try:
        yield
    finally:
        os.close(lock)


class _Supervisor:
    def __init__(
        self,
        options: ServeOptions,
        settings: Settings,
        listener: socket.socket,
        store: StoreKeeper,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._store = store
        self._node_arguments = options.node_arguments
        self._stop = asyncio.Event()
        self._web = self._web_child()
        self._nodes = [self._node_child(number) for number in range(1, options.nodes + 1)]

    async def run(self) -> int:
        """Keep the children until told to stop, or until one says that its set-up is wrong."""
        loop = asyncio.get_running_loop()
        for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # nohup has switched one off
            if signal.getsignal(which) != signal.SIG_IGN:
                loop.add_signal_handler(which, self._on_signal)
        keepers = [asyncio.create_task(child.keep()) for child in (self._web, *self._nodes)]
        keepers += [asyncio.create_task(self._store.keep()), asyncio.create_task(self._welcome())]
        try:
            await asyncio.wait(keepers, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stop.set()
            await self._web.stop()
            # nobody is to connect to a port behind which nobody serves
            self._listener.close()
            await asyncio.gather(*(node.stop() for node in self._nodes))
            # the children's are over by now
            for task in keepers:
                task.cancel()
        return _judge(await asyncio.gather(*keepers, return_exceptions=True))

    def _on_signal(self) -> None:
        if self._stop.is_set():
            # asked twice: no more grace
            for child in (self._web, *self._nodes):
                child.kill()
        self._stop.set()

    async def _welcome(self) -> None:
        """Say where everything is, once a question would be answered; returns when told to stop.

        Until then what is still missing is said once.
        """
        backoff = Backoff()
        said = ""
        while not self._stop.is_set() and (status := await _status(self._listener)) != "ready":
            if status != said and status in _MISSING:
                print(_MISSING[status], flush=True)
                said = status
            await backoff.wait(unless=self._stop)
        if not self._stop.is_set():
            print("\n".join(await self._where_it_is()), flush=True)
        await self._stop.wait()

    async def _where_it_is(self) -> list[str]:
        url = url_of(self._listener, self._settings)
        lines = [f"Baton is ready: {url}"]
        async with Database.open(self._settings.database()) as database:
            token = await first_start_token(database)
        if token is not None:
            lines += ["Make yourself its administrator:", f"    {url}/sign-in#admin={token}"]
        lines += await self._how_to_join()
        return [*lines, f"Data lies in {self._settings.data_folder.resolve()}", "Ctrl-C stops it."]

    async def _how_to_join(self) -> list[str]:
        """A line for each model that is served; none while the store is out of reach."""
        lines: list[str] = []
        try:
            async with Store.connect(self._store.url) as store:
                pools = [one.name for one in await Line(store, self._settings).pools() if one.nodes]
            for pool in pools:
                if (join_url := self._store.join_url(pool)) is not None:
                    lines += [f"Nodes of other machines join the line of {pool} with:"]
                    lines += [
                        f"    BATON_REDIS_URL='{join_url}' baton node --pool {pool} --model ..."
                    ]
        except (StoreUnavailableError, RedisError) as error:
            log.warning("how nodes join cannot be said now; see baton node invite", why=str(error))
        return lines

    def _environment(self) -> dict[str, str]:
        """What the children must know besides the supervisor's own variables. The store's address
        may hold a password, so it travels here and not on a command line."""
        return {
            "BATON_REDIS_URL": self._store.url,
            "BATON_DATA_FOLDER": str(self._settings.data_folder.resolve()),
            "BATON_HOST": self._settings.host,
            "BATON_PORT": str(self._listener.getsockname()[1]),
        }

    def _web_child(self) -> Child:
        descriptor = self._listener.fileno()
        return Child(
            ChildSpec(
                name="web",
                arguments=("web", "--listener-fd", str(descriptor)),
                environment=self._environment(),
                descriptors=(descriptor,),
                grace_seconds=stop_seconds(self._settings) + KILL_AFTER_SECONDS,
            )
        )

    def _node_child(self, number: int) -> Child:
        # a name of its own, so that a restarted node takes its own place again
        host = socket.gethostname().partition(".")[0] or "node"
        name = f"{host}-{number}"
        return Child(
            ChildSpec(
                name=f"node {name}",
                arguments=("node", "--name", name, *self._node_arguments),
                environment=self._environment(),
                grace_seconds=self._settings.shutdown_grace_seconds + KILL_AFTER_SECONDS,
            )
        )


def _judge(results: Sequence[BaseException | None]) -> int:
    """The exit code, by how the tasks ended; raises what nobody foresaw."""
    code = 0
    for result in results:
        match result:
            case None | asyncio.CancelledError():
                pass
            case ChildRefusedError():
                # the child itself has said what is wrong
                code = EXIT_CONFIGURATION
            case BaseException():
                raise result
    return code


async def _status(listener: socket.socket) -> str:
    """What the web process says of itself at /readyz; "" while it does not serve."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: baton\r\nConnection: close\r\n\r\n")
            try:
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
        return str(json.loads(body)["status"]) if head.startswith(b"HTTP/") else ""
    except (OSError, TimeoutError, ValueError, KeyError):
        return ""
