"""Leaving for good."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.app.serving import PASSWORD
from tests.browser.site import Site

pytestmark = pytest.mark.browser


async def test_an_account_is_deleted_only_with_its_password_and_after_a_second_word(
    site: Site,
) -> None:
    ada = await site.visitor()
    await ada.sign_up()
    ada.expected_statuses |= {401, 403}
    await ada.page.locator("#question").fill("A draft")
    await ada.page.locator("details.account summary").click()
    await ada.page.locator("#open-delete-account").click()
    dialog = ada.page.locator("#delete-account")
    await expect(dialog.locator("[name=password]")).to_be_focused()
    await expect(dialog.get_by_role("button", name="Delete for good")).to_be_disabled()
    box = await dialog.bounding_box()
    assert box
    # in the middle of 1280 pixels
    assert abs(box["x"] + box["width"] / 2 - 640) < 2
    assert box["width"] < 500
    await dialog.get_by_role("button", name="Keep my account").click()
    await expect(dialog).to_be_hidden()

    await ada.page.locator("details.account summary").click()
    await ada.page.locator("#open-delete-account").click()
    await dialog.locator("[name=password]").fill("not the password")
    await dialog.get_by_role("button", name="Delete for good").click()
    await expect(dialog.locator("[data-error]")).to_be_visible()
    await dialog.locator("[name=password]").fill(PASSWORD)
    await dialog.get_by_role("button", name="Delete for good").click()
    # the welcome page, and nobody can come back
    await expect(ada.page.locator("form[data-sign-in]")).to_be_visible()
    assert await ada.page.evaluate("Object.keys(localStorage)") == []
    await ada.page.locator("[name=name]").fill("Ada")
    await ada.page.locator("[name=password]").fill(PASSWORD)
    if "Sign in" not in await ada.page.locator("[data-submit]").inner_text():
        await ada.page.locator("[data-switch]").click()
    await ada.page.locator("[data-submit]").click()
    await expect(ada.page.locator("form [data-error]")).to_be_visible()
