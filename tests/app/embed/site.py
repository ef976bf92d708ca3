"""A site that embeds the chat, and its visitors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx

from app.embed.routes import router
from tests.app.serving import Heard, Web, heard

SITE = "https://shop.example"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody in the frame: a client without cookies, with a token."""

    client: httpx.AsyncClient
    key: str
    token: str

    async def ask(self, question: str = "Why?", **body: Any) -> httpx.Response:
        """Ask without listening; for refusals."""
        return await self.client.post("/api/embed/chat", json=question_body(question) | body)

    @asynccontextmanager
    async def asking(
        self, question: str = "Why?", **body: Any
    ) -> AsyncGenerator[AsyncGenerator[Heard]]:
        sent = question_body(question) | body
        async with self.client.stream("POST", "/api/embed/chat", json=sent) as response:
            assert response.status_code == 200, await response.aread()
            yield heard(response)

    async def answer(self, question: str = "Why?", **body: Any) -> list[Heard]:
        async with self.asking(question, **body) as events:
            return [one async for one in events]


def question_body(question: str) -> dict[str, Any]:
    return {"id": uuid4().hex, "messages": [{"role": "user", "content": question}]}


def mount(web: Web) -> None:
    """Give a test's web replica the routes of the embedded chat."""
    web.app.include_router(router)


async def make_site(web: Web, *origins: str, name: str = "Eva") -> dict[str, Any]:
    """A publishable key of a new account, bound to `origins`; `revoke` ends it."""
    member = await web.member(name)
    body = {"name": "shop", "kind": "publishable", "origins": list(origins or (SITE,))}
    answer = await member.client.post("/api/keys", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json() | {"member": member}


async def enter(web: Web, key: str) -> Visitor:
    """A new visitor in our own framed page."""
    client = await web.client(Origin=web.url)
    answer = await client.post("/api/embed/session", json={"key": key})
    assert answer.status_code == 200, answer.text
    token = answer.json()["token"]
    client.headers["Authorization"] = f"Bearer {token}"
    return Visitor(client, key, token)
