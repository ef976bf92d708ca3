"""What embedding pages get: the script, the check, the framed page with its policy."""

from __future__ import annotations

import json

import pytest

from app.embed.page import best_language, languages
from tests.app.accounts.site import code
from tests.app.embed.site import SITE, make_site
from tests.app.serving import Web

FOREIGN = "https://evil.example"


async def test_the_check_passes_on_the_keys_sites(web: Web):
    site = await make_site(web, SITE, "http://localhost:3000")
    client = await web.client()
    for origin in (SITE, "http://localhost:3000"):
        answer = await client.get(
            "/api/embed/check", params={"key": site["secret"]}, headers={"Origin": origin}
        )
        assert answer.status_code == 204
        assert answer.headers["access-control-allow-origin"] == "*"


async def test_the_check_names_a_foreign_origin_and_every_page_may_read_it(web: Web):
    site = await make_site(web)
    client = await web.client()
    for origin in (FOREIGN, "null", "http://shop.example"):
        answer = await client.get(
            "/api/embed/check", params={"key": site["secret"]}, headers={"Origin": origin}
        )
        assert code(answer) == (403, "forbidden")
        assert answer.json()["error"]["message"] == f"origin {origin} is not allowed for this key"
        assert answer.headers.get_list("access-control-allow-origin") == ["*"]
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("key", ["", "x", "pk-baton-" + "x" * 43, "x" * 200])
async def test_the_check_names_an_unknown_key(web: Web, key: str):
    client = await web.client(Origin=SITE)
    answer = await client.get("/api/embed/check", params={"key": key})
    assert code(answer) == (401, "invalid_api_key")
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_a_secret_key_in_a_page_is_called_out(web: Web):
    site = await make_site(web)
    secret = await site["member"].key()
    client = await web.client(Origin=SITE)
    for path in ("/api/embed/check", "/embed"):
        answer = await client.get(path, params={"key": secret})
        assert code(answer) == (403, "forbidden")
        assert "Revoke it now" in answer.json()["error"]["message"]
        assert secret not in answer.text


async def test_a_revoked_key_opens_nothing(web: Web):
    site = await make_site(web)
    await site["member"].client.delete(f"/api/keys/{site['id']}")
    client = await web.client(Origin=SITE)
    for path in ("/api/embed/check", "/embed"):
        answer = await client.get(path, params={"key": site["secret"]})
        assert code(answer) == (401, "invalid_api_key")


async def test_the_page_may_be_framed_by_the_keys_sites_only(web: Web):
    site = await make_site(web, SITE, "http://localhost:3000")
    client = await web.client()
    answer = await client.get("/embed", params={"key": site["secret"]})
    assert answer.status_code == 200
    policy: dict[str, str] = {}
    for part in answer.headers["content-security-policy"].split(";"):
        name, _, value = part.strip().partition(" ")
        policy[name] = value
    assert set(policy["frame-ancestors"].split()) == {SITE, "http://localhost:3000"}
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "x-frame-options" not in answer.headers
    # a host page with COEP may frame it
    assert answer.headers["cross-origin-embedder-policy"] == "require-corp"
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"


async def test_the_page_sets_no_cookie_and_looks_at_none(web: Web):
    site = await make_site(web)
    client = site["member"].client
    signed_in = await client.get("/embed", params={"key": site["secret"]})
    stranger = await (await web.client()).get("/embed", params={"key": site["secret"]})
    assert signed_in.text == stranger.text
    assert "set-cookie" not in signed_in.headers
    assert signed_in.headers["cache-control"] == "no-store"


async def test_the_page_speaks_the_language_asked_for(web: Web):
    site = await make_site(web)
    client = await web.client()
    for asked, spoken in (("zh-CN", "zh"), ("ZH", "zh"), ("en-GB", "en"), ("xx", "en"), ("", "en")):
        answer = await client.get("/embed", params={"key": site["secret"], "lang": asked})
        assert answer.headers["content-language"] == spoken
        assert f'<html lang="{spoken}">' in answer.text


@pytest.mark.parametrize(
    "payload", ['"><script>alert(1)</script>', "' onload='alert(1)", "../../x"]
)
async def test_nothing_from_the_address_reaches_the_page_as_markup(web: Web, payload: str):
    site = await make_site(web)
    client = await web.client()
    answer = await client.get("/embed", params={"key": site["secret"], "lang": payload})
    assert payload not in answer.text
    answer = await client.get("/embed", params={"key": payload})
    assert answer.headers["content-type"] == "application/json"


async def test_the_page_promises_no_return_after_closing(web: Web):
    site = await make_site(web)
    answer = await (await web.client()).get("/embed", params={"key": site["secret"], "lang": "en"})
    block = answer.text.partition('id="texts">')[2].partition("</script>")[0]
    texts = json.loads(block)
    assert texts["queue.kept"] == texts["embed.kept"]


async def test_the_script_can_be_loaded_by_isolated_pages(web: Web):
    answer = await (await web.client()).get("/embed.js")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    assert "document.cookie" not in answer.text
    assert "localStorage" not in answer.text


def test_both_languages_have_all_texts_of_the_widget():
    for texts in languages().values():
        assert {key for key in texts if key.startswith("embed.")} == {
            key for key in languages()["en"] if key.startswith("embed.")
        }
    assert best_language("fr") == "en"
