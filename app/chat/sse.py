"""Server-Sent Events: a response that holds what its stream needs, for browsers and for `/v1`.

What a stream holds (a watcher's registration) is opened and closed by the response itself, around
the streamed generator: a suspended generator is not reliably closed when its reader leaves.

Thousands of these stand open at once, so each is two tasks, one that writes and one that listens
for the reader's leaving; a third, of the whole process, minds silence and readers that take
nothing. (sse-starlette's response, which stood
here before, takes four tasks in a group and checks every chunk: docs/performance.md.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal
from weakref import WeakKeyDictionary

import structlog
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.chat.events import Event, name_of, to_json
from app.chat.stopping import forget, when_grace_is_over
from app.settings import Settings

log = structlog.get_logger(__name__)

Body = AsyncGenerator[bytes]

PING_SECONDS = 10.0
FAREWELL_SECONDS = 1.0
LOOK_SECONDS = 1.0
# A bare comment: legal everywhere and, having no text, nothing that a client could take for data.
COMMENT = b":\n\n"
END_OF_V1 = b"data: [DONE]\n\n"


def encode_event(position: str | None, event: Event) -> bytes:
    """One event for the browser; `position` becomes its SSE id."""
    head = f"id: {position}\n".encode() if position is not None else b""
    return head + b"event: %b\ndata: %b\n\n" % (name_of(event).encode(), to_json(event))


def encode_data(data: bytes) -> bytes:
    """One chunk of `/v1`: no event name, no id. `data` is one line of JSON."""
    return b"data: %b\n\n" % data


class SseResponse(Response):
    """Opens a body when the response starts, streams it, and closes it however that ends.

    A comment goes out at once, so that proxies and clients see bytes before the first event, and
    after every `PING_SECONDS` of silence. A reader that takes nothing for `send_timeout_seconds` is
    dropped (both within `LOOK_SECONDS`). On shutdown the stream may go on for `shutdown_grace_seconds`; then `farewell` is sent
    and the response ends as a whole one.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        open_body: Callable[[], AbstractAsyncContextManager[Body]],
        settings: Settings,
        *,
        headers: Mapping[str, str] | None = None,
        comments: bool = True,
        farewell: bytes = b"",
    ) -> None:
        self._open_body = open_body
        self._settings = settings
        self._comments = comments
        self._farewell = farewell
        self.background = None
        self.status_code = 200
        # X-Accel-Buffering: a proxy must pass each event on as it comes
        fixed = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        self.init_headers({**fixed, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._open_body() as body:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            seconds = self._settings.send_timeout_seconds
            stream = _Stream(send, seconds, comments=self._comments)
            cut = await stream.run(body, receive, self._settings)
            if cut == "stuck":
                log.info("reader took nothing and was dropped", path=scope.get("path"))
            elif cut == "stopping":
                await stream.write_last(self._farewell)


Cut = Literal["left", "stuck", "stopping"]


class _Stream:
    """One response on its way out."""

    __slots__ = (
        "_comments", "_cut", "_cut_by", "_is_sending", "_ping_task", "_send", "_send_seconds",
        "_since_s",
    )  # fmt: skip

    def __init__(self, send: Send, send_seconds: float, *, comments: bool) -> None:
        self._send = send
        self._send_seconds = send_seconds
        self._comments = comments
        # how long it has been so: whether some bytes are being handed over, and since when
        self._is_sending = False
        self._since_s = time.monotonic()
        self._cut: asyncio.Timeout | None = None
        self._cut_by: Cut | None = None
        self._ping_task: asyncio.Task[None] | None = None

    async def run(self, body: Body, receive: Receive, settings: Settings) -> Cut | None:
        """Stream the body to its end; what cut it short, if something did."""
        listening = asyncio.create_task(self._listen(receive), name="reader")
        minder = _Minder.of_this_loop()
        minder.add(self)
        when_grace_is_over(settings, self._stop)
        try:
            # a time limit without a time: whoever cuts the stream sets it to now
            async with asyncio.timeout(None) as self._cut:
                if self._comments:
                    await self._write(COMMENT)
                async for chunk in body:
                    await self._write(chunk)
                await self._write(b"", more=False)
            # whatever came in that moment: there is nothing left to cut, nor to say farewell to
            return None
        except TimeoutError:
            if self._cut_by is None:
                raise
        finally:
            self._cut = None
            forget(self._stop)
            minder.remove(self)
            listening.cancel()
            if self._ping_task is not None:
                self._ping_task.cancel()
        return self._cut_by

    def cut(self, by: Cut) -> None:
        if self._cut is not None and self._cut_by is None:
            self._cut_by = by
            self._cut.reschedule(asyncio.get_running_loop().time())

    def _stop(self) -> None:
        self.cut("stopping")

    async def _write(self, chunk: bytes, *, more: bool = True) -> None:
        self._is_sending, self._since_s = True, time.monotonic()
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})
        self._is_sending, self._since_s = False, time.monotonic()

    async def write_last(self, chunk: bytes) -> None:
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._write(chunk, more=False)
        except TimeoutError:
            log.info("reader took no farewell")

    async def _listen(self, receive: Receive) -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except HTTPException as refusal:
            # it sends a body without end; listened to no longer, its leaving would go unnoticed
            log.info("reader sent more than is taken and was dropped", status=refusal.status_code)
        self.cut("left")

    def look(self, now_s: float) -> None:
        """Cut the stream when its reader takes nothing, and break a long silence."""
        passed_seconds = now_s - self._since_s
        if self._is_sending:
            if passed_seconds >= self._send_seconds:
                self.cut("stuck")
        elif self._comments and passed_seconds >= PING_SECONDS:
            self._ping_task = asyncio.create_task(self._write(COMMENT), name="ping")


class _Minder:
    """Looks after all streams of a loop."""

    def __init__(self) -> None:
        self._streams: set[_Stream] = set()
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    def of_this_loop(cls) -> _Minder:
        return _minders.setdefault(asyncio.get_running_loop(), cls())

    def add(self, stream: _Stream) -> None:
        self._streams.add(stream)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="streams")

    def remove(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        if not self._streams and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now_s = time.monotonic()
            for stream in list(self._streams):
                stream.look(now_s)


_minders: WeakKeyDictionary[asyncio.AbstractEventLoop, _Minder] = WeakKeyDictionary()
