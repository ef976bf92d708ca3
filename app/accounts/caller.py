"""Who asks: FastAPI dependencies that turn a cookie or a bearer key into a `Caller`.

Cookies count only on the pages' own routes, bearer keys only on the API: neither falls back to the
other, so a foreign page can never borrow a visitor's cookie through the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import Depends
from sqlalchemy import ColumnElement, or_, select, update
from starlette.requests import HTTPConnection

from app.accounts.limits import Budget, address_prefix
from app.accounts.models import ApiKey, SignIn, User, now
from app.accounts.secrets import digest, looks_like_key, same
from app.accounts.wiring import account_parts, accounts
from app.errors import AppError, ForbiddenError, NotSignedInError
from app.settings import Settings

Tier = Literal["browser", "api", "priority"]
# last_used_at is for people: a write a minute is enough
_USED_EVERY = timedelta(minutes=1)


class BadKeyError(AppError):
    code = "invalid_api_key"
    status = 401
    kind = "invalid_request_error"
    message = (
        "This API key is not known here, or it was revoked. Send it as "
        "`Authorization: Bearer sk-baton-...`."
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `seat` is who may hold one place in line: an account with all its secret keys, a
    publishable key, a visitor. `app.chat.admission` bounds how many of the latter an account has."""

    kind: Literal["user", "key", "visitor"]
    seat: str
    tier: Tier
    # the account that answers for it; of a visitor: the owner of the site's key
    user_id: str | None
    name: str
    is_admin: bool = False
    # the site a publishable key or a visitor speaks from
    origin: str | None = None
    # the API key used, if one was
    key_id: str | None = None
    # where the connection comes from, as `address_of` says
    address: str = ""


def cookie_name(settings: Settings, scheme: str) -> str:
    """`__Host-` makes the browser refuse the cookie from plain http, subdomains or sub-paths."""
    return "__Host-baton_session" if settings.cookies_are_secure(scheme) else "baton_session"


def user_seat(user_id: str) -> str:
    return f"u:{user_id}"


def address_of(connection: HTTPConnection) -> str:
    """The caller's address as it is counted. Behind a trusted proxy the server has put the one that
    the proxy saw (X-Forwarded-For) into the connection."""
    return address_prefix(connection.client.host if connection.client else "")


async def maybe_signed_in(connection: HTTPConnection) -> Caller | None:
    """The signed-in user by the session cookie, None without a valid one."""
    parts = account_parts(connection)
    token = connection.cookies.get(cookie_name(parts.settings, connection.scope["scheme"]))
    if not token or len(token) > 100:
        return None
    query = (
        select(User)
        .join(SignIn, SignIn.user_id == User.id)
        .where(SignIn.token_hash == digest(token), SignIn.expires_at > now())
    )
    async with parts.database.session() as session:
        user = await session.scalar(query)
    if user is None:
        return None
    return Caller(
        "user",
        user_seat(user.id),
        "browser",
        user.id,
        user.name,
        user.is_admin,
        address=address_of(connection),
    )


async def signed_in(connection: HTTPConnection) -> Caller:
    """Raises NotSignedInError without a valid session cookie."""
    caller = await maybe_signed_in(connection)
    if caller is None:
        raise NotSignedInError
    return caller


async def admin(connection: HTTPConnection) -> Caller:
    """Raises NotSignedInError, or ForbiddenError for users who are not administrators."""
    caller = await signed_in(connection)
    if not caller.is_admin:
        raise ForbiddenError("Only administrators may do this.")
    return caller


async def api_caller(connection: HTTPConnection) -> Caller:
    """The owner of the bearer key.

    Raises NotSignedInError without a key, BadKeyError for an unknown or revoked one, ForbiddenError
    for a publishable key from an origin it is not bound to.
    """
    text = bearer(connection)
    key, user = await find_key(connection, text)
    address = address_of(connection)
    if key.kind == "secret":
        seat = user_seat(user.id)
        return Caller("key", seat, "api", user.id, user.name, key_id=key.id, address=address)
    origin = connection.headers.get("origin")
    check_origin(key, origin)
    seat = f"k:{key.id}"
    return Caller(
        "key", seat, "api", user.id, user.name, origin=origin, key_id=key.id, address=address
    )


async def counted_user(
    connection: HTTPConnection, caller: Annotated[Caller, Depends(signed_in)]
) -> Caller:
    """As `signed_in`, the request counted before its body is looked at, so that refused ones count."""
    await count_request(connection, caller)
    return caller


async def counted_api_caller(
    connection: HTTPConnection, caller: Annotated[Caller, Depends(api_caller)]
) -> Caller:
    """As `api_caller`, the request counted before its body is looked at."""
    await count_request(connection, caller)
    return caller


async def count_request(connection: HTTPConnection, caller: Caller) -> None:
    """Count one API or chat request of the caller's account; raises TooManyRequestsError.

    A visitor, or a publishable key, counts by its own seat: it must not use up its owner's minute.
    """
    most = account_parts(connection).settings.requests_per_minute
    is_a_sites = caller.kind == "visitor" or caller.origin is not None
    who = caller.seat if is_a_sites or caller.user_id is None else caller.user_id
    await accounts(connection).limits.spend(Budget("requests", most), who)


def bearer(connection: HTTPConnection) -> str:
    """The token of `Authorization: Bearer <token>`; raises NotSignedInError when there is none."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise NotSignedInError(
            "No API key was sent. Send it as `Authorization: Bearer sk-baton-...`."
        )
    return token


def check_origin(key: ApiKey, origin: str | None) -> None:
    """Raises ForbiddenError naming the origin unless `key` is bound to it."""
    if origin is None:
        raise ForbiddenError(
            "This publishable key works only from web pages of the sites it is bound to."
        )
    if origin not in {bound.origin for bound in key.origins}:
        raise ForbiddenError(f"origin {origin[:300]} is not allowed for this key")


async def find_key(connection: HTTPConnection, text: str) -> tuple[ApiKey, User]:
    """The live key that `text` is, with its origins, and its owner; raises BadKeyError."""
    if not looks_like_key(text):
        raise BadKeyError
    hashed = digest(text)
    key, user = await _live_key(connection, ApiKey.secret_hash == hashed)
    if not same(key.secret_hash, hashed):
        raise BadKeyError
    return key, user


async def find_key_by_id(connection: HTTPConnection, key_id: str) -> tuple[ApiKey, User]:
    """For those whose right to the key was checked before. Raises BadKeyError once it is revoked."""
    return await _live_key(connection, ApiKey.id == key_id)


async def _live_key(connection: HTTPConnection, which: ColumnElement[bool]) -> tuple[ApiKey, User]:
    query = (
        select(ApiKey, User)
        .join(User, ApiKey.user_id == User.id)
        .where(which, ApiKey.revoked_at.is_(None))
    )
    async with account_parts(connection).database.session() as session:
        found = (await session.execute(query)).one_or_none()
        if found is None:
            raise BadKeyError
        key, user = found
        moment = now()
        if key.last_used_at is None or key.last_used_at < moment - _USED_EVERY:
            stale = or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < moment - _USED_EVERY)
            await session.execute(
                update(ApiKey).where(ApiKey.id == key.id, stale).values(last_used_at=moment)
            )
        return key, user
