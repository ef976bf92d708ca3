"""The supervisor with real processes: start, stop in order, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest
from redis import Redis

from app.store import keys
from app.store.embedded import find_embedded
from app.store.valkey import take_lock
from tests.app.served import FAST_STOP, ROOT, ready, running, serving
from tests.waiting import until

pytestmark = pytest.mark.slow


STOPPED = re.compile(
    r'"child": "(web|node)[^"]*", "event": "child stopped"|"event": "(store) stopped"'
)


async def status_of(url: str) -> int:
    def get() -> int:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status

    return await asyncio.to_thread(get)


async def test_it_starts_says_where_it_is_and_stops_in_order(tmp_path: Path):
    async with serving(tmp_path) as served:
        children = await ready(served)
        assert set(children) == {"web", "node", "store"}
        assert await status_of(f"{served.url}/healthz") == 200
        text = "\n".join(served.lines)
        assert re.search(rf"{re.escape(served.url or '')}/sign-in#admin=\S+", text)
        assert str(tmp_path) in text

        served.process.send_signal(signal.SIGTERM)
        assert await served.ended() == 0
    stopped = [
        found.group(1) or found.group(2) for found in map(STOPPED.search, served.lines) if found
    ]
    assert stopped == ["web", "node", "store"]
    assert not running(list(children.values()))


async def test_killing_the_supervisor_leaves_no_process_behind(tmp_path: Path):
    async with serving(tmp_path) as served:
        children = await ready(served)
        served.process.kill()
        await until(
            lambda: not running(list(children.values())), within_seconds=30, what="all gone"
        )


async def test_a_child_that_dies_is_started_again_in_the_same_place(tmp_path: Path):
    async with serving(tmp_path) as served:
        children = await ready(served)
        for child in children.values():
            child.kill()

        def replaced() -> bool:
            new = served.children()
            return set(new) == set(children) and all(
                new[role].pid != child.pid for role, child in children.items()
            )

        await until(replaced, within_seconds=30, what="restarted")
        assert await status_of(f"{served.url}/healthz") == 200
        await until(lambda: pools_of(tmp_path), within_seconds=30, what="the node is back")


def pools_of(folder: Path) -> list[str]:
    """The pools that have a node."""
    url = find_embedded(folder)
    if url is None:
        return []
    with Redis.from_url(url, decode_responses=True) as client:
        names = cast("set[str]", client.smembers(keys.POOLS))
        return [name for name in names if client.zcard(f"{keys.pool_prefix(name)}nodes")]


def nodes_of(folder: Path, pool: str) -> int:
    with Redis.from_url(find_embedded(folder) or "") as client:
        return cast("int", client.zcard(f"{keys.pool_prefix(pool)}nodes"))


async def test_ctrl_c_reaches_the_supervisor_alone(tmp_path: Path):
    async with serving(tmp_path) as served:
        children = await ready(served)
        groups = {role: os.getpgid(child.pid) for role, child in children.items()}
        assert os.getpgid(served.process.pid) not in groups.values()
        served.process.send_signal(signal.SIGINT)
        assert await served.ended() == 0
    assert not running(list(children.values()))


async def test_a_node_from_elsewhere_joins_with_the_printed_command(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serving(tmp_path / "here", "--listen", f"127.0.0.1:{port}") as served:
        await ready(served)
        printed = re.search(
            r"BATON_REDIS_URL='(redis://\S+)' baton node --pool (\S+)", "\n".join(served.lines)
        )
        assert printed
        # nothing of the password on any command line
        secret = urlsplit(printed.group(1)).password
        assert secret
        words = [word for child in served.children().values() for word in child.cmdline()]
        assert secret not in " ".join(words)
        joined = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.cli", "node", "--kind", "scripted",
            "--name", "far", "--pool", printed.group(2),
            cwd=ROOT,
            env={**os.environ, **FAST_STOP, "BATON_REDIS_URL": printed.group(1),
                 "BATON_DATA_FOLDER": str(tmp_path / "there")},
        )  # fmt: skip
        try:
            await until(
                lambda: nodes_of(tmp_path / "here", printed.group(2)) == 2,
                within_seconds=60,
                what="joined",
            )
        finally:
            joined.terminate()
            assert await joined.wait() == 0


async def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with serving(tmp_path / "data", "--port", port) as served:
            assert await served.ended() == 2
    text = "\n".join(served.lines)
    assert port in text
    assert "--port" in text
    assert "Traceback" not in text
    assert not (tmp_path / "data").exists()


async def test_a_second_one_on_the_same_data_folder_is_refused(tmp_path: Path):
    with open_lock(tmp_path / "serve.lock"):
        async with serving(tmp_path) as served:
            assert await served.ended() == 2
    assert "already runs" in "\n".join(served.lines)


@contextmanager
def open_lock(path: Path) -> Iterator[None]:
    lock = take_lock(path)
    assert lock is not None
    yield
    os.close(lock)


async def test_a_model_that_is_missing_stops_it_with_the_sentence(tmp_path: Path):
    async with serving(tmp_path, "--kind", "local", "--model", "/nowhere/m.gguf") as served:
        assert await served.ended() == 2
    text = "\n".join(served.lines)
    assert "/nowhere/m.gguf" in text
    assert "Traceback" not in text
