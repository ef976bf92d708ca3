"""Requests that a foreign page could send with a visitor's cookie."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI, WebSocket
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from app.accounts.csrf import Csrf
from tests.app.accounts.site import ORIGIN, Site, code, site

OWN, FOREIGN = ORIGIN, "https://evil.example"


@pytest.mark.parametrize(
    ("origin", "fetch_site", "allowed"),
    [
        (OWN, None, True),
        (OWN, "same-origin", True),
        (None, "same-origin", True),
        (None, "none", True),
        # a proxy that changes Host: the browser knows better
        ("https://public.example", "same-origin", True),
        (FOREIGN, None, False),
        (FOREIGN, "cross-site", False),
        ("https://baton.test", None, False),
        ("http://sub.baton.test", "same-site", False),
        ("http://baton.test:8080", None, False),
        ("null", None, False),
        ("null", "cross-site", False),
        (None, "cross-site", False),
        (None, "same-site", False),
        (None, None, False),
        ("", None, False),
    ],
)
async def test_unsafe_requests_come_from_our_own_page(
    baton: Site, origin: str | None, fetch_site: str | None, allowed: bool
):
    member = await baton.member()
    del member.headers["Origin"]
    headers = {"Origin": origin, "Sec-Fetch-Site": fetch_site}
    sent = {name: value for name, value in headers.items() if value is not None}
    answer = await member.post("/api/keys", json={"name": "a"}, headers=sent)
    if allowed:
        assert answer.status_code == 201
    else:
        assert code(answer) == (403, "forbidden")
        assert (await member.get("/api/keys")).json() == {"keys": []}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "post", "PROPFIND"])
async def test_every_unsafe_method_is_checked(baton: Site, method: str):
    client = await baton.browser(origin=FOREIGN)
    assert code(await client.request(method, "/api/keys/x")) == (403, "forbidden")


async def test_reading_needs_no_origin(baton: Site):
    client = await baton.browser(origin=FOREIGN)
    assert code(await client.get("/api/me")) == (401, "not_signed_in")


@pytest.mark.parametrize(
    ("content_type", "allowed"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("multipart/form-data; boundary=x", False),
        ("text/plain; application/json", False),
        ("application/jsonx", False),
        (None, False),
    ],
)
async def test_bodies_are_json_only(baton: Site, content_type: str | None, allowed: bool):
    member = await baton.member()
    headers = {"Content-Type": content_type} if content_type else {}
    answer = await member.post("/api/keys", content=b'{"name": "a"}', headers=headers)
    if allowed:
        assert answer.status_code == 201
    else:
        assert code(answer) == (415, "not_json")


async def test_a_body_of_unknown_length_is_a_body(baton: Site):
    member = await baton.member()

    async def pieces():
        yield b'{"name": "a"}'

    assert code(await member.post("/api/keys", content=pieces())) == (415, "not_json")


async def test_requests_without_a_body_need_no_content_type(baton: Site):
    member = await baton.member()
    assert (await member.post("/api/sign-out")).status_code == 204


async def test_only_the_public_address_counts_as_our_own(valkey_url: str, tmp_path: Path):
    async with site(valkey_url, tmp_path, public_url="https://chat.example/") as baton:
        behind_proxy = await baton.browser(
            base="http://10.0.0.5:8000", origin="https://chat.example"
        )
        body = {"name": "Eva", "password": "correct horse"}
        assert (await behind_proxy.post("/api/sign-up", json=body)).status_code == 201
        direct = await baton.browser(base="http://10.0.0.5:8000", origin="http://10.0.0.5:8000")
        assert code(await direct.post("/api/sign-in", json=body)) == (403, "forbidden")
        # a foreign domain that was made to resolve to us is "same-origin" with itself
        rebound = await baton.browser(base="http://evil.example", origin="http://evil.example")
        rebound.headers["Sec-Fetch-Site"] = "same-origin"
        assert code(await rebound.post("/api/sign-in", json=body)) == (403, "forbidden")


async def test_bearer_routes_are_exempt(baton: Site):
    client = await baton.browser(origin=FOREIGN)
    assert code(await client.post("/v1/work", content=b"x")) == (401, "not_signed_in")
    assert code(await client.post("/v1x")) == (403, "forbidden")
    assert code(await client.post("/api/embedded")) == (403, "forbidden")
    assert code(await client.post("/api/embed/nothing")) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "origin", "opens"),
    [
        ("/api/ws", "http://testserver", True),
        ("/api/ws", FOREIGN, False),
        ("/api/ws", "null", False),
        ("/v1/ws", FOREIGN, True),
    ],
)
def test_a_websocket_with_a_foreign_origin_is_not_opened(path: str, origin: str, opens: bool):
    app = FastAPI()

    @app.websocket("/api/ws")
    @app.websocket("/v1/ws")
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    app.add_middleware(Csrf)
    with TestClient(app) as client:
        if opens:
            with client.websocket_connect(path, headers={"Origin": origin}) as socket:
                assert socket.receive_text() == "hello"
        else:
            with (
                pytest.raises(WebSocketDisconnect) as closed,
                client.websocket_connect(path, headers={"Origin": origin}),
            ):
                pass
            assert closed.value.code == 1008
