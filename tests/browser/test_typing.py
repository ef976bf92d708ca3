"""Keys, input methods, phones, languages, colours."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from app.node.kinds.scripted import Script
from tests.browser.site import Site

pytestmark = pytest.mark.browser

PHONE: dict[str, Any] = {
    "viewport": {"width": 375, "height": 667},
    "is_mobile": True,
    "has_touch": True,
}
SHORT = Script(text="Short.", tokens_per_second=500)

# What browsers send when Enter confirms a composition.
SEQUENCES = {
    "keydown inside the composition": """(field) => {
      field.dispatchEvent(new CompositionEvent("compositionstart", { bubbles: true }));
      field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
      field.dispatchEvent(new CompositionEvent("compositionend", { bubbles: true }));
    }""",
    "keydown marked isComposing": """(field) => field.dispatchEvent(
      new KeyboardEvent("keydown", { key: "Enter", isComposing: true, bubbles: true, cancelable: true }))""",
    "Safari: key code 229 after the end": """(field) => {
      field.dispatchEvent(new CompositionEvent("compositionstart", { bubbles: true }));
      field.dispatchEvent(new CompositionEvent("compositionend", { bubbles: true }));
      field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", keyCode: 229, bubbles: true, cancelable: true }));
    }""",
}


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES.keys())
async def test_enter_that_confirms_a_composition_does_not_send(site: Site, sequence: str) -> None:
    await site.node(SHORT)
    ada = await site.visitor()
    await ada.sign_up()
    field = ada.page.locator("#question")
    await field.fill("你好")
    await field.evaluate(sequence)
    await expect(field).to_have_value("你好")
    await expect(ada.page.locator(".turn")).to_have_count(0)
    await field.press("Enter")
    await expect(ada.page.locator(".question")).to_have_text("你好")


async def test_keys_of_the_composer(site: Site) -> None:
    await site.node(SHORT)
    ada = await site.visitor()
    await ada.sign_up()
    field = ada.page.locator("#question")
    await ada.page.locator("#log").focus()
    await ada.page.keyboard.press("/")
    await expect(field).to_be_focused()
    await expect(field).to_have_value("")
    await field.press_sequentially("one")
    await field.press("Shift+Enter")
    await field.press_sequentially("two/")
    await expect(field).to_have_value("one\ntwo/")
    await ada.page.reload()
    await expect(field).to_have_value("one\ntwo/")
    await field.press("Enter")
    await expect(ada.page.locator(".question")).to_have_text("one\ntwo/")


async def _overflow(page: Page) -> int:
    return await page.evaluate("document.documentElement.scrollWidth - innerWidth")


async def test_a_phone_shows_everything_in_its_width(site: Site) -> None:
    await site.node(
        Script(text="| a | b |\n|---|---|\n| 1 | 2 |\n\n`" + "x" * 300 + "`", tokens_per_second=900)
    )
    ada = await site.visitor(**PHONE)
    await ada.go()
    assert await _overflow(ada.page) <= 0
    await ada.sign_up()
    field = ada.page.locator("#question")
    assert await field.evaluate("(field) => getComputedStyle(field).fontSize") == "16px"
    await field.fill("one")
    await field.press("Enter")
    await expect(field).to_have_value("one\n")
    await ada.page.locator("#send").tap()
    await ada.answered()
    assert await _overflow(ada.page) <= 0
    await expect(field).to_be_in_viewport(ratio=1)
    gauge = await ada.page.locator("#gauge").bounding_box()
    assert gauge is not None
    assert gauge["height"] < 60
    for name in ("live", "peak", "average"):
        await expect(ada.page.locator(f"[data-figure={name}]")).to_be_in_viewport(ratio=1)

    await ada.page.locator("#gauge-more").tap()
    await expect(ada.page.locator("[data-figure=ttftMs]")).to_be_in_viewport()
    assert await _overflow(ada.page) <= 0
    await field.tap()
    await expect(ada.page.locator("[data-figure=ttftMs]")).to_be_hidden()

    side = ada.page.locator("#side")
    await expect(side).not_to_be_in_viewport()
    await ada.page.locator("#menu").tap()
    await expect(side).to_be_in_viewport()
    await ada.page.locator("#new-chat").tap()
    await expect(side).not_to_be_in_viewport()
    await expect(ada.page.locator(".turn")).to_have_count(0)


async def test_the_language_is_the_browsers_until_another_is_chosen(site: Site) -> None:
    ada = await site.visitor(locale="zh-CN")
    await ada.go()
    html = ada.page.locator("html")
    await expect(html).to_have_attribute("lang", "zh")
    await expect(ada.page.locator("[data-submit]")).to_have_text("登录")
    await ada.page.locator("[data-language=en]").click()
    await expect(html).to_have_attribute("lang", "en")
    await ada.go()
    await expect(html).to_have_attribute("lang", "en")
    await expect(ada.page.locator("[data-submit]")).to_have_text("Sign in")
    assert await ada.context.cookies() == []


async def test_colours_follow_the_system_until_chosen(site: Site) -> None:
    ada = await site.visitor(color_scheme="dark")
    await ada.go()
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = await ada.page.evaluate(ground)
    button = ada.page.locator("#theme")
    await button.click()
    light = await ada.page.evaluate(ground)
    assert light != dark
    await ada.page.reload()
    assert await ada.page.evaluate(ground) == light
    await button.click()
    assert await ada.page.evaluate(ground) == dark


async def test_settings_are_sent_kept_and_reset(site: Site) -> None:
    await site.node(Script(text="Short. " * 30, tokens_per_second=900))
    ada = await site.visitor()
    await ada.sign_up()
    bodies: list[Any] = []
    ada.page.on(
        "request",
        lambda request: (
            bodies.append(request.post_data_json) if "/api/chat" in request.url else None
        ),
    )
    await ada.page.locator("#open-settings").click()
    await ada.page.locator("[name=system]").fill("Be brief.")
    await ada.page.locator("[name=max_tokens]").fill("7")
    await ada.page.locator("[name=temperature]").fill("0.5")
    await ada.page.keyboard.press("Escape")
    await ada.page.reload()
    await ada.ask("Why?")
    await ada.answered()
    await expect(ada.foot).to_contain_text("Token limit reached")
    await expect(ada.foot).to_contain_text("7 tokens")
    assert bodies[0]["settings"] == {"system": "Be brief.", "max_tokens": 7, "temperature": 0.5}
    await ada.page.locator("#open-settings").click()
    await ada.page.locator("#settings-reset").click()
    await expect(ada.page.locator("[name=system]")).to_have_value("")


async def test_a_key_is_shown_once_with_its_snippet_and_can_be_revoked(site: Site) -> None:
    ada = await site.visitor()
    await ada.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await ada.sign_up()
    await ada.go("/keys")
    await ada.page.locator("[name=name]").fill("My site")
    await ada.page.locator("[value=publishable]").check()
    await ada.page.locator("[name=origins]").fill("https://example.org")
    await ada.page.locator("#new-key .primary").click()
    fresh = ada.page.locator("#new-secret")
    await expect(fresh).to_contain_text(
        re.compile(r'<script src="http://\S+/embed.js" data-key="pk-?\S+"')
    )
    secret = await fresh.locator("code").first.inner_text()
    await fresh.locator(".copy").first.click()
    await expect(fresh.locator(".copy").first).to_have_attribute("title", "Copied")
    assert await ada.page.evaluate("navigator.clipboard.readText()") == secret
    row = ada.page.locator("#keys li")
    await expect(row).to_contain_text("https://example.org")
    await ada.page.reload()
    await expect(row).to_have_count(1)
    assert secret not in await ada.page.content()
    await row.get_by_role("button", name="Revoke").click()
    await row.get_by_role("button", name="Revoke").click()
    await expect(row).to_have_count(0)
