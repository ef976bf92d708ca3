"""Thousands of waiting browsers in one process of its own; its parent asks it over a pipe.

    python -m tests.bench.line.crowd_client HOST PORT < commands

First line: a JSON list of [path, cookie]. It connects them all and says so; then it obeys, one line
each, answering with one line of JSON:

    mark        forget what was told so far                         -> {}
    told SECONDS  wait until everybody was told another rank or number of waiting, or for so long
                -> {"told": how many, "last_ns": when the last of them was (monotonic)}
"""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import time
from contextlib import suppress
from typing import cast

import orjson
import uvloop

from app.web import raise_file_limit
from tests.waiting import until

AT_ONCE = 64
# of one address to one port there are some 28,000 local ports, less those of connections just closed
SOURCES = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
SECONDS = 300
_SHOWN = re.compile(rb'"rank":(\d+|null),"waiting":(\d+)')


class Browser(asyncio.Protocol):
    """One waiting connection. `shown` is the (rank, waiting) it was told last."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.began = asyncio.get_running_loop().create_future()
        self.shown: bytes | None = None
        self.marked: bytes | None = None
        self.told_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        found = _SHOWN.search(data)
        if found is None:
            if not self.began.done() and data.startswith(b"HTTP/1.1 ") and data[9:12] != b"200":
                self.began.set_exception(RuntimeError(data.decode()))
            return
        self.shown = found[0]
        if not self.told_ns and self.shown != self.marked:
            self.told_ns = time.monotonic_ns()
        if not self.began.done():
            self.began.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.began.done():
            self.began.set_exception(exc or ConnectionError("closed before the first event"))

    def mark(self) -> None:
        self.marked, self.told_ns = self.shown, 0


async def connect(host: str, port: int, asked: list[tuple[str, str]]) -> list[Browser]:
    """All of them, each having heard its first state."""
    free = asyncio.Semaphore(AT_ONCE)
    loop = asyncio.get_running_loop()
    sources = itertools.cycle(SOURCES if host == "127.0.0.1" else (host,))

    async def one(path: str, cookie: str) -> Browser:
        request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n\r\n"
        async with free:
            _, browser = await loop.create_connection(
                lambda: Browser(request.encode()), host, port, local_addr=(next(sources), 0)
            )
            await browser.began
            return browser

    async with asyncio.timeout(SECONDS):
        return await asyncio.gather(*(one(*each) for each in asked))


async def told(browsers: list[Browser], seconds: float) -> dict[str, int]:
    def all_told() -> bool:
        return all(one.told_ns for one in browsers)

    with suppress(AssertionError):
        await until(all_told, within_seconds=seconds)
    heard = [one.told_ns for one in browsers if one.told_ns]
    return {"told": len(heard), "last_ns": max(heard, default=0)}


async def main() -> None:
    raise_file_limit()
    loop = asyncio.get_running_loop()
    asked = orjson.loads(await loop.run_in_executor(None, sys.stdin.readline))
    browsers = await connect(sys.argv[1], int(sys.argv[2]), asked)
    print(len(browsers), flush=True)
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        answer: dict[str, int] = {}
        if command[0] == "mark":
            for one in browsers:
                one.mark()
        else:
            answer = await told(browsers, float(command[1]))
        print(orjson.dumps(answer).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
