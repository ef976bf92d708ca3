"""create_app(settings): the one place where the web process's parts are wired, opened and closed."""

from __future__ import annotations

import gc
import socket
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from app import errors, pages
from app.accounts import routes as accounts
from app.accounts.cors import Cors
from app.accounts.csrf import Csrf
from app.accounts.db import Database
from app.chat import browser, openai, parting
from app.chat.scribe import run_scribe
from app.embed import routes as embed
from app.line.board import Board
from app.line.line import Line
from app.ops import health
from app.ops.background import running
from app.ops.body_limit import BodyLimit
from app.ops.faults import Faults
from app.ops.headers import SecurityHeaders
from app.ops.logs import RequestLog
from app.parts import Parts
from app.relay.collector import Collector
from app.relay.reader import RelayReader
from app.settings import Settings
from app.store.bell import Bell
from app.store.client import Store
from app.store.embedded import find_embedded

STATIC = Path(__file__).parent.parent / "static"


def create_app(settings: Settings | None = None) -> FastAPI:
    """The web process. Opens nothing until it is started; needs no torch and no live store."""
    settings = settings or Settings()
    app = FastAPI(
        title="Baton",
        summary="The front door for batch-1 GPU inference.",
        lifespan=_lifespan,
        # a page of scripts from elsewhere, which our policy forbids
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    for router in (
        pages.router,
        accounts.router,
        parting.router,
        browser.router,
        openai.router,
        embed.router,
        health.router,
    ):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    errors.install(app)
    # the last added is the outermost
    app.add_middleware(BodyLimit, most_bytes=settings.max_body_bytes)
    app.add_middleware(Csrf, public_url=settings.public_url)
    app.add_middleware(Cors)
    app.add_middleware(Faults)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(RequestLog)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    settings: Settings = app.state.settings
    async with AsyncExitStack() as stack:
        parts = await open_parts(settings, stack)
        app.state.parts = parts
        await stack.enter_async_context(
            running({"pump": parts.line.run_pump, "scribe": partial(run_scribe, parts)})
        )
        _calm_the_collector()
        yield


async def open_parts(settings: Settings, stack: AsyncExitStack) -> Parts:
    """A replica's parts, without its HTTP side and without its background loops."""
    url = store_url(settings)
    store = await stack.enter_async_context(Store.connect(url))
    bell = await stack.enter_async_context(Bell.open(url))
    database = await stack.enter_async_context(Database.open(settings.database()))
    await database.migrate()
    line = Line(store, settings)
    board = await stack.enter_async_context(Board(line, bell))
    consumer = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    return Parts(
        settings=settings,
        store=store,
        bell=bell,
        line=line,
        board=board,
        reader=RelayReader(store),
        collector=Collector(store, consumer),
        database=database,
    )


def store_url(settings: Settings) -> str:
    """The store to use: the configured one, else the embedded one that runs on this data folder.

    Raises errors.StoreUnavailableError, with what to do, when there is neither.
    """
    url = settings.redis_url or find_embedded(settings.data_folder)
    if url is None:
        raise errors.StoreUnavailableError(
            f"No store: set BATON_REDIS_URL, or run `baton serve`, which starts one in {settings.data_folder}."
        )
    return url


def _calm_the_collector() -> None:
    """Full collections walk every live object: with 10,000 open streams that stops the loop for
    about a second under the default thresholds. What exists now lives as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
