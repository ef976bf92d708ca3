"""Joining, looking and leaving over HTTP, as signed-in browsers do it, on one web process.

A round is a question that waits in line, a look at the line, and a leave; each request counts as
one operation. The clients share a process of their own.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import httptools
import orjson
import uvloop

from engine.bench.report import Row
from tests.bench.line.people import make_people
from tests.bench.product import nodes_ready, product, stamped_node
from tests.bench.stamped_node import MODEL

CLIENTS = 32
SECONDS = 10.0


async def rows() -> list[Row]:
    settings = {"BATON_SLICE_SECONDS": "86400", "BATON_MAX_WAITING": "1000000"}
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(product(**settings))
        stack.enter_context(stamped_node(made.store_url, 20, "n1"))
        await nodes_ready(made.store_url, 1)
        people = await make_people(made.folder, CLIENTS + 1, MODEL)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.line.requests",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        asked = {"url": made.url, "cookies": [one.cookie for one in people]}
        out, _ = await process.communicate(orjson.dumps(asked))
        if process.returncode:
            raise RuntimeError("the clients have failed; see above")
    named = "join, rank and leave over HTTP with a session, one web process"
    return [Row(named, orjson.loads(out)["per_second"], "requests/s", 600, "higher")]


class Connection:
    """A keep-alive connection; httpx would cost more than the server does."""

    def __init__(self, host: str, port: int, cookie: str) -> None:
        self._address = (host, port)
        self._head = f"Host: {host}:{port}\r\nOrigin: http://{host}:{port}\r\nCookie: {cookie}\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(
        self, method: str, path: str, body: bytes = b"", until: bytes | None = None
    ) -> bytes:
        """Send one request. The whole body of its answer; or, with `until`, as much as has come
        when that is in it, and the connection is closed."""
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        kind = "Content-Type: application/json\r\n" if body else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{kind}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.is_over and not (until and until in answer.body):
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionError(f"{method} {path}: closed after {bytes(answer.body)!r}")
            parser.feed_data(data)
        if parser.get_status_code() >= 400:
            raise RuntimeError(f"{method} {path}: {bytes(answer.body).decode()}")
        if not answer.is_over:
            self.close()
        return bytes(answer.body)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class _Answer:
    """What httptools calls."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.is_over = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_over = True


async def _round(connection: Connection, watching: Connection) -> None:
    question = {"id": uuid4().hex, "question": "go", "settings": {"max_tokens": 10}}
    await watching.ask("POST", "/api/chat", orjson.dumps(question), until=b'"phase":"waiting"')
    await connection.ask("GET", "/api/line")
    await connection.ask("POST", "/api/line/leave")


async def _clients(asked: dict[str, Any]) -> float:
    """Requests a second."""
    host, _, port = asked["url"].removeprefix("http://").partition(":")
    cookies: list[str] = asked["cookies"]
    # the first holds the node, with an answer that outlasts all of this
    holder = Connection(host, int(port), cookies[0])
    question = {"id": uuid4().hex, "question": "go", "settings": {"max_tokens": 100_000}}
    await holder.ask("POST", "/api/chat", orjson.dumps(question), until=b"event: delta")
    done = 0
    ends_s = time.perf_counter() + SECONDS

    async def client(cookie: str) -> None:
        nonlocal done
        connection, watching = (Connection(host, int(port), cookie) for _ in range(2))
        while time.perf_counter() < ends_s:
            await _round(connection, watching)
            done += 3
        connection.close()

    began_s = time.perf_counter()
    await asyncio.gather(*(client(cookie) for cookie in cookies[1:]))
    return done / (time.perf_counter() - began_s)


async def _main() -> None:
    per_second = await _clients(orjson.loads(sys.stdin.buffer.read()))
    print(orjson.dumps({"per_second": per_second}).decode())


if __name__ == "__main__":
    uvloop.run(_main())
