"""A visitor's token: who, by which site's key, until when, signed. Nothing is stored for it.

    <visitor: 32 hex>.<key id: 32 hex>.<expires: unix seconds>.<HMAC-SHA256 of the rest: 64 hex>

It opens the chat of `/api/embed` and nothing else, and dies with its key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from uuid import uuid4

from app.errors import NotSignedInError

LASTS_SECONDS = 600
# a laptop that slept may renew and keep its turn; the token opens nothing meanwhile
RENEWABLE_SECONDS = 3600
_SHAPE = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32})\.([0-9]{1,12})\.([0-9a-f]{64})")


class VisitorTokenError(NotSignedInError):
    code = "visitor_expired"
    message = "This chat has been idle for long. It begins anew with the next question."


@dataclass(frozen=True, slots=True)
class Claims:
    visitor: str
    key_id: str

    @property
    def seat(self) -> str:
        return f"v:{self.visitor}"


class Tokens:
    """Makes and reads tokens. Times are unix seconds."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, claims: Claims, now_seconds: float) -> str:
        expires = int(now_seconds) + LASTS_SECONDS
        body = f"{claims.visitor}.{claims.key_id}.{expires}"
        return f"{body}.{self._sign(body)}"

    def read(self, token: str, now_seconds: float, *, to_renew: bool = False) -> Claims:
        """Raises VisitorTokenError for a token that is not ours or is over."""
        shape = _SHAPE.fullmatch(token)
        if shape is None:
            raise VisitorTokenError
        visitor, key_id, expires, mac = shape.groups()
        if not hmac.compare_digest(self._sign(f"{visitor}.{key_id}.{expires}"), mac):
            raise VisitorTokenError
        if int(expires) + (RENEWABLE_SECONDS if to_renew else 0) <= now_seconds:
            raise VisitorTokenError
        return Claims(visitor, key_id)

    def _sign(self, body: str) -> str:
        return hmac.new(self._secret, body.encode(), hashlib.sha256).hexdigest()


def new_visitor(key_id: str) -> Claims:
    return Claims(uuid4().hex, key_id)
