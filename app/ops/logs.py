"""Logs: structlog, one line an event, JSON where asked. Never a question, an answer or a secret."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import shown_path
from app.settings import Settings

log = structlog.get_logger("http")

# Machines ask these every few seconds; a log full of them hides the rest.
_PROBES = frozenset({"/healthz", "/readyz", "/metrics"})


def configure(settings: Settings) -> None:
    """Set structlog and the standard library's logging for this process; once, at its start."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if settings.log_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(
        level=max(level, logging.WARNING), format="%(levelname)s %(name)s: %(message)s"
    )


class RequestLog:
    """Give every request an id, answer it as `x-request-id`, and log one line at its end.

    The path is logged as it was sent, percent-encoded (an escape sequence would reach the operator's
    terminal), and without its query string, which may hold what nobody should keep.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = uuid.uuid4().hex
        started_s = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            say = log.debug if scope["path"] in _PROBES else log.info
            say(
                "request",
                method=scope["method"],
                path=shown_path(scope),
                status=status,
                ms=round((time.perf_counter() - started_s) * 1000, 1),
                id=request_id,
            )
