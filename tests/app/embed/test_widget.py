"""The widget in a real browser, on a page of another site."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from playwright.async_api import BrowserContext, Page, Route, async_playwright, expect

from app.main import create_app
from app.node.kinds.scripted import Script
from app.parts import Parts
from app.settings import Settings
from tests.app.embed.host import Host, listening
from tests.app.serving import PASSWORD, scripted_node
from tests.waiting import until

CHROMIUM = Path("/usr/bin/chromium")
STORED = "(() => { try { return localStorage.length } catch { return 'denied' } })()"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM.exists(), reason="no chromium: run sh tests/browser/ensure_chromium.sh"
    ),
]

expect.set_options(timeout=20_000)
ANSWER = "Because **it is so**. <img src=x onerror=alert(1)>"


@dataclass(slots=True)
class Stage:
    """A running Baton and a browser that blocks third-party cookies."""

    url: str
    context: BrowserContext
    parts: Parts
    complaints: list[str] = field(default_factory=list[str])

    async def key(self, *origins: str) -> str:
        async with httpx.AsyncClient(base_url=self.url, headers={"Origin": self.url}) as client:
            account = {"name": f"owner {uuid4().hex[:8]}", "password": PASSWORD}
            await client.post("/api/sign-up", json=account)
            body = {"name": "shop", "kind": "publishable", "origins": list(origins)}
            answer = await client.post("/api/keys", json=body)
            return answer.json()["secret"]

    @asynccontextmanager
    async def visit(
        self, key: str | None, attributes: str = "", headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Page]:
        """Open a page of another site with our line in it; None: a key bound to that site."""
        host = Host(headers or {})
        async with listening(host.app(), host="localhost") as site:
            chosen = key or await self.key(site)
            host.tag = (
                f'<script src="{self.url}/embed.js" data-key="{chosen}" {attributes}></script>'
            )
            page = await self.context.new_page()
            page.on("console", lambda message: self._hear(message.type, message.text))
            page.on("pageerror", lambda error: self.complaints.append(str(error)))
            page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
            await page.goto(site)
            yield page
            await page.close()

    def _hear(self, kind: str, text: str) -> None:
        if kind == "error":
            self.complaints.append(text)


@asynccontextmanager
async def staged(store_url: str, folder: Path, script: Script) -> AsyncGenerator[Stage]:
    settings = Settings(data_folder=folder, redis_url=store_url, sign_in_tries_per_minute=100)
    app = create_app(settings)
    async with (
        scripted_node(store_url, script),
        listening(app) as url,
        async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--test-third-party-cookie-phaseout"]
        )
        context = await browser.new_context()
        context.set_default_timeout(10_000)
        yield Stage(url, context, app.state.parts)
        await browser.close()


@pytest.fixture
async def stage(valkey_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """With a node that answers at once."""
    script = Script(text=ANSWER, tokens_per_second=100)
    async with staged(valkey_url, tmp_path, script) as running:
        yield running


@pytest.fixture
async def slow_stage(valkey_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """With a node that begins an answer and does not end it."""
    async with staged(valkey_url, tmp_path, Script(text=ANSWER, stall_at=3)) as running:
        yield running


async def test_a_visitor_asks_and_reads_the_answer_without_any_cookie(stage: Stage):
    async with stage.visit(None) as page:
        frame = page.frame_locator("iframe[data-baton=chat]")
        await frame.locator("#question").fill("Why?")
        await frame.locator("#question").press("Enter")
        await expect(frame.locator(".answer strong")).to_have_text("it is so")
        await expect(frame.locator(".figures")).to_contain_text("average")
        await expect(frame.locator("#send")).to_be_visible()
        assert await stage.context.cookies() == []
        # with third-party cookies the browser blocks storage too, and the widget misses neither
        assert await page.frames[1].evaluate(STORED) in (0, "denied")
    # neither dialogs, nor faults, nor reports of a broken policy
    assert stage.complaints == []


async def test_the_second_question_is_asked_with_the_first_answer(stage: Stage):
    async with stage.visit(None) as page:
        frame = page.frame_locator("iframe[data-baton=chat]")
        for n, question in enumerate(("Why?", "And then?"), start=1):
            await frame.locator("#question").fill(question)
            await frame.locator("#send").click()
            await expect(frame.locator(".figures")).to_have_count(n)
        sent = await page.frames[1].evaluate(
            "performance.getEntriesByType('resource').map(r => r.name)"
        )
        assert sum("/api/embed/chat" in name for name in sent) == 2
        # one visitor, one session
        assert sum("/api/embed/session" in name for name in sent) == 1


async def test_a_foreign_origin_sees_a_sentence_that_names_it(stage: Stage):
    key = await stage.key("https://shop.example")
    async with stage.visit(key) as page:
        fault = page.get_by_role("alert")
        site = await page.evaluate("location.origin")
        await expect(fault).to_have_text(f"Baton: origin {site} is not allowed for this key")
        await expect(page.locator("iframe")).to_have_count(0)


async def test_a_foreign_page_cannot_frame_the_chat_behind_the_scripts_back(stage: Stage):
    key = await stage.key("https://shop.example")
    async with stage.visit(key) as page:
        await page.evaluate(
            "url => document.body.append(Object.assign(document.createElement('iframe'), {src: url}))",
            f"{stage.url}/embed?key={key}",
        )
        await until(
            lambda: any("frame-ancestors" in text for text in stage.complaints),
            what="the browser's refusal",
        )
        await expect(page.frame_locator("iframe").locator("#question")).to_have_count(0)


async def test_a_page_with_a_strict_policy_and_isolation_can_embed(stage: Stage):
    policy = {
        "Content-Security-Policy": f"default-src 'self'; script-src {stage.url}; "
        f"connect-src {stage.url}; frame-src {stage.url}; style-src 'self'; img-src data:",
        "Cross-Origin-Embedder-Policy": "require-corp",
    }
    async with stage.visit(None, headers=policy) as page:
        await expect(page.frame_locator("iframe").locator("#question")).to_be_visible()
    assert stage.complaints == []


async def test_the_bubble_opens_and_closes_by_button_and_escape(stage: Stage):
    async with stage.visit(None, 'data-mode="bubble" data-lang="zh"') as page:
        button = page.get_by_role("button")
        await expect(button).to_have_attribute("aria-label", "打开聊天")
        await expect(page.locator("iframe")).to_have_count(0)
        await button.click()
        frame = page.frame_locator("iframe")
        await expect(frame.locator("html")).to_have_attribute("lang", "zh")
        await frame.locator("#question").fill("草稿")
        await button.click()
        await expect(page.locator("iframe")).to_be_hidden()
        await button.click()
        await expect(frame.locator("#question")).to_have_value("草稿")
        await page.locator("h1").click()
        await page.keyboard.press("Escape")
        await expect(page.locator("iframe")).to_be_hidden()
        await expect(button).to_have_attribute("aria-expanded", "false")


async def test_a_confirmed_composition_is_not_sent(stage: Stage):
    async with stage.visit(None) as page:
        frame = page.frame_locator("iframe")
        field = frame.locator("#question")
        await field.fill("你好")
        await field.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
        await field.dispatch_event("keydown", {"key": "Enter", "keyCode": 229})
        await expect(field).to_have_value("你好")
        await expect(frame.locator(".turn")).to_have_count(0)


async def test_a_token_that_ran_out_is_renewed_behind_the_question(stage: Stage):
    tries: list[str] = []

    async def refuse_once(route: Route) -> None:
        tries.append(route.request.headers["authorization"])
        if len(tries) > 1:
            await route.continue_()
        else:
            await route.fulfill(status=401, json={"error": {"code": "visitor_expired"}})

    # before the frame's process exists: a busy browser may not intercept in it from the first request
    await stage.context.route("**/api/embed/chat", refuse_once)
    async with stage.visit(None) as page:
        frame = page.frame_locator("iframe")
        await frame.locator("#question").fill("Why?")
        await frame.locator("#send").click()
        await expect(frame.locator(".answer strong")).to_have_text("it is so")
        assert len(tries) == 2


async def test_a_refusal_is_shown_and_the_question_can_be_asked_again(stage: Stage):
    sentence = "Many visitors are in line."
    fault = {"error": {"code": "site_full", "message": sentence}}
    await stage.context.route(
        "**/api/embed/chat", lambda route: route.fulfill(status=429, json=fault), times=1
    )
    async with stage.visit(None) as page:
        frame = page.frame_locator("iframe")
        await frame.locator("#question").fill("Why?")
        await frame.locator("#send").click()
        await expect(frame.locator(".turn .error")).to_have_text(sentence)
        await frame.locator(".retry").click()
        await expect(frame.locator(".answer strong")).to_have_text("it is so")


async def test_waiting_visitors_see_their_place_and_may_leave(slow_stage: Stage):
    async with slow_stage.visit(None) as page, slow_stage.visit(None) as second:
        ahead, behind = page.frame_locator("iframe"), second.frame_locator("iframe")
        for frame in (ahead, behind):
            await frame.locator("#question").fill("Why?")
            await frame.locator("#send").click()
            await expect(frame.locator(".turn")).to_have_count(1)
            await expect(frame.locator("#queue, .is-answering").first).to_be_visible()
        await expect(behind.locator("#queue h2")).to_have_text("1st in your line")
        await behind.locator("#queue .leave").click()
        await expect(behind.locator("#send")).to_be_visible()
        await expect(ahead.locator("#stop")).to_be_visible()


async def test_closing_the_page_gives_the_node_free(slow_stage: Stage):
    async def idle_nodes() -> int:
        return sum(pool.idle_nodes for pool in await slow_stage.parts.line.pools())

    async with slow_stage.visit(None) as page:
        frame = page.frame_locator("iframe")
        await frame.locator("#question").fill("Why?")
        await frame.locator("#send").click()
        await expect(frame.locator(".answer")).to_contain_text("B")
        assert await idle_nodes() == 0
        await page.goto("about:blank")
        await until(idle_nodes, what="the node to be free")
