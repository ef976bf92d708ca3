"""Against requests that a foreign page sends with a visitor's cookie.

Every unsafe request to a cookie route must come from our own page, by `Origin` or by
`Sec-Fetch-Site` (which no page can set), and carry JSON, which no form can send. A WebSocket
handshake is treated as unsafe: it carries cookies and is not held back by CORS.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.accounts.origins import is_under, site_origin
from app.errors import AppError, ForbiddenError, to_response

# These take bearer keys only and never look at a cookie.
BEARER_ROUTES = ("/v1", "/api/embed")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class NotJsonError(AppError):
    code = "not_json"
    status = 415
    kind = "invalid_request_error"
    message = "Send the body as JSON, with `Content-Type: application/json`."


class Csrf:
    """Pure ASGI middleware."""

    def __init__(self, app: ASGIApp, public_url: str | None = None) -> None:
        self.app = app
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault = self._fault(scope)
        if fault is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            # closed before it was accepted: the server answers 403
            await send({"type": "websocket.close", "code": 1008, "reason": fault.code})
        else:
            await to_response(fault)(scope, receive, send)

    def _fault(self, scope: Scope) -> AppError | None:
        if scope["type"] not in ("http", "websocket") or is_under(scope["path"], BEARER_ROUTES):
            return None
        if scope["type"] == "http" and scope["method"] in _SAFE_METHODS:
            return None
        headers = Headers(scope=scope)
        if not self._is_from_own_page(scope, headers):
            return ForbiddenError(
                "This request did not come from this site's own page. Open it by its public address; "
                "operators set BATON_PUBLIC_URL to the one that people use."
            )
        if scope["type"] == "http" and _has_body(headers) and not _is_json(headers):
            return NotJsonError()
        return None

    def _is_from_own_page(self, scope: Scope, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is not None and origin == site_origin(scope, self._public_url):
            return True
        # a proxy may have changed Host: the browser knows better, unless we know the address
        is_own = headers.get("sec-fetch-site") in ("same-origin", "none")
        return is_own and (origin is None or self._public_url is None)


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _is_json(headers: Headers) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
