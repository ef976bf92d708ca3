"""The visitors of embedding sites: who they are, and whose key let them in."""

from __future__ import annotations

import time
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from app.accounts.caller import Caller, address_of, bearer, count_request, find_key, find_key_by_id
from app.accounts.models import ApiKey
from app.embed.secret import load_secret
from app.embed.tokens import Claims, Tokens, VisitorTokenError, new_visitor
from app.errors import ForbiddenError, NotSignedInError
from app.parts import get_parts


async def tokens(connection: HTTPConnection) -> Tokens:
    """This process's maker and reader of tokens, made at first use."""
    state = connection.app.state
    if not hasattr(state, "visitor_tokens"):
        state.visitor_tokens = Tokens(await load_secret(get_parts(connection).database))
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
    claims = (await tokens(connection)).read(_sent(connection), time.time())
    key, owner = await find_key_by_id(connection, claims.key_id)
    return Caller(
        "visitor",
        claims.seat,
        "browser",
        owner.id,
        key.name,
        key_id=key.id,
        address=address_of(connection),
    )


async def counted_visitor(
    connection: HTTPConnection, caller: Annotated[Caller, Depends(visitor)]
) -> Caller:
    """FastAPI dependency: as `visitor`, the request counted before its body is looked at."""
    await count_request(connection, caller)
    return caller


async def renewed(connection: HTTPConnection, key: ApiKey) -> Claims:
    """The visitor who sent a token of this site, even one just over; else a new one."""
    try:
        claims = (await tokens(connection)).read(_sent(connection), time.time(), to_renew=True)
    except VisitorTokenError:
        return new_visitor(key.id)
    return claims if claims.key_id == key.id else new_visitor(key.id)


def _sent(connection: HTTPConnection) -> str:
    try:
        return bearer(connection)
    except NotSignedInError as error:
        raise VisitorTokenError from error
