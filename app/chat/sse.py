"""Server-Sent Events: a response that holds what its stream needs, for browsers and for `/v1`.

What a stream holds (a watcher's registration) is opened and closed by the response itself, around
the streamed generator: a suspended generator is not reliably closed when its reader leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from typing import cast

import structlog
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.chat.events import Event, name_of, to_json
from app.settings import Settings

log = structlog.get_logger(__name__)

Body = AsyncGenerator[bytes]

PING_SECONDS = 10.0
FAREWELL_SECONDS = 1.0
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
    every `PING_SECONDS` after it. A reader that takes nothing for `send_timeout_seconds` is
    dropped. On shutdown the stream may go on for `shutdown_grace_seconds`; then `farewell` is sent
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
        self._headers = dict(headers or {})
        self._comments = comments
        self._farewell = farewell
        self.background = None
        # what middleware may read before the stream starts
        self.status_code = 200
        self.init_headers(self._headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._open_body() as body, aclosing(self._with_comment(body)) as whole:
            stream = EventSourceResponse(
                whole,
                headers=self._headers,
                sep="\n",
                ping=PING_SECONDS if self._comments else 0,
                ping_message_factory=_comment,
                send_timeout=self._settings.send_timeout_seconds,
                shutdown_grace_period=self._settings.shutdown_grace_seconds,
            )
            # `Connection` is the server's to set, and forbidden in HTTP/2
            del stream.headers["connection"]
            try:
                await stream(scope, receive, send)
            except SendTimeoutError:
                log.info("reader took nothing and was dropped", path=scope.get("path"))
                return
            # neither finished nor left by its reader, so it was cut by the shutdown
            if stream.active:
                await self._say_farewell(send)

    async def _say_farewell(self, send: Send) -> None:
        last = {"type": "http.response.body", "body": self._farewell, "more_body": False}
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await send(last)
        except TimeoutError:
            log.info("reader took no farewell")

    async def _with_comment(self, body: Body) -> Body:
        if self._comments:
            yield COMMENT
        async for chunk in body:
            yield chunk


class _Stopping(EventSourceResponse):
    """Opens the library's watch for the server's stop to answers that are not streams."""

    @staticmethod
    async def wait() -> None:
        await EventSourceResponse._listen_for_exit_signal()


async def stop_grace_over(settings: Settings) -> None:
    """Wait until the server was told to stop and `shutdown_grace_seconds` are over: what ends the
    streams, for answers that are sent as a whole."""
    await _Stopping.wait()
    await asyncio.sleep(settings.shutdown_grace_seconds)


def _comment() -> ServerSentEvent:
    # the library passes bytes through as they are; its own comments would carry a space and a text
    return cast(ServerSentEvent, COMMENT)
