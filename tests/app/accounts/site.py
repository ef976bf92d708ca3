"""A whole small site with the accounts' routes, middleware and error border, and its browser."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
from argon2 import PasswordHasher
from fastapi import APIRouter, Depends, FastAPI
from starlette.requests import HTTPConnection

from app import errors
from app.accounts.caller import Caller, admin, api_caller, count_request
from app.accounts.cors import Cors
from app.accounts.csrf import Csrf
from app.accounts.db import Database
from app.accounts.routes import router as accounts_router
from app.accounts.secrets import Passwords
from app.accounts.wiring import make_accounts
from app.chat.parting import router as parting_router
from app.settings import Settings
from app.store.client import Store

ORIGIN = "http://baton.test"
PASSWORD = "correct horse"
# the real parameters take a tenth of a second each time
QUICK = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)

probe = APIRouter()


@probe.get("/v1/who")
async def who(caller: Annotated[Caller, Depends(api_caller)]) -> dict[str, Any]:
    return {"kind": caller.kind, "seat": caller.seat, "tier": caller.tier, "name": caller.name,
            "origin": caller.origin}  # fmt: skip


@probe.post("/v1/work")
async def work(
    connection: HTTPConnection, caller: Annotated[Caller, Depends(api_caller)]
) -> dict[str, Any]:
    await count_request(connection, caller)
    return {}


@probe.get("/v1/broken")
async def broken() -> None:
    raise RuntimeError("a fault nobody foresaw")


@probe.get("/api/admin-only")
async def admin_only(caller: Annotated[Caller, Depends(admin)]) -> dict[str, Any]:
    return {"name": caller.name}


@dataclass(frozen=True, slots=True)
class SiteParts:
    settings: Settings
    store: Store
    database: Database


@dataclass(slots=True)
class Site:
    """A running site; `browser()` is a fresh browser, `client` a first one."""

    app: FastAPI
    parts: SiteParts
    stack: AsyncExitStack

    async def browser(
        self, *, address: str = "192.0.2.1", origin: str | None = ORIGIN, base: str = ORIGIN
    ) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=(address, 1), raise_app_exceptions=False)
        headers = {"Origin": origin} if origin else {}
        client = httpx.AsyncClient(transport=transport, base_url=base, headers=headers)
        return await self.stack.enter_async_context(client)

    async def member(self, name: str = "Eva", *, address: str = "192.0.2.1") -> httpx.AsyncClient:
        """A browser in which `name` has just signed up."""
        client = await self.browser(address=address)
        answer = await client.post("/api/sign-up", json={"name": name, "password": PASSWORD})
        assert answer.status_code == 201, answer.text
        return client


@asynccontextmanager
async def site(store_url: str, folder: Path, **settings: Any) -> AsyncGenerator[Site]:
    """A site on a fresh database in `folder`; further arguments are settings."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(Store.connect(store_url))
        chosen = Settings(data_folder=folder, **settings)
        database = await stack.enter_async_context(Database.open(chosen.database()))
        await database.migrate()
        app = FastAPI()
        app.include_router(accounts_router)
        app.include_router(parting_router)
        app.include_router(probe)
        errors.install(app)
        app.add_middleware(Csrf, public_url=chosen.public_url)
        app.add_middleware(Cors)
        app.state.parts = parts = SiteParts(chosen, store, database)
        app.state.accounts = make_accounts(parts, Passwords(QUICK))
        yield Site(app, parts, stack)


async def make_key(client: httpx.AsyncClient, *origins: str) -> dict[str, Any]:
    """A secret key, or a publishable one bound to `origins`."""
    kind = "publishable" if origins else "secret"
    body = {"name": "test", "kind": kind, "origins": list(origins)}
    answer = await client.post("/api/keys", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def code(answer: httpx.Response) -> tuple[int, str]:
    """Status and error code of a refusal."""
    return answer.status_code, answer.json()["error"]["code"]
