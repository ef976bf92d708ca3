"""A web process that is told to stop, as the shipped command runs it: its API answers end whole."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.node.kinds.scripted import Script
from tests.app.serving import PASSWORD, scripted_node
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# as the default is: a whole number, for which the server's own time-out once was the shorter one
GRACE_SECONDS = "2"


@asynccontextmanager
async def web_process(
    store_url: str, folder: Path
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.cli", "web", "--listener-fd", str(listener.fileno()),
            cwd=ROOT,
            env={
                **os.environ,
                "BATON_DATA_FOLDER": str(folder),
                "BATON_REDIS_URL": store_url,
                "BATON_SHUTDOWN_GRACE_SECONDS": GRACE_SECONDS,
            },
            pass_fds=(listener.fileno(),),
        )  # fmt: skip
        try:
            yield process, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def key_of(client: httpx.AsyncClient, url: str) -> str:
    """The secret key of a new account."""
    origin = {"Origin": url}
    account = {"name": "Eva", "password": PASSWORD}
    assert (await client.post("/api/sign-up", json=account, headers=origin)).status_code == 201
    made = {"name": "test", "kind": "secret", "origins": []}
    return (await client.post("/api/keys", json=made, headers=origin)).json()["secret"]


async def test_streams_end_with_a_farewell_and_whole_answers_with_an_error(
    valkey_url: str, tmp_path: Path
):
    async with (
        scripted_node(valkey_url, Script(stall_at=5)),
        web_process(valkey_url, tmp_path) as (process, url),
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        client.headers["Authorization"] = f"Bearer {await key_of(client, url)}"
        asked: dict[str, Any] = {
            "model": "scripted",
            "messages": [{"role": "user", "content": "?"}],
        }
        whole = asyncio.create_task(client.post("/v1/chat/completions", json=asked))

        async def runs() -> bool:
            return 'baton_nodes_idle{pool="scripted"} 0.0' in (await client.get("/metrics")).text

        await until(runs, what="the whole answer runs")
        # the same account asks again: this one waits behind it
        lines: list[str] = []
        streamed = asked | {"stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=streamed) as response:
            async for line in response.aiter_lines():
                if not lines:
                    process.terminate()
                if line:
                    lines.append(line)
        answer = await whole
        assert await process.wait() == 0
    assert '"server_stopping"' in lines[-2]
    assert lines[-1] == "data: [DONE]"
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "server_stopping"
