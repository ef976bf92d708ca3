"""Lets web pages of other sites read the API's answers, where a live key is bound to their origin.

A preflight carries no key, so it is granted to every origin that some live key names; the request
itself is then checked against its own key. Credentials (cookies) are never allowed across sites.
"""

from __future__ import annotations

import re
import time
from typing import Any

from sqlalchemy import select
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.accounts.csrf import BEARER_ROUTES
from app.accounts.models import ApiKey, KeyOrigin
from app.accounts.origins import is_under
from app.accounts.wiring import account_parts
from app.errors import AppError, ForbiddenError, to_response

EXPOSED = (
    "X-Request-Id, X-Generation-Id, X-Queue-Position, X-Queue-Eta, Retry-After, "
    "X-Ratelimit-Limit-Requests, X-Ratelimit-Remaining-Requests, X-Ratelimit-Reset-Requests"
)
_PREFLIGHT_LASTS_SECONDS = 600
# a known origin is believed this long; an unknown one is asked for anew each time
_KNOWN_SECONDS = 10.0
_MOST_KNOWN = 1000
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{0,1000}")


class Cors:
    """Pure ASGI middleware for `/v1` and `/api/embed`; errors get the headers too."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._known: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_under(scope["path"], BEARER_ROUTES):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin is not None and await self._is_bound(HTTPConnection(scope), origin)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            response = _preflight(origin or "", headers) if allowed else _refused(origin)
            await response(scope, receive, send)
        else:
            await self._pass_on(scope, receive, send, origin if allowed else None)

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, origin: str | None
    ) -> None:
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                _add(MutableHeaders(scope=message), origin)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            # answered here, because the border above would answer without these headers
            if not has_started:
                await to_response(AppError())(scope, receive, send_with_headers)
            raise

    async def _is_bound(self, connection: HTTPConnection, origin: str) -> bool:
        if self._known.get(origin, 0.0) > time.monotonic():
            return True
        bound = (
            select(KeyOrigin.key_id)
            .join(ApiKey, ApiKey.id == KeyOrigin.key_id)
            .where(KeyOrigin.origin == origin[:300], ApiKey.revoked_at.is_(None))
            .limit(1)
        )
        async with account_parts(connection).database.session() as session:
            found: Any = await session.scalar(bound)
        self._known.pop(origin, None)
        if found is None:
            return False
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[origin] = time.monotonic() + _KNOWN_SECONDS
        return True


def _preflight(origin: str, asked: Headers) -> Response:
    names = asked.get("access-control-request-headers", "")
    response = Response(status_code=204)
    headers = response.headers
    headers["Access-Control-Allow-Origin"] = origin
    headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE"
    # clients add names of their own (x-stainless-...); without credentials none of them is special
    if names and _HEADER_NAMES.fullmatch(names):
        headers["Access-Control-Allow-Headers"] = names
    headers["Access-Control-Max-Age"] = str(_PREFLIGHT_LASTS_SECONDS)
    headers["Vary"] = "Origin, Access-Control-Request-Headers"
    return response


def _refused(origin: str | None) -> Response:
    shown = (origin or "null")[:300]
    response = to_response(ForbiddenError(f"origin {shown} is not allowed for any key here"))
    response.headers["Vary"] = "Origin"
    return response


def _add(headers: MutableHeaders, origin: str | None) -> None:
    headers.add_vary_header("Origin")
    if origin is not None and "access-control-allow-origin" not in headers:
        headers["Access-Control-Allow-Origin"] = origin
        headers["Access-Control-Expose-Headers"] = EXPOSED
