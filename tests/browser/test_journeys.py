"""What people do, from the first visit to the last figure, in a real browser."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.async_api import expect

from app.node.kinds.scripted import Script
from tests.app.serving import PASSWORD, scripted_node
from tests.browser.site import Site, Visitor
from tests.waiting import until

pytestmark = pytest.mark.browser

STORY = "\n\n".join(f"Paragraph {n} of the story, **bold** at {n}." for n in range(40))
SLOW = Script(text=STORY, tokens_per_second=250)
# reads for a second or so before it writes
THOUGHTFUL = Script(text=STORY, tokens_per_second=2000, prefill_ms_per_token=40)


async def shown_figure(visitor: Visitor, name: str) -> str:
    return await visitor.page.locator(f"[data-figure={name}]").inner_text()


async def told(visitor: Visitor) -> dict[str, Any]:
    """The last turn of the open conversation, as the server has it in SQL."""

    async def ended() -> dict[str, Any] | None:
        address = re.search(r"[?&]c=([0-9a-f]{32})", visitor.page.url)
        assert address, visitor.page.url
        path = f"{visitor.url}/api/conversations/{address[1]}"
        answer = await visitor.context.request.get(path)
        turn = (await answer.json())["turns"][-1]
        return turn if turn["status"] != "open" else None

    found = await until(ended, what="the turn in SQL")
    assert found
    return found


def plain(text: str) -> str:
    """Text without Markdown and without the page's own line breaks."""
    return re.sub(r"\s+", " ", text.replace("**", "")).strip()


async def test_a_stranger_signs_up_asks_and_reads_the_answer_with_true_figures(site: Site) -> None:
    await site.node(Script(text=STORY, tokens_per_second=400))
    ada = await site.visitor()
    await ada.sign_up()
    await expect(ada.page.locator("#line-summary")).to_have_text("1 node is free")
    await ada.ask("Tell me a story.")
    await expect(ada.page.locator("#gauge:not([data-idle]) [data-figure=live]")).to_have_text(
        re.compile(r"^\d")
    )
    assert plain(await ada.answered()) == plain(STORY)

    turn = await told(ada)
    figures = turn["figures"]
    assert plain(turn["answer"]) == plain(STORY)
    tokens = figures["usage"]["completion_tokens"]
    await expect(ada.foot).to_contain_text(f"{tokens:,} tokens")
    shown = (await shown_figure(ada, "average")).replace(",", "")
    assert float(shown) == pytest.approx(figures["tps"]["average"], abs=0.06)
    assert float((await shown_figure(ada, "peak")).replace(",", "")) >= float(shown)
    assert await shown_figure(ada, "live") == "0"
    await expect(ada.card).to_contain_text("is yours")
    await expect(ada.page.locator("#announcer")).to_contain_text(f"Done: {tokens:,} tokens")
    await expect(ada.page.locator("#conversations li")).to_have_count(1)


async def test_the_second_in_line_sees_the_place_and_is_served_when_the_first_leaves(
    site: Site,
) -> None:
    await site.node(Script(text="Short.", tokens_per_second=500))
    ada, ben = await site.visitor(), await site.visitor()
    await ada.sign_up("Ada")
    await ada.ask("First?")
    await ada.answered()
    await ben.sign_up("Ben")
    await ben.ask("Second?")
    await expect(ben.card).to_contain_text("1st in your line")
    await expect(ben.card).to_contain_text("1 waiting")
    await expect(ben.card).to_contain_text("kept for 2 minutes")
    await expect(ben.page).to_have_title(re.compile("^1st in line"))
    await expect(ben.page.locator("#announcer")).to_contain_text("You joined the line.")
    await expect(ada.card).to_contain_text("Others are waiting")
    await ada.card.get_by_role("button", name="End turn").click()
    assert await ben.answered() == "Short."
    assert "next" not in (await ben.page.locator("body").inner_text()).lower()


async def test_who_leaves_the_line_is_told_and_can_try_again(site: Site) -> None:
    await site.node(Script(text="Short.", tokens_per_second=500))
    ada, ben = await site.visitor(), await site.visitor()
    await ada.sign_up("Ada")
    await ada.ask("First?")
    await ada.answered()
    await ben.sign_up("Ben")
    await ben.ask("Second?")
    await ben.card.get_by_role("button", name="Leave the line").click()
    await expect(ben.foot).to_be_visible()
    await ada.card.get_by_role("button", name="End turn").click()
    await ben.foot.get_by_role("button", name="Try again").click()
    assert await ben.answered() == "Short."


@pytest.mark.parametrize(
    ("script", "moment"),
    [(THOUGHTFUL, "#queue[data-kind=reading]"), (SLOW, ".answer p:nth-of-type(9)")],
    ids=["reading", "answering"],
)
async def test_a_reload_in_the_middle_loses_nothing(
    site: Site, script: Script, moment: str
) -> None:
    await site.node(script)
    ada = await site.visitor()
    await ada.sign_up()
    await ada.ask("Tell me a story, please, and think about it for a moment before you begin.")
    await expect(ada.page.locator(moment)).to_be_visible()
    await expect(ada.page).to_have_url(re.compile("[?&]c="))
    await ada.page.reload()
    assert plain(await ada.answered()) == plain(STORY)
    await expect(ada.page.locator(".turn")).to_have_count(1)
    assert plain((await told(ada))["answer"]) == plain(STORY)


async def test_a_reload_in_line_keeps_the_place(site: Site) -> None:
    await site.node(Script(text="Short.", tokens_per_second=500))
    ada, ben, eve = [await site.visitor() for _ in range(3)]
    await ada.sign_up("Ada")
    await ada.ask("First?")
    await ada.answered()
    for person, place in ((ben, "1st"), (eve, "2nd")):
        await person.sign_up(place)
        await person.ask("And me?")
        await expect(person.card).to_contain_text(f"{place} in your line")
    await ben.page.reload()
    await expect(ben.card).to_contain_text("1st in your line")
    await expect(eve.card).to_contain_text("2nd in your line")


async def test_stop_keeps_what_was_written(site: Site) -> None:
    await site.node(SLOW)
    ada = await site.visitor()
    await ada.sign_up()
    await ada.ask("Tell me a story.")
    await expect(ada.answer).to_contain_text("Paragraph 3")
    await ada.page.keyboard.press("Escape")
    written = await ada.answered()
    assert "Paragraph 3" in written
    assert "Paragraph 39" not in written
    await expect(ada.foot).to_contain_text("Stopped")
    turn = await told(ada)
    assert plain(turn["answer"]).startswith(plain(written)[:200])
    await ada.page.reload()
    await expect(ada.answer).to_contain_text("Paragraph 3")
    await expect(ada.foot).to_contain_text("Stopped")


async def test_switching_away_and_back_while_an_answer_streams_keeps_it(site: Site) -> None:
    await site.node(SLOW)
    ada = await site.visitor()
    await ada.sign_up()
    await ada.ask("Tell me a story.")
    await expect(ada.answer).to_contain_text("Paragraph 3")
    await ada.page.locator("#new-chat").click()
    await expect(ada.page.locator(".turn")).to_have_count(0)
    await expect(ada.page.locator("#conversations .is-running")).to_have_count(1)
    await ada.page.locator("#conversations a").click()
    assert plain(await ada.answered()) == plain(STORY)


async def test_a_failed_answer_says_why_and_can_be_tried_again(site: Site) -> None:
    await site.node(Script(text=STORY, tokens_per_second=2000, fail_at=120))
    ada = await site.visitor()
    await ada.sign_up()
    await ada.ask("Tell me a story.")
    await ada.answered()
    await expect(ada.page.locator(".turn .error")).to_be_visible()
    await expect(ada.answer).to_contain_text("Paragraph 2")
    await expect(ada.foot.get_by_role("button", name="Try again")).to_be_visible()


async def test_an_answer_that_moved_says_so_under_its_text(site: Site) -> None:
    ada = await site.visitor()
    async with scripted_node(site.store_url, SLOW, name="one", shutdown_grace_seconds=0.01):
        await ada.sign_up()
        await ada.ask("Tell me a story.")
        await expect(ada.answer).to_contain_text("Paragraph 2")
        await site.node(SLOW, name="two")
    assert plain(await ada.answered()) == plain(STORY)
    note = ada.page.locator(".turn .note")
    await expect(note).to_have_text(
        re.compile(r"^Continued on another node after token \d+, with exactly the same text\.$")
    )
    usage = (await told(ada))["figures"]["usage"]
    await expect(note).to_contain_text(f"token {usage['resumed_tokens']:,}")
    await expect(ada.foot).to_contain_text(f"{usage['completion_tokens']:,} tokens")


async def test_a_second_question_has_the_first_in_its_conversation(site: Site) -> None:
    await site.node(Script(text="Short.", tokens_per_second=500))
    ada = await site.visitor()
    await ada.sign_up()
    for question in ("One?", "Two?"):
        await ada.ask(question)
        await ada.answered()
    await expect(ada.page.locator(".turn")).to_have_count(2)
    await expect(ada.page.locator("#session [data-session=answers]")).to_have_text("2")
    await ada.page.reload()
    await expect(ada.page.locator(".question")).to_have_text(["One?", "Two?"])


async def test_conversations_are_renamed_and_deleted(site: Site) -> None:
    await site.node(Script(text="Short.", tokens_per_second=500))
    ada = await site.visitor()
    await ada.sign_up()
    await ada.ask("One?")
    await ada.answered()
    row = ada.page.locator("#conversations li")
    await row.hover()
    await row.get_by_role("button", name="Rename").click()
    await row.locator("input").fill("A better title")
    await row.locator("input").press("Enter")
    await expect(row.locator(".title")).to_have_text("A better title")
    await row.hover()
    await row.get_by_role("button", name="Delete").click()
    await row.get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(0)
    await expect(ada.page.locator(".turn")).to_have_count(0)


async def test_an_empty_pool_is_told_at_once(site: Site) -> None:
    ada = await site.visitor()
    await ada.sign_up()
    await expect(ada.page.locator("#line-summary")).to_have_text("No node is connected")
    ada.expected_statuses |= {404, 503}
    await ada.ask("Anybody?")
    await expect(ada.page.locator(".turn .error")).to_be_visible()


async def test_who_was_signed_out_signs_in_in_place_and_the_question_goes_on(site: Site) -> None:
    await site.node(Script(text="Short.", tokens_per_second=500))
    ada = await site.visitor()
    await ada.sign_up()
    await ada.context.clear_cookies()
    ada.expected_statuses.add(401)
    await ada.ask("Still there?")
    dialog = ada.page.locator("#sign-in-again")
    await expect(dialog).to_be_visible()
    await dialog.locator("[name=name]").fill("Ada")
    await dialog.locator("[name=password]").fill("not the password")
    await dialog.locator("[data-submit]").click()
    await expect(dialog.locator("[data-error]")).to_be_visible()
    await dialog.locator("[name=password]").fill(PASSWORD)
    await dialog.locator("[data-submit]").click()
    await expect(ada.answer).to_have_text("Short.")
    await expect(ada.page.locator(".question")).to_have_text(["Still there?"])


async def test_with_two_models_one_is_chosen(site: Site) -> None:
    await site.node(Script(model="alpha", text="I am alpha.", tokens_per_second=500))
    await site.node(Script(model="beta", text="I am beta.", tokens_per_second=500), name="node-2")
    ada = await site.visitor()
    await ada.sign_up()
    await ada.page.locator("#pool").select_option("beta")
    await ada.ask("Who?")
    assert await ada.answered() == "I am beta."


async def test_thoughts_are_folded_apart_from_the_answer(site: Site) -> None:
    await site.node(Script(text="Short.", tokens_per_second=500))
    ada = await site.visitor()
    await ada.sign_up()
    events = [
        ("delta", {"text": "First I **think**.", "channel": "reasoning", "n": 5, "t_ms": 0}),
        ("delta", {"text": "Then I speak.", "channel": "text", "n": 4, "t_ms": 500}),
        ("done", {"finish_reason": "stop", "stop_reason": None, "usage": {}, "timing": {}, "tps": {}, "accepted": {}}),
    ]  # fmt: skip
    body = "".join(
        f"id: 1-{n}\nevent: {name}\ndata: {json.dumps(data)}\n\n"
        for n, (name, data) in enumerate(events)
    )
    await ada.page.route(
        "**/api/chat",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    await ada.ask("Think!")
    assert await ada.answered() == "Then I speak."
    fold = ada.page.locator(".reasoning")
    await expect(fold.locator("summary")).to_have_text("Thought for 5 tokens")
    await expect(fold.locator("strong")).to_be_hidden()
    await fold.locator("summary").click()
    await expect(fold.locator("strong")).to_have_text("think")
