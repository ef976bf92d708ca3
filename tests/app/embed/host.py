"""Pages of somebody else's site, served on an origin of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from tests.waiting import until


@asynccontextmanager
async def listening(app: ASGIApp, *, host: str = "127.0.0.1") -> AsyncGenerator[str]:
    """Serve `app` on a free port; yields its URL, spelt with `host`."""
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2, ws="none")
    )
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        serve = asyncio.create_task(server.serve(sockets=[bound]), name="uvicorn")
        try:
            await until(lambda: server.started or serve.done(), what="uvicorn")
            yield f"http://{host}:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serve


@dataclass(slots=True)
class Host:
    """A site with one page: a heading, the tag put into it, and whatever policy its owner has set."""

    headers: Mapping[str, str]
    tag: str = ""

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/", self._page)])

    async def _page(self, _: Request) -> HTMLResponse:
        html = (
            "<!doctype html><html lang=en><title>Shop</title><link rel=icon href='data:,'>"
            f"<body><h1>Shop</h1>{self.tag}</body></html>"
        )
        return HTMLResponse(html, headers=dict(self.headers))
