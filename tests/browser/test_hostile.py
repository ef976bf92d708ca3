"""Nothing that a person or a model writes becomes part of the page; the policy allows no exception."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from app.node.kinds.scripted import Script
from tests.browser.site import Site

pytestmark = pytest.mark.browser

PAYLOADS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "<svg/onload=alert(3)>",
    "[link](javascript:alert(4))",
    '![image](x" onerror="alert(5))',
    "<iframe srcdoc='<script>alert(6)</script>'></iframe>",
    "<a href='data:text/html,<script>alert(7)</script>'>x</a>",
    "<form action=//evil.example><button>go</button></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(8)>",
    "```<img src=x onerror=alert(9)>\n</code></pre><img src=x onerror=alert(10)>\n```",
    "<style>*{display:none}</style><base href=//evil.example>",
    "\\u003cscript\\u003e</script><script>alert(11)</script>",
]
HOSTILE = "\n\n".join(PAYLOADS)
FORBIDDEN = ", ".join(
    f".turn {tag}" for tag in ("script", "img", "iframe", "form", "style", "base", "math", "object")
)


async def test_hostile_questions_answers_and_titles_stay_text(site: Site) -> None:
    await site.node(Script(text=HOSTILE, tokens_per_second=400))
    ada = await site.visitor()
    await ada.sign_up('<img src=x onerror="alert(1)">')
    await ada.ask(HOSTILE)
    await ada.answered()
    for _ in range(2):
        await expect(ada.answer).to_contain_text("<script>alert(1)</script>")
        await expect(ada.page.locator(".question")).to_contain_text("<img src=x onerror=alert(2)>")
        await expect(ada.page.locator(FORBIDDEN)).to_have_count(0)
        links = await ada.page.locator(".turn a").evaluate_all("all => all.map((a) => a.href)")
        assert all(link.startswith(("http:", "https:", "mailto:")) for link in links), links
        await ada.page.reload()
        await expect(ada.foot).to_be_visible()
    title = ada.page.locator("#conversations .title")
    await expect(title).to_contain_text("<script>alert(1)</script>")
    await ada.page.locator("#conversations li").hover()
    await ada.page.get_by_role("button", name="Rename").click()
    await ada.page.locator("#conversations input").fill("<img src=x onerror=alert(12)>")
    await ada.page.locator("#conversations input").press("Enter")
    await expect(title).to_have_text("<img src=x onerror=alert(12)>")


async def test_the_second_wall_holds_without_the_first(site: Site) -> None:
    ada = await site.visitor()
    await ada.sign_up()
    # the page's policy sees the handlers while DOMPurify takes them out
    ada.expected_texts += ["inline event handler", "inline style", "base URI"]
    left = await ada.page.evaluate(
        """async (payloads) => {
          const { sanitised } = await import("/static/js/markdown.js");
          const bad = "script, iframe, base, style, form, img, svg, [onerror], [onload], [style]";
          return payloads.map((html) => sanitised(html).querySelectorAll(bad).length);
        }""",
        PAYLOADS,
    )
    assert left == [0] * len(PAYLOADS)


async def test_the_policy_refuses_inline_scripts_and_raw_html(site: Site) -> None:
    ada = await site.visitor()
    ada.expected_texts.append("This document requires 'Trusted")
    await ada.go()
    refused = await ada.page.evaluate(
        """() => {
          const script = document.createElement("script");
          try { script.text = "window.ran = 1"; document.head.append(script); } catch (fault) {}
          try { document.body.insertAdjacentHTML("beforeend", "<b id=raw></b>"); } catch (fault) {}
          return window.ran === undefined && document.getElementById("raw") === null;
        }"""
    )
    assert refused


async def test_the_first_start_token_leaves_the_address_and_is_sent_once_in_the_body(
    site: Site,
) -> None:
    ada = await site.visitor(locale="zh-CN")
    sent: list[str] = []
    ada.page.on("request", lambda request: sent.append(request.url + (request.post_data or "")))
    await ada.go("/sign-in#admin=abc-123_x")
    await expect(ada.page.locator("[data-admin-note]")).to_be_visible()
    assert "admin" not in ada.page.url
    ada.expected_statuses |= {400, 401, 403}
    await ada.page.locator("[name=name]").fill("Ada")
    await ada.page.locator("[name=password]").fill("a long enough password")
    await ada.page.locator("[data-submit]").click()
    await expect(ada.page.locator("[data-error]")).to_be_visible()
    with_token = [request for request in sent if "abc-123_x" in request]
    assert len(with_token) == 1
    assert '"admin_token":"abc-123_x"' in with_token[0]


async def test_a_broken_first_start_link_leaves_the_form_usable(site: Site) -> None:
    ada = await site.visitor()
    await ada.go("/sign-in#admin=%E0%A4%A")
    await expect(ada.page.locator("[data-admin-note]")).to_be_visible()
    await expect(ada.page.locator("[data-submit]")).to_be_enabled()
    assert "admin" not in ada.page.url


async def test_without_its_script_the_sign_in_form_sends_nothing(site: Site) -> None:
    ada = await site.visitor()
    ada.expected_texts.append("ERR_FAILED")
    await ada.page.route("**/static/js/**", lambda route: route.abort())
    await ada.go("/sign-in")
    asked: list[str] = []
    ada.page.on("request", lambda request: asked.append(request.url))
    await ada.page.locator("[name=name]").fill("Ada")
    await ada.page.locator("[name=password]").fill("a long enough password")
    await ada.page.locator("[name=password]").press("Enter")
    await expect(ada.page.locator("[data-submit]")).to_be_disabled()
    await expect(ada.page.locator("form[data-sign-in]")).to_have_attribute("method", "post")
    assert [url for url in asked if "/static/" not in url] == []
