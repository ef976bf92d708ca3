"""The command that people start, its first link, and a first answer: all processes, one browser."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import async_playwright, expect

from tests.app.serving import PASSWORD
from tests.browser.site import ARGUMENTS, Visitor, chromium

pytestmark = pytest.mark.browser

FIRST_LINK = re.compile(r"(http://127\.0\.0\.1:\d+)(/sign-in#admin=\S+)")


@asynccontextmanager
async def baton_serve(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """`baton serve` with a scripted node: its address and the path of its first link."""
    command = [sys.executable, "-m", "app.cli", "serve", "--kind", "scripted", "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if "BATON" not in name}
    process = await asyncio.create_subprocess_exec(
        *command, "--data-folder", str(folder), stdout=asyncio.subprocess.PIPE, env=environment
    )
    assert process.stdout
    try:
        yield await asyncio.wait_for(_first_link(process.stdout), 60)
    finally:
        process.terminate()
        # what it still says is read, so that it never waits for a full pipe
        await process.communicate()
    assert process.returncode == 0


async def _first_link(output: asyncio.StreamReader) -> tuple[str, str]:
    async for line in output:
        if found := FIRST_LINK.search(line.decode()):
            return found[1], found[2]
    raise AssertionError("baton serve ended without a first link")


async def test_the_first_link_makes_an_administrator_who_gets_an_answer(tmp_path: Path) -> None:
    async with baton_serve(tmp_path) as (url, path), async_playwright() as play:
        browser = await play.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        context = await browser.new_context(locale="en-US")
        visitor = Visitor(url, context, await context.new_page())
        visitor.listen()
        await visitor.go(path)
        assert "admin=" not in visitor.page.url
        await visitor.page.locator("[name=name]").fill("Ada")
        await visitor.page.locator("[name=password]").fill(PASSWORD)
        await visitor.page.locator("[data-submit]").click()
        await expect(visitor.page.locator("#line-summary")).to_have_text("1 node is free")
        await expect(visitor.page.locator("a[href='/admin']")).to_have_count(1)
        await visitor.ask("Why?")
        assert len(await visitor.answered()) > 200
        await expect(visitor.page.locator("[data-figure=average]")).to_have_text(re.compile(r"^\d"))
        assert visitor.problems == []
        await browser.close()
