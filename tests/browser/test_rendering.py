"""What streams in ends up equal to the whole, finished blocks stay, lost connections come back."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from app.node.kinds.scripted import Script
from tests.browser.site import Site

pytestmark = pytest.mark.browser

RICH = "\n".join(
    [
        "# Title\n",
        "Text with **bold**, `code`, [a link](https://example.org) and **真，**她。\n",
        "- one\n  - inner\n- two\n\n  ```js\n  nested()\n  ```\n",
        "| a | b |\n|---|--:|\n| 1 | 2 |\n",
        "```python\ndef f():\n\n    return '<b>'\n```\n",
        "> quote\n\n1. first\n2. second\n",
        "~~~\nopen to the end\n  x",
    ]
)

COMPARE = """async ([text, step]) => {
  const { renderInto, StreamRenderer } = await import("/static/js/markdown.js");
  const [whole, streamed] = [document.createElement("div"), document.createElement("div")];
  document.querySelector("#turns").append(whole, streamed);
  renderInto(whole, text);
  const renderer = new StreamRenderer(streamed);
  const touched = [];
  let finished = [];
  for (let at = 0; at < text.length; at += step) {
    renderer.push(text.slice(at, at + step));
    await new Promise(requestAnimationFrame);
    const blocks = [...streamed.children];
    // all but the tail of two blocks must be the same elements as before
    touched.push(finished.some((block, n) => blocks[n] !== block));
    finished = blocks.slice(0, -2);
  }
  renderer.finish();
  return { whole: whole.innerHTML, streamed: streamed.innerHTML, touched: touched.includes(true) };
}"""


@pytest.mark.parametrize("step", [1, 7, 64])
async def test_streamed_markdown_is_the_whole_and_finished_blocks_are_never_touched(
    site: Site, step: int
) -> None:
    ada = await site.visitor()
    await ada.sign_up()
    found: dict[str, Any] = await ada.page.evaluate(COMPARE, [RICH, step])
    assert found["streamed"] == found["whole"]
    assert not found["touched"]
    assert 'class="language-' not in found["whole"]
    assert found["whole"].count("<figure") == 3
    assert 'align="right"' in found["whole"]


async def test_a_selection_in_a_finished_paragraph_survives_the_rest(site: Site) -> None:
    story = "\n\n".join(f"Paragraph {n}." for n in range(60))
    await site.node(Script(text=story, tokens_per_second=150))
    ada = await site.visitor()
    await ada.sign_up()
    await ada.ask("Why?")
    await expect(ada.answer).to_contain_text("Paragraph 4.")
    await ada.page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('.answer p:nth-of-type(2)'))"
    )
    await ada.answered()
    assert await ada.page.evaluate("String(getSelection())") == "Paragraph 1."


async def test_an_answer_goes_on_after_the_connection_was_lost(site: Site) -> None:
    story = "\n\n".join(f"Paragraph {n}." for n in range(60))
    await site.node(Script(text=story, tokens_per_second=150))
    ada = await site.visitor()
    await ada.sign_up()
    await ada.page.route("**/api/turns/*/events", lambda route: route.abort())
    ada.expected_texts.append("net::ERR_")
    # the first connection is cut by the server's side of the test: the page's own fetch ends early
    await ada.page.evaluate(
        """() => {
          const { fetch } = window;
          window.fetch = async (url, options) => {
            const response = await fetch(url, options);
            if (!String(url).endsWith("/api/chat")) return response;
            const reader = response.body.getReader();
            let reads = 0;
            const body = new ReadableStream({
              async pull(controller) {
                const { value, done } = await reader.read();
                reads += 1;
                if (done || reads > 12) { await reader.cancel(); controller.error(new TypeError("cut")); }
                else controller.enqueue(value);
              },
            });
            return new Response(body, { status: response.status, headers: response.headers });
          };
        }"""
    )
    await ada.ask("Why?")
    await expect(ada.card).to_contain_text("The connection is lost")
    await ada.page.unroute("**/api/turns/*/events")
    text = await ada.answered()
    assert text.split("\n\n") == story.split("\n\n")


async def test_the_question_stands_at_the_top_until_the_answer_is_followed(site: Site) -> None:
    story = "\n\n".join(f"Paragraph {n}." for n in range(80))
    await site.node(Script(text=story, tokens_per_second=250))
    ada = await site.visitor(reduced_motion="reduce")
    await ada.sign_up()
    await ada.ask("One?")
    await ada.answered()
    await ada.ask("Two?")
    await expect(ada.answer).to_contain_text("Paragraph 30.")
    question = ada.page.locator(".question").last
    await expect(question).to_be_in_viewport(ratio=1)
    await expect(ada.answer.locator("p").last).not_to_be_in_viewport()
    follow = ada.page.locator("#follow")
    await follow.click()
    await expect(follow).to_have_attribute("aria-pressed", "true")
    await expect(question).not_to_be_in_viewport()
    await ada.answered()
    await expect(ada.foot).to_be_in_viewport()


@pytest.mark.parametrize("is_secure", [True, False])
async def test_code_and_answer_are_copied_also_over_plain_http(site: Site, is_secure: bool) -> None:
    code = "```python\ndef f():\n\n    return 1\n```"
    await site.node(Script(text=f"Look:\n\n{code}", tokens_per_second=500))
    ada = await site.visitor()
    await ada.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await ada.sign_up()
    if not is_secure:
        await ada.page.evaluate(
            "Object.defineProperty(window, 'isSecureContext', { value: false })"
        )
    await ada.ask("Code?")
    await ada.answered()
    read = "navigator.clipboard.readText()"
    for button, text in (
        (ada.answer.get_by_role("button", name="Copy code"), "def f():\n\n    return 1"),
        (ada.foot.get_by_role("button", name="Copy answer"), f"Look:\n\n{code}"),
    ):
        await button.click()
        await expect(button).to_have_attribute("title", "Copied")
        assert await ada.page.evaluate(read) == text
