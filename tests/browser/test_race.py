"""Two models at once, side by side."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from app.node.kinds.scripted import Script
from tests.browser.site import Site, Visitor

pytestmark = pytest.mark.browser

ALPHA = Script(model="alpha", text="I am alpha.", tokens_per_second=500)
BETA = Script(model="beta", text="I am beta.", tokens_per_second=500)


async def racer(site: Site, **options: object) -> Visitor:
    ada = await site.visitor(**options)
    await ada.sign_up()
    await expect(ada.page.locator("#pool option")).to_have_count(2)
    await ada.page.locator("#pool").select_option("alpha")
    await ada.page.locator("#race").click()
    return ada


async def test_a_race_shows_two_answers_side_by_side_and_keeps_the_first(site: Site) -> None:
    await site.node(ALPHA)
    await site.node(BETA, name="node-2")
    ada = await racer(site)
    await ada.ask("Who?")
    lanes = ada.page.locator(".race .lane")
    await expect(lanes.locator(".turn-foot:visible")).to_have_count(2)
    titles = [re.compile(rf"^{name} · average [\d.]+$") for name in ("alpha", "beta")]
    await expect(lanes.locator("h3")).to_have_text(titles)
    await expect(lanes.locator(".answer")).to_have_text(["I am alpha.", "I am beta."])
    await expect(ada.page.locator(".question:visible")).to_have_text(["Who?"])
    first, second = [await lane.bounding_box() for lane in await lanes.all()]
    assert first
    assert second
    assert first["y"] == second["y"]
    assert second["x"] >= first["x"] + first["width"]
    await ada.page.reload()
    await expect(ada.answer).to_have_text("I am alpha.")
    await expect(ada.page.locator(".answer")).to_have_count(1)


async def test_on_a_phone_the_lanes_stand_below_each_other(site: Site) -> None:
    await site.node(ALPHA)
    await site.node(BETA, name="node-2")
    ada = await racer(site, viewport={"width": 375, "height": 667})
    await ada.page.locator("#question").fill("Who?")
    await ada.page.locator("#send").click()
    lanes = ada.page.locator(".race .lane")
    await expect(lanes.locator(".turn-foot:visible")).to_have_count(2)
    first, second = [await lane.bounding_box() for lane in await lanes.all()]
    assert first
    assert second
    assert second["y"] >= first["y"] + first["height"]
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await ada.page.evaluate(wide) == 0


async def test_stop_ends_both_answers(site: Site) -> None:
    await site.node(Script(model="alpha", tokens_per_second=30))
    await site.node(Script(model="beta", tokens_per_second=30), name="node-2")
    ada = await racer(site)
    await ada.ask("Who?")
    lanes = ada.page.locator(".race .lane")
    for lane in await lanes.all():
        await expect(lane.locator(".answer")).not_to_be_empty()
    await ada.page.locator("#stop").click()
    await expect(lanes.locator(".turn-foot:visible")).to_have_count(2)
    await expect(ada.page.locator("#stop")).to_be_hidden()


async def test_without_a_free_model_the_question_is_asked_as_usual(site: Site) -> None:
    await site.node(ALPHA)
    await site.node(Script(model="beta", tokens_per_second=30), name="node-2")
    ben = await site.visitor()
    await ben.sign_up("Ben")
    await ben.page.locator("#pool").select_option("beta")
    await ben.ask("Busy?")
    await expect(ben.answer).not_to_be_empty()
    ada = await racer(site)
    await ada.ask("Who?")
    assert await ada.answered() == "I am alpha."
    await expect(ada.page.locator("#notice")).to_be_visible()
    await expect(ada.page.locator(".race")).to_have_count(0)
    await ben.page.locator("#stop").click()
    await expect(ben.foot).to_be_visible()
