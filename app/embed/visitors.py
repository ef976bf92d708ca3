"""The visitors of embedding sites: whose key let them in, and how many of a site are in line."""

from __future__ import annotations

import time
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from app.accounts.caller import Caller, bearer, count_request, find_key, find_key_by_id
from app.accounts.models import ApiKey
from app.embed.secret import load_secret
from app.embed.tokens import Claims, Tokens, VisitorTokenError, new_visitor
from app.errors import ForbiddenError, NotSignedInError, TooManyRequestsError
from app.parts import Parts, get_parts
from app.store.scripts import load_script

_ADMIT = load_script("app.embed", "admit")
# between a visitor's admission and its question in line
_SETTLE_MS = 10_000


class SiteFullError(TooManyRequestsError):
    code = "site_full"
    message = "Many visitors of this site are in line already. Try again in a minute."


def tokens(connection: HTTPConnection) -> Tokens:
    """This process's maker and reader of tokens, made at first use."""
    state = connection.app.state
    if not hasattr(state, "visitor_tokens"):
        state.visitor_tokens = Tokens(load_secret(get_parts(connection).settings.data_folder))
    return cast(Tokens, state.visitor_tokens)


async def site_key(connection: HTTPConnection, text: str) -> ApiKey:
    """The live publishable key of a site. Raises BadKeyError, ForbiddenError for a secret one."""
    key, _ = await find_key(connection, text)
    if key.kind != "publishable":
        raise ForbiddenError(
            "This is a secret key, and everybody can read it in a web page. Revoke it now, and use "
            "a publishable key here."
        )
    return key


async def visitor(connection: HTTPConnection) -> Caller:
    """FastAPI dependency: the visitor whose token was sent as a bearer.

    Raises VisitorTokenError, BadKeyError once the site's key is revoked.
    """
    claims = tokens(connection).read(_sent(connection), time.time())
    key, owner = await find_key_by_id(connection, claims.key_id)
    return Caller("visitor", claims.seat, "browser", owner.id, key.name, key_id=key.id)


async def counted_visitor(
    connection: HTTPConnection, caller: Annotated[Caller, Depends(visitor)]
) -> Caller:
    """FastAPI dependency: as `visitor`, the request counted before its body is looked at."""
    await count_request(connection, caller)
    return caller


def renewed(connection: HTTPConnection, key: ApiKey) -> Claims:
    """The visitor who sent a token of this site, even one just over; else a new one."""
    try:
        claims = tokens(connection).read(_sent(connection), time.time(), to_renew=True)
    except VisitorTokenError:
        return new_visitor(key.id)
    return claims if claims.key_id == key.id else new_visitor(key.id)


async def admit(parts: Parts, caller: Caller) -> None:
    """Count the visitor among those of its site in line; raises SiteFullError.

    Nothing has to be given back: when a site is full, those no longer in line make room.
    """
    key = f"baton:{{v:{caller.key_id}}}"
    args = (caller.seat, parts.settings.embed_visitors_per_site, _SETTLE_MS)
    old: list[bytes] = await parts.store.run(_ADMIT, [key], args)
    gone = [seat for seat in old if seat and await _is_gone(parts, seat.decode())]
    if gone:
        await parts.store.command("ZREM", key, *gone)
        old = await parts.store.run(_ADMIT, [key], args)
    if old:
        raise SiteFullError(retry_after_seconds=60)


async def _is_gone(parts: Parts, seat: str) -> bool:
    return (await parts.line.seat(seat)).state == "none"


def _sent(connection: HTTPConnection) -> str:
    try:
        return bearer(connection)
    except NotSignedInError as error:
        raise VisitorTokenError from error
