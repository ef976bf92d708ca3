"""A whole Baton in this process, on a real port: web, line, relay, SQL and scripted nodes.

httpx's in-process transport does not stream, so anything streamed is tested through uvicorn.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import orjson
import uvicorn
from fastapi import FastAPI

from app.line.line import Line
from app.line.nodes import NodeDesk
from app.line.types import NodeInfo
from app.main import create_app
from app.node.agent import Agent
from app.node.kinds.base import NodeKind
from app.node.kinds.scripted import Script, ScriptedKind
from app.parts import Parts
from app.relay.writer import RelayWriter
from app.settings import Settings
from app.store.client import Store
from app.web import stop_seconds
from engine.card import card_to_bytes
from tests.waiting import until

PASSWORD = "correct horse battery"


@dataclass(frozen=True, slots=True)
class Heard:
    """One SSE event as a browser hears it."""

    name: str
    data: dict[str, Any]
    id: str | None


@dataclass(eq=False, slots=True)
class Web:
    """One web replica and those who use it."""

    url: str
    parts: Parts
    app: FastAPI
    server: uvicorn.Server
    stack: AsyncExitStack

    def stop(self) -> None:
        """What SIGTERM does."""
        self.server.should_exit = True

    async def client(self, **headers: str) -> httpx.AsyncClient:
        made = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)
        return await self.stack.enter_async_context(made)

    async def member(self, name: str = "Eva") -> Member:
        """A browser in which `name` has just signed up."""
        client = await self.client(Origin=self.url)
        answer = await client.post("/api/sign-up", json={"name": name, "password": PASSWORD})
        assert answer.status_code == 201, answer.text
        return Member(self, client)


@dataclass(eq=False, slots=True)
class Member:
    """A signed-in user."""

    web: Web
    client: httpx.AsyncClient
    last: list[Heard] = field(default_factory=list[Heard])

    async def key(self) -> str:
        """A secret API key."""
        answer = await self.client.post(
            "/api/keys", json={"name": "test", "kind": "secret", "origins": []}
        )
        assert answer.status_code == 201, answer.text
        return answer.json()["secret"]

    @asynccontextmanager
    async def ask(
        self, question: str = "Why?", *, generation: str | None = None, **body: Any
    ) -> AsyncGenerator[AsyncGenerator[Heard]]:
        """Ask, and hear the events while the block lasts."""
        sent = {"id": generation or uuid4().hex, "question": question} | body
        async with self.client.stream("POST", "/api/chat", json=sent) as response:
            yield await _events_of(response)

    async def answer(self, question: str = "Why?", **body: Any) -> list[Heard]:
        """Ask, and hear all events up to the last."""
        async with self.ask(question, **body) as events:
            return [heard async for heard in events]

    @asynccontextmanager
    async def watch(
        self, generation: str, after: str | None = None
    ) -> AsyncGenerator[AsyncGenerator[Heard]]:
        headers = {"Last-Event-ID": after} if after else {}
        path = f"/api/turns/{generation}/events"
        async with self.client.stream("GET", path, headers=headers) as response:
            yield await _events_of(response)


async def _events_of(response: httpx.Response) -> AsyncGenerator[Heard]:
    if response.status_code != 200:
        await response.aread()
        raise AssertionError(f"{response.status_code}: {response.text}")
    return heard(response)


async def heard(response: httpx.Response) -> AsyncGenerator[Heard]:
    """The events of an SSE response, as they come."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield Heard(fields["event"], orjson.loads(fields["data"]), fields.get("id"))
            fields = {}


def text_of(events: Sequence[Heard]) -> str:
    return "".join(
        one.data["text"] for one in events if one.name == "delta" and one.data["channel"] == "text"
    )


def names_of(events: Sequence[Heard]) -> list[str]:
    return [one.name for one in events]


async def first(events: AsyncGenerator[Heard], name: str, **fields: Any) -> Heard:
    """Listen until an event of this name whose data has these fields."""
    async for one in events:
        if one.name == name and all(one.data[key] == value for key, value in fields.items()):
            return one
    raise AssertionError(f"no {name} with {fields} came")


def settings_of(store_url: str, folder: Path, **more: Any) -> Settings:
    return Settings(data_folder=folder, redis_url=store_url, **more)


@asynccontextmanager
async def serving(store_url: str, folder: Path, **settings: Any) -> AsyncGenerator[Web]:
    """A web replica on a free port; several may share store and folder."""
    chosen = settings_of(store_url, folder, **settings)
    app = create_app(chosen)
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="on",
        timeout_graceful_shutdown=stop_seconds(chosen),
        ws="none",
    )
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        serve = asyncio.create_task(server.serve(sockets=[listening]), name="uvicorn")
        try:
            await until(lambda: server.started or serve.done(), what="uvicorn")
            async with AsyncExitStack() as stack:
                yield Web(url, app.state.parts, app, server, stack)
        finally:
            server.should_exit = True
            await serve


@asynccontextmanager
async def scripted_node(
    store_url: str, script: Script | None = None, *, name: str = "node-1", **settings: Any
) -> AsyncGenerator[ScriptedKind]:
    """A node that is ready for work; its pool is the script's model."""
    kind = ScriptedKind(script)
    async with serving_node(store_url, kind, name=name, **settings):
        yield kind


@asynccontextmanager
async def serving_node(
    store_url: str, kind: NodeKind, *, name: str = "node-1", **settings: Any
) -> AsyncGenerator[None]:
    """A node of any kind, ready for work; its pool is its model."""
    card = await kind.open()
    chosen = Settings(redis_url=store_url, **settings)
    async with Store.connect(store_url) as store:
        desk = NodeDesk(store, card.name, chosen)
        info = NodeInfo(name, uuid4().hex, name, "scripted", "scripted", card.numerics)
        writer = RelayWriter(store, card.name)
        agent = Agent(desk, writer, kind, info, chosen, card_to_bytes(card))
        line = Line(store, chosen)

        async def idle() -> bool:
            return any(pool.name == card.name and pool.idle_nodes for pool in await line.pools())

        work = asyncio.create_task(agent.run(), name=name)
        try:
            await until(idle, what=f"{name} ready")
            yield
        finally:
            agent.stop()
            agent.stop()
            await work
            await kind.close()
