"""People who wait, in a real browser: looking elsewhere when the turn comes, and taking it."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from app.node.kinds.scripted import Script
from tests.browser.site import Site, Visitor

pytestmark = pytest.mark.browser

SHORT = Script(text="Short.", tokens_per_second=500)


async def turn_to_another_tab(visitor: Visitor, *, away: bool) -> None:
    """Headless pages are always in front, so the page is told what a browser would tell it."""
    await visitor.page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        away,
    )


async def test_a_turn_that_comes_while_one_looks_elsewhere_is_called_and_can_be_taken(
    site: Site,
) -> None:
    await site.node(SHORT)
    ada, ben, cai = [await site.visitor() for _ in range(3)]
    for name, visitor in (("Ada", ada), ("Ben", ben), ("Cai", cai)):
        await visitor.sign_up(name)
    await ada.ask("First?")
    await ada.answered()
    await ben.ask("Second?")
    await expect(ben.card).to_contain_text("1st in your line")
    await cai.ask("Third?")
    await expect(cai.card).to_contain_text("2nd in your line")
    await turn_to_another_tab(ben, away=True)
    await ada.card.get_by_role("button", name="End turn").click()
    assert await cai.answered() == "Short."
    await expect(ben.page).to_have_title(re.compile("^Your turn"))
    await expect(ben.card).to_contain_text(re.compile(r"It is your turn: 0:[0-3]\d to take it"))
    # a page that is in front would take it by itself; the button is for those who see both
    await ben.card.get_by_role("button", name="I am here").click()
    await expect(ben.card).to_contain_text("1st in your line")
    await cai.card.get_by_role("button", name="End turn").click()
    assert await ben.answered() == "Short."


async def test_a_page_that_comes_to_the_front_takes_the_turn(site: Site) -> None:
    await site.node(SHORT)
    ada, ben, cai = [await site.visitor() for _ in range(3)]
    for name, visitor in (("Ada", ada), ("Ben", ben), ("Cai", cai)):
        await visitor.sign_up(name)
    await ada.ask("First?")
    await ada.answered()
    await ben.ask("Second?")
    await expect(ben.card).to_contain_text("1st in your line")
    await cai.ask("Third?")
    await expect(cai.card).to_contain_text("2nd in your line")
    await turn_to_another_tab(ben, away=True)
    await ada.card.get_by_role("button", name="End turn").click()
    await expect(ben.card).to_have_attribute("data-kind", "claim")
    await turn_to_another_tab(ben, away=False)
    await expect(ben.card).to_contain_text("1st in your line")
    await cai.card.get_by_role("button", name="End turn").click()
    assert await ben.answered() == "Short."
