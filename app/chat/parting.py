"""Somebody goes for good: a revoked key ends what it asked, a deleted account leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import ConfigDict
from redis.exceptions import RedisError

from app.accounts.caller import Caller, address_of, cookie_name, signed_in, user_seat
from app.accounts.limits import Budget
from app.accounts.wiring import AccountParts, account_parts, accounts
from app.bodies import StrictBody
from app.chat import history
from app.errors import ForbiddenError, StoreUnavailableError
from app.line.line import Line
from app.line.types import CancelReason
from app.relay.forgetting import forget_texts
from app.store.rewriting import rewrite_log

log = structlog.get_logger(__name__)

router = APIRouter(prefix="/api")
SignedIn = Annotated[Caller, Depends(signed_in)]
KeyId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]

# how long a deleted account's running answer may take to end
END_SECONDS = 10.0
LOOK_SECONDS = 0.1

Turns = Sequence[tuple[str, str]]


class DeletionIn(StrictBody):
    model_config = ConfigDict(extra="forbid", str_max_length=1000)

    password: str


@router.delete("/keys/{key_id}", status_code=204)
async def revoke_key(key_id: KeyId, caller: SignedIn, request: Request) -> None:
    """At once and for good; what the key asked and what has not ended yet ends too."""
    await accounts(request).keys.revoke(_account(caller), key_id)
    await end_turns_of_key(account_parts(request), key_id)


@router.delete("/me", status_code=204)
async def delete_me(
    body: DeletionIn, caller: SignedIn, request: Request, response: Response
) -> None:
    """Delete the caller's account with all that is its own; the password says that it is meant."""
    services, parts = accounts(request), account_parts(request)
    user_id = _account(caller)
    tries = parts.settings.sign_in_tries_per_minute
    await services.limits.spend(Budget("delete-account", tries), address_of(request))
    await services.limits.spend(Budget("delete-account-of", tries), user_id)
    await services.sign_ins.check(caller.name, body.password)
    turns = await turns_of(parts, user_id)
    await services.people.delete(caller.name)
    await forget(parts, user_id, turns)
    response.delete_cookie(
        cookie_name(parts.settings, request.scope["scheme"]),
        secure=parts.settings.cookies_are_secure(request.scope["scheme"]),
        httponly=True,
        samesite="lax",
    )


def _account(caller: Caller) -> str:
    if caller.user_id is None:
        raise ForbiddenError("This needs an account.")
    return caller.user_id


async def end_turns_of_key(parts: AccountParts, key_id: str) -> None:
    """The key is refused already; where the store is out of reach, its answers end by themselves."""
    await _call_off(parts, await history.open_turns_of_key(parts.database, key_id), "revoked")


async def turns_of(parts: AccountParts, user_id: str) -> Turns:
    """What the store may still hold of an account. To be asked before its rows are deleted."""
    kept_seconds = parts.settings.stream_keep_seconds + END_SECONDS
    return await history.turns_in_store(parts.database, user_id, kept_seconds=kept_seconds)


async def forget(parts: AccountParts, user_id: str, turns: Turns) -> None:
    """After an account's rows were deleted: end its turns, and wipe their texts from the store and
    from the store's append-only file. What cannot be wiped now expires by itself, and is logged."""
    try:
        await Line(parts.store, parts.settings).leave(user_seat(user_id))
        await _call_off(parts, turns, "gone")
        left = await _wipe(parts, turns)
        await rewrite_log(parts.store)
    except (StoreUnavailableError, RedisError) as error:
        log.warning("texts of a deleted account stay until they expire", reason=str(error))
        return
    if left:
        log.warning("answers of a deleted account have not ended", generations=left)


async def _call_off(parts: AccountParts, turns: Turns, reason: CancelReason) -> None:
    line = Line(parts.store, parts.settings)
    try:
        for pool, generation in turns:
            await line.cancel(pool, generation, reason)
    except StoreUnavailableError:
        log.warning("open questions could not be called off", reason=reason, count=len(turns))


async def _wipe(parts: AccountParts, turns: Turns) -> list[str]:
    """Returns the generations that did not end in time."""
    open_by_pool: dict[str, list[str]] = {}
    for pool, generation in turns:
        open_by_pool.setdefault(pool, []).append(generation)
    deadline = asyncio.get_running_loop().time() + END_SECONDS
    while open_by_pool:
        for pool, generations in list(open_by_pool.items()):
            open_by_pool[pool] = await forget_texts(parts.store, pool, generations)
            if not open_by_pool[pool]:
                del open_by_pool[pool]
        if not open_by_pool or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(LOOK_SECONDS)
    return [generation for generations in open_by_pool.values() for generation in generations]
