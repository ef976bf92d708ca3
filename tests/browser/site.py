"""A whole Baton on a free port and browsers in front of it, for browser tests and screenshots."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from playwright.async_api import Browser, BrowserContext, Page, Response, async_playwright, expect

from app.main import create_app
from app.node.kinds.scripted import Script, ScriptedKind
from app.settings import Settings
from tests.app.serving import PASSWORD, scripted_node
from tests.waiting import until

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass(eq=False, slots=True)
class Visitor:
    """One person with one browser profile and one tab."""

    url: str
    context: BrowserContext
    page: Page
    # console errors (the policy's reports are some), script faults, dialogs: there should be none
    problems: list[str] = field(default_factory=list[str])
    # statuses of answers that a test provokes
    expected_statuses: set[int] = field(default_factory=set[int])
    # parts of console errors that a test provokes
    expected_texts: list[str] = field(default_factory=list[str])

    def listen(self) -> None:
        self.page.on("console", lambda message: self._console(message.type, message.text))
        self.page.on("pageerror", lambda error: self.problems.append(f"fault: {error.stack}"))
        self.page.on("dialog", lambda dialog: self._dialog(dialog))

    def _console(self, kind: str, text: str) -> None:
        statuses = [f"status of {status}" for status in self.expected_statuses]
        provoked = any(part in text for part in statuses + self.expected_texts)
        if kind == "error" and not provoked:
            self.problems.append(text)

    async def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    async def go(self, path: str = "/") -> Response | None:
        return await self.page.goto(self.url + path)

    async def sign_up(self, name: str = "Ada", path: str = "/") -> None:
        """From the welcome page to the chat, with a new account."""
        await self.go(path)
        if await self.page.locator("form [data-admin-note]").is_hidden():
            await self.page.locator("[data-switch]").click()
        await self.page.locator("[name=name]").fill(name)
        await self.page.locator("[name=password]").fill(PASSWORD)
        await self.page.locator("[data-submit]").click()
        # the scripts are there once the line has been asked
        await expect(self.page.locator("#line-summary")).not_to_be_empty()

    async def ask(self, question: str) -> None:
        await self.page.locator("#question").fill(question)
        await self.page.locator("#question").press("Enter")

    @property
    def answer(self):
        """The last answer."""
        return self.page.locator(".answer").last

    @property
    def card(self):
        return self.page.locator("#queue")

    @property
    def foot(self):
        return self.page.locator(".turn").last.locator(".turn-foot")

    async def answered(self, within_seconds: float = 15) -> str:
        """The whole text of the last answer, once it has ended."""
        await expect(self.foot).to_be_visible(timeout=within_seconds * 1000)
        return await self.answer.inner_text()


@dataclass(eq=False, slots=True)
class Site:
    url: str
    store_url: str
    browser: Browser
    stack: AsyncExitStack
    visitors: list[Visitor] = field(default_factory=list[Visitor])

    async def node(self, script: Script, **options: Any) -> ScriptedKind:
        return await self.stack.enter_async_context(
            scripted_node(self.store_url, script, **options)
        )

    async def visitor(self, **options: Any) -> Visitor:
        """A new profile; `options` are Playwright's for a context."""
        made = {"viewport": {"width": 1280, "height": 800}, "locale": "en-US"} | options
        context = await self.browser.new_context(**made)
        context.set_default_timeout(10_000)
        visitor = Visitor(self.url, context, await context.new_page())
        visitor.listen()
        self.visitors.append(visitor)
        return visitor

    @property
    def problems(self) -> list[str]:
        return [problem for visitor in self.visitors for problem in visitor.problems]


def chromium() -> str | None:
    """The system's Chromium; None: the one that Playwright installs."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


@asynccontextmanager
async def open_site(store_url: str, folder: Path, **settings: Any) -> AsyncGenerator[Site]:
    """The web process as it is shipped, in this process; nodes are added by the caller."""
    limits = {
        "sign_in_tries_per_minute": 1000,
        "requests_per_minute": 1000,
        "default_max_tokens": 4000,
    }
    app = create_app(
        Settings(data_folder=folder, redis_url=store_url, **(limits | settings))  # pyright: ignore[reportArgumentType]  # values of several fields
    )
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2, ws="none")
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        serve = asyncio.create_task(server.serve(sockets=[listening]), name="uvicorn")
        try:
            await until(lambda: server.started or serve.done(), what="uvicorn")
            async with async_playwright() as play, AsyncExitStack() as stack:
                browser = await play.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
                stack.push_async_callback(browser.close)
                yield Site(url, store_url, browser, stack)
        finally:
            server.should_exit = True
            await serve
