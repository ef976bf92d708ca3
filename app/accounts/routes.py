"""HTTP of accounts: sign-up, sign-in, sign-out, who am I, API keys. JSON in, JSON out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import ConfigDict, FailFast, Field

from app.accounts.caller import Caller, address_of, cookie_name, signed_in
from app.accounts.limits import Budget
from app.accounts.models import ApiKey, KeyKind, User
from app.accounts.secrets import digest
from app.accounts.texts import name_key
from app.accounts.wiring import Accounts, account_parts, accounts
from app.bodies import StrictBody
from app.errors import ForbiddenError

router = APIRouter(prefix="/api")
SignedIn = Annotated[Caller, Depends(signed_in)]
Services = Annotated[Accounts, Depends(accounts)]

# failed tries for one name from everywhere, as a multiple of one address's tries
NAME_TRIES_FACTOR = 10
_SECONDS_A_DAY = 86_400


class _Body(StrictBody):
    # the exact limits are checked where they can be explained; these only bound the work
    model_config = ConfigDict(extra="forbid", str_max_length=1000)


class SignInBody(_Body):
    name: str
    password: str


class SignUpBody(SignInBody):
    admin_token: str | None = None


class KeyBody(_Body):
    name: str
    kind: KeyKind = "secret"
    origins: Annotated[list[str], FailFast()] = Field(default=[], max_length=100)


@router.post("/sign-up", status_code=201)
async def sign_up(
    body: SignUpBody, request: Request, response: Response, services: Services
) -> dict[str, Any]:
    settings = account_parts(request).settings
    tries = settings.sign_in_tries_per_minute
    await services.limits.spend(Budget("sign-up", tries), address_of(request))
    if settings.sign_up == "closed" and body.admin_token is None:
        raise ForbiddenError("Sign-up is closed here. Ask an administrator for an account.")
    user = await services.people.create(body.name, body.password, admin_token=body.admin_token)
    await _begin(request, response, services, user)
    return _me(user.name, user.is_admin)


@router.post("/sign-in")
async def sign_in(
    body: SignInBody, request: Request, response: Response, services: Services
) -> dict[str, Any]:
    tries = account_parts(request).settings.sign_in_tries_per_minute
    await services.limits.spend(Budget("sign-in", tries), address_of(request))
    user = await _checked(body, tries, request, services)
    await _begin(request, response, services, user)
    return _me(user.name, user.is_admin)


async def _checked(body: SignInBody, tries: int, request: Request, services: Accounts) -> User:
    """Only failures use a name's budgets up, and those from one place soon: a stranger who guesses
    must not lock the account's owner out. All places together are bounded, more roomily."""
    # a digest, because a name may hold anything and be long
    name = digest(name_key(body.name))
    here = await services.limits.spend(
        Budget("sign-in-name-here", max(1, tries // 2)), f"{name}:{address_of(request)}"
    )
    anywhere = await services.limits.spend(Budget("sign-in-name", tries * NAME_TRIES_FACTOR), name)
    user = await services.sign_ins.check(body.name, body.password)
    for use in (here, anywhere):
        await services.limits.give_back(use)
    return user


@router.post("/sign-out", status_code=204)
async def sign_out(request: Request, response: Response, services: Services) -> None:
    settings = account_parts(request).settings
    token = _token(request)
    if token:
        await services.sign_ins.end(token)
    response.delete_cookie(
        cookie_name(settings, request.scope["scheme"]),
        secure=settings.cookies_are_secure(request.scope["scheme"]),
        httponly=True,
        samesite="lax",
    )


@router.get("/me")
async def me(caller: SignedIn, response: Response) -> dict[str, Any]:
    response.headers["Cache-Control"] = "no-store"
    return _me(caller.name, caller.is_admin)


@router.get("/keys")
async def list_keys(caller: SignedIn, response: Response, services: Services) -> dict[str, Any]:
    response.headers["Cache-Control"] = "no-store"
    return {"keys": [_shown(key) for key in await services.keys.of(_user_id(caller))]}


@router.post("/keys", status_code=201)
async def create_key(
    body: KeyBody, caller: SignedIn, response: Response, services: Services
) -> dict[str, Any]:
    """The only answer that ever holds the key itself."""
    response.headers["Cache-Control"] = "no-store"
    key, text = await services.keys.create(_user_id(caller), body.name, body.kind, body.origins)
    return _shown(key) | {"secret": text}


async def _begin(request: Request, response: Response, services: Accounts, user: User) -> None:
    """A fresh session for `user`; whatever session the browser brought is over."""
    settings = account_parts(request).settings
    token = await services.sign_ins.begin(user.id, _token(request))
    response.headers["Cache-Control"] = "no-store"
    response.set_cookie(
        cookie_name(settings, request.scope["scheme"]),
        token,
        max_age=settings.session_days * _SECONDS_A_DAY,
        path="/",
        secure=settings.cookies_are_secure(request.scope["scheme"]),
        httponly=True,
        samesite="lax",
    )


def _token(request: Request) -> str | None:
    return request.cookies.get(
        cookie_name(account_parts(request).settings, request.scope["scheme"])
    )


def _user_id(caller: Caller) -> str:
    if caller.user_id is None:
        raise ForbiddenError("This needs an account.")
    return caller.user_id


def _me(name: str, is_admin: bool) -> dict[str, Any]:
    return {"name": name, "admin": is_admin}


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "kind": key.kind,
        "prefix": key.prefix,
        "origins": [bound.origin for bound in key.origins],
        "created_at": key.created_at.isoformat(),
        "last_used_at": key.last_used_at.isoformat() if key.last_used_at else None,
    }
