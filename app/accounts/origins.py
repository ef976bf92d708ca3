"""Reading the origin headers of a request."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

_PLAIN = {"ws": "http", "wss": "https"}


def own_origin(scope: Scope) -> str:
    """The origin that this request was sent to, as its sender's browser would spell it."""
    scheme = _PLAIN.get(scope["scheme"], scope["scheme"])
    host = Headers(scope=scope).get("host", "").lower()
    return without_default_port(f"{scheme}://{host}")


def site_origin(scope: Scope, public_url: str | None) -> str:
    """The one origin of our own pages: the public one where it is known.

    Else the one the request was sent to, which a foreign domain that resolves to us can be, too.
    """
    return origin_of(public_url) if public_url else own_origin(scope)


def origin_of(url: str) -> str:
    """Scheme, host and port of `url`, as browsers spell an Origin."""
    parts = urlsplit(url)
    return without_default_port(f"{parts.scheme}://{parts.netloc}".lower())


def without_default_port(origin: str) -> str:
    port = ":443" if origin.startswith("https://") else ":80"
    return origin.removesuffix(port)


def is_under(path: str, prefixes: tuple[str, ...]) -> bool:
    """Whether `path` is one of `prefixes` or lies below one (`/v1` covers `/v1/models`)."""
    return any(path == prefix or path.startswith(prefix + "/") for prefix in prefixes)
