"""Those who use a site under load: they ask, lose their connection, come back elsewhere, hang up."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from app.errors import StoreUnavailableError
from tests.app.serving import PASSWORD, heard
from tests.faults.site import POOL, Site
from tests.history.events import Heard, Reading

# A page gives up on an answer after this long without a word of it; a site that cannot say
# anything for longer hangs.
PATIENCE_SECONDS = 150.0
RETRY_SECONDS = 0.3


class HungError(AssertionError):
    """A turn had no end in time."""


@dataclass(eq=False, slots=True)
class Page:
    """One question as a browser's page follows it, over as many connections as it takes."""

    generation: str
    heard: list[Heard] = field(default_factory=list[Heard])
    position: str | None = None

    @property
    def is_over(self) -> bool:
        return bool(self.heard) and self.heard[-1].name in ("done", "failed")

    @property
    def rank(self) -> int | None:
        """As last told."""
        states = [one.data for one in self.heard if one.name == "state"]
        return states[-1]["rank"] if states else None

    def moved_to(self, node: str) -> bool:
        """Whether the answer goes on at that node, as far as the page was told."""
        states = [one.data for one in self.heard if one.name == "state"]
        now = states[-1]
        return bool(now["moved"] and now["node"] and now["node"]["name"] == node)

    @property
    def is_troubled(self) -> bool:
        """Told that the store is out of reach."""
        return any(
            one.data["reason"] == StoreUnavailableError.message
            for one in self.heard
            if one.name == "state"
        )

    @property
    def text(self) -> str:
        return "".join(one.data["text"] for one in self.heard if one.name == "delta")


class Person:
    """A signed-in browser. `name` is unique."""

    def __init__(
        self,
        site: Site,
        name: str,
        chance: random.Random | None = None,
        *,
        only: int | None = None,
        cookie: str = "",
    ) -> None:
        """`cookie`: of a sign-in that they have already; else they sign up when they are entered."""
        self._site = site
        # the one replica that this person speaks to; None: now this, now that
        self.only = only
        self.name = name
        self._chance = chance or random.Random(name)
        headers = {"Cookie": cookie} if cookie else {}
        # there is no TLS here, and reading the authorities takes a while with hundreds of people
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(20, connect=5), headers=headers, verify=False
        )

    async def __aenter__(self) -> Person:
        account = {"name": self.name, "password": PASSWORD}
        answer = await self._send("POST", "/api/sign-up", json=account)
        assert answer.status_code == 201, answer.text
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.aclose()

    def url(self) -> str:
        """Any replica, unless it is to be one."""
        if self.only is not None:
            return self._site.urls[self.only]
        return self._chance.choice(self._site.urls)

    async def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Once, to a replica that answers."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                url = self.url()
                try:
                    return await self._client.request(
                        method, url + path, headers={"Origin": url}, **more
                    )
                except httpx.TransportError:
                    await asyncio.sleep(RETRY_SECONDS)

    async def key(self) -> str:
        made = {"name": "k", "kind": "secret", "origins": []}
        return (await self._send("POST", "/api/keys", json=made)).json()["secret"]

    async def leave(self) -> None:
        await self._send("POST", "/api/line/leave")

    @property
    def cookies(self) -> httpx.Cookies:
        return self._client.cookies

    async def ask(
        self,
        question: str,
        *,
        hang_up_after: int | None = None,
        page: Page | None = None,
        **settings: Any,
    ) -> Page:
        """Ask and follow to the end, over lost connections; or hang up after so many events.

        `page`: an empty one, for whoever wants to look at it meanwhile.
        """
        page = page or Page(uuid4().hex)
        stayed = True
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not page.is_over and stayed:
                    stayed = await self._follow(page, question, settings, hang_up_after)
                    if not page.is_over and stayed:
                        await asyncio.sleep(RETRY_SECONDS * self._chance.uniform(0.5, 1.5))
        except TimeoutError:
            raise HungError(f"{self.name} heard {page.heard[-3:]} of {page.generation}") from None
        finally:
            self._site.readings.append(Reading(self.name, page.generation, page.heard, stayed))
        return page

    async def _follow(
        self, page: Page, question: str, settings: dict[str, Any], hang_up_after: int | None
    ) -> bool:
        """One connection, until it breaks or the turn ends. False: hung up on purpose."""
        try:
            async with self._open(page, question, settings) as response:
                if response.status_code != 200:
                    await response.aread()
                    _expect_passing(response)
                    return True
                async with aclosing(heard(response)) as events:
                    async for one in events:
                        page.heard.append(Heard(one.name, one.data))
                        page.position = one.id or page.position
                        if hang_up_after is not None and len(page.heard) >= hang_up_after:
                            return page.is_over
        except httpx.TransportError:
            pass  # the page connects again
        return True

    def _open(self, page: Page, question: str, settings: dict[str, Any]) -> Any:
        url = self.url()
        if page.position is None:
            asked = {
                "id": page.generation,
                "question": question,
                "pool": POOL,
                "settings": settings,
            }
            return self._client.stream(
                "POST", f"{url}/api/chat", json=asked, headers={"Origin": url}
            )
        path = f"{url}/api/turns/{page.generation}/events"
        return self._client.stream("GET", path, headers={"Last-Event-ID": page.position})


def _expect_passing(response: httpx.Response) -> None:
    """What a page tries again after: the store is away, no node is there, the line is full."""
    if response.status_code not in (429, 503):
        raise AssertionError(f"{response.status_code}: {response.text}")


async def visit_api(site: Site, key: str, chance: random.Random) -> None:
    """One call of a program: streaming or not, to its end or not. A lost connection is its end."""
    is_stream = chance.random() < 0.5
    seconds = chance.choice((0.3, 2.0, PATIENCE_SECONDS, PATIENCE_SECONDS))
    body = {
        "model": POOL, "stream": is_stream, "max_tokens": chance.choice((5, 60)),
        "messages": [{"role": "user", "content": "?"}],
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(timeout=None, headers=headers) as client:
        try:
            async with (
                asyncio.timeout(seconds),
                client.stream(
                    "POST", f"{chance.choice(site.urls)}/v1/chat/completions", json=body
                ) as response,
            ):
                said = [line async for line in response.aiter_lines()]
        except TimeoutError:
            if seconds == PATIENCE_SECONDS:
                raise HungError("a program got no answer") from None
            return
        except httpx.TransportError:
            return
    if response.status_code == 200 and is_stream:
        assert said[-2:] == ["data: [DONE]", ""], said[-3:]
