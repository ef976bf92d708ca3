"""The HTML pages: language, policy, who sees what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import pages
from app.accounts.caller import Caller, maybe_signed_in
from app.settings import Settings

ADA = Caller("user", "u:1", "browser", "1", "Ada <b>", is_admin=False)
ROOT = Caller("user", "u:2", "browser", "2", "Root", is_admin=True)


@pytest.fixture
def app() -> FastAPI:
    made = FastAPI()
    made.state.settings = Settings.model_validate({"reconnect_grace_seconds": 90})
    made.include_router(pages.router)
    made.dependency_overrides[maybe_signed_in] = lambda: None
    return made


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, follow_redirects=False) as opened:
        yield opened


def sign_in(app: FastAPI, caller: Caller) -> None:
    app.dependency_overrides[maybe_signed_in] = lambda: caller


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", "en"),
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("fr,zh;q=0.3,en;q=0.7", "en"),
        ("zh-Hant-TW", "zh"),
        ("fr-FR", "en"),
        ("zh;q=0", "en"),
        ("zh;q=banana,en;q=0.1", "en"),
        (",;=,zh", "zh"),
    ],
)
def test_the_language_is_the_best_that_the_browser_accepts(
    client: TestClient, accepted: str, language: str
) -> None:
    page = client.get("/", headers={"Accept-Language": accepted})
    assert f'<html lang="{language}">' in page.text
    assert page.headers["Content-Language"] == language


def test_the_address_overrides_the_browser_and_unknown_languages_do_not(client: TestClient) -> None:
    assert '<html lang="zh">' in client.get("/?lang=zh").text
    for strange in ("xx", "../en", "en%00", "zh%22%3E"):
        assert '<html lang="en">' in client.get(f"/?lang={strange}").text


def test_strangers_see_what_this_is_and_may_sign_in(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "data-sign-in" in page.text
    assert 'id="composer"' not in page.text


def test_the_signed_in_see_the_chat_and_their_name_is_only_text(
    app: FastAPI, client: TestClient
) -> None:
    sign_in(app, ADA)
    page = client.get("/").text
    assert 'id="composer"' in page
    assert "Ada &lt;b&gt;" in page
    assert "Ada <b>" not in page
    assert 'data-grace="90"' in page
    assert 'href="/admin"' not in page


def test_administrators_see_the_way_to_their_page(app: FastAPI, client: TestClient) -> None:
    sign_in(app, ROOT)
    assert 'href="/admin"' in client.get("/").text


def test_keys_need_a_sign_in_that_leads_back(app: FastAPI, client: TestClient) -> None:
    refused = client.get("/keys")
    assert (refused.status_code, refused.headers["Location"]) == (303, "/sign-in?next=/keys")
    sign_in(app, ADA)
    assert 'id="new-key"' in client.get("/keys").text


@pytest.mark.parametrize("path", ["/", "/sign-in", "/keys"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_pages_are_strict_private_and_complete(
    app: FastAPI, client: TestClient, path: str, language: str
) -> None:
    sign_in(app, ADA)
    page = client.get(path, params={"lang": language})
    policy = page.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert page.headers["Cache-Control"] == "no-store"
    # nothing that the policy would refuse
    assert " style=" not in page.text
    assert " onclick=" not in page.text
    assert "<style" not in page.text
    assert page.text.count('<script type="application/json"') == 1
    assert page.text.count("<script") == page.text.count(' src="/static/js/') + 1
    assert "Undefined" not in page.text


def test_every_language_names_itself() -> None:
    assert {"en", "zh"} <= set(pages.languages())
    assert all(texts["language.short"] for texts in pages.languages().values())
