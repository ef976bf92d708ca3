"""No body larger than this server accepts is read. Innermost, so that the refusal gets every header."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import BodyTooLargeError, to_response


class BodyLimit:
    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self.app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._most_bytes:
            await to_response(BodyTooLargeError())(scope, receive, send)
            return
        read_bytes = 0

        async def receive_within() -> Message:
            nonlocal read_bytes
            message = await receive()
            if message["type"] == "http.request":
                read_bytes += len(message.get("body", b""))
                if read_bytes > self._most_bytes:
                    # of all exceptions the framework lets only this kind through from a body
                    raise HTTPException(BodyTooLargeError.status)
            return message

        await self.app(scope, receive_within, send)
