"""A fault that nobody foresaw becomes an answer here, inside those who add ids and headers."""

from __future__ import annotations

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import AppError, shown_path, to_response

log = structlog.get_logger(__name__)


class Faults:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        except Exception:
            if has_started:
                # the server must cut the connection, or half an answer would look whole
                raise
            log.exception("unexpected fault", path=shown_path(scope))
            await to_response(AppError())(scope, receive, send)
