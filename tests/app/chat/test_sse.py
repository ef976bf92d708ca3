"""The response around a stream: what it holds is let go however the stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.chat.sse import COMMENT, Body, SseResponse
from app.ops.body_limit import BodyLimit
from app.settings import Settings

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}


class Held:
    """Something precious, held while the body is open."""

    def __init__(self, *, endless: bool = True) -> None:
        self.is_open = False
        self.opened = 0
        self._endless = endless

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Body]:
        self.is_open = True
        self.opened += 1
        try:
            async with aclosing(self._chunks()) as body:
                yield body
        finally:
            self.is_open = False

    async def _chunks(self) -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"
        while self._endless:
            await asyncio.sleep(0)
            yield b"data: 2\n\n"


def response(held: Held, **settings: Any) -> SseResponse:
    return SseResponse(held, Settings(**settings), headers={"X-Generation-Id": "g"})


async def stays() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_comment_comes_first_and_headers_forbid_buffering():
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    held = Held(endless=False)
    await response(held)(SCOPE, stays, send)
    start, *bodies = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert headers["x-generation-id"] == "g"
    assert headers["x-accel-buffering"] == "no"
    assert headers["cache-control"] == "no-store"
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    # forbidden in HTTP/2
    assert "connection" not in headers
    assert [message["body"] for message in bodies] == [COMMENT, b"data: 1\n\n", b""]
    assert not held.is_open


async def test_a_reader_that_takes_nothing_is_dropped():
    async def send(message: Message) -> None:
        if message.get("body") == b"data: 2\n\n":
            await asyncio.Event().wait()

    held = Held()
    async with asyncio.timeout(15):
        await response(held, send_timeout_seconds=0.05)(SCOPE, stays, send)
    assert held.opened == 1
    assert not held.is_open


async def test_a_reader_that_leaves_ends_the_stream():
    left = asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body") == b"data: 2\n\n":
            left.set()

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    held = Held()
    async with asyncio.timeout(15):
        await response(held)(SCOPE, receive, send)
    assert not held.is_open


async def test_a_reader_that_sends_more_than_is_taken_ends_the_stream():
    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(_: Message) -> None:
        pass

    held = Held()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await response(held)(scope, receive, send)

    async with asyncio.timeout(15):
        await BodyLimit(app, most_bytes=10_000)(SCOPE, receive, send)
    assert held.opened == 1
    assert not held.is_open


async def test_a_stream_that_ends_while_the_server_stops_says_no_farewell_behind_its_end(
    monkeypatch: pytest.MonkeyPatch,
):
    stops: list[Callable[[], None]] = []
    monkeypatch.setattr("app.chat.sse.when_grace_is_over", lambda _, call: stops.append(call))
    monkeypatch.setattr("app.chat.sse.forget", lambda _: None)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if not message.get("more_body", True):
            for stop in stops:
                stop()

    held = Held(endless=False)
    await SseResponse(held, Settings(), farewell=b"data: bye\n\n")(SCOPE, stays, send)
    assert [message["body"] for message in sent[1:]] == [COMMENT, b"data: 1\n\n", b""]


async def test_a_cancelled_response_lets_go():
    streaming = asyncio.Event()

    async def send(message: Message) -> None:
        if message.get("body") == b"data: 2\n\n":
            streaming.set()

    held = Held()
    task = asyncio.create_task(response(held)(SCOPE, stays, send))
    await streaming.wait()
    assert held.is_open
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not held.is_open


async def test_a_silent_stream_is_kept_alive_by_comments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.chat.sse.PING_SECONDS", 0.02)
    monkeypatch.setattr("app.chat.sse.LOOK_SECONDS", 0.01)
    pinged = asyncio.Event()
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if sent.count(COMMENT) >= 3:
            pinged.set()

    @asynccontextmanager
    async def silent() -> AsyncIterator[Body]:
        async def nothing() -> AsyncGenerator[bytes]:
            await asyncio.Event().wait()
            yield b""

        async with aclosing(nothing()) as body:
            yield body

    task = asyncio.create_task(SseResponse(silent, Settings())(SCOPE, stays, send))
    async with asyncio.timeout(10):
        await pinged.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(sent) == {b"", COMMENT}


async def test_nothing_is_made_for_a_reader_who_does_not_take_it():
    """The body is asked for the next event only when the last one is on its way, so what waits for
    a reader is one event and what the kernel holds."""
    takes = asyncio.Event()
    blocked = asyncio.Event()
    made = 0

    @asynccontextmanager
    async def counting() -> AsyncIterator[Body]:
        async def chunks() -> AsyncGenerator[bytes]:
            nonlocal made
            for made in range(1, 101):
                yield b"data: %d\n\n" % made

        async with aclosing(chunks()) as body:
            yield body

    async def send(message: Message) -> None:
        if message.get("body") == b"data: 2\n\n":
            blocked.set()
            await takes.wait()

    task = asyncio.create_task(SseResponse(counting, Settings())(SCOPE, stays, send))
    await blocked.wait()
    for _ in range(100):
        await asyncio.sleep(0)
    assert made == 2
    takes.set()
    await task
    assert made == 100
