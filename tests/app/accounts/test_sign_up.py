"""Signing up: names, passwords, the first administrator, closed doors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import func, select

from app.accounts.first_start import first_start_token
from app.accounts.models import FirstStart, User
from app.accounts.people import People
from app.accounts.secrets import Passwords, digest
from tests.app.accounts.site import PASSWORD, QUICK, Site, code, site


async def test_signing_up_signs_in(baton: Site):
    client = await baton.member("Eva")
    assert (await client.get("/api/me")).json() == {"name": "Eva", "admin": False}


async def test_signed_out_visitors_are_nobody(baton: Site):
    client = await baton.browser()
    assert code(await client.get("/api/me")) == (401, "not_signed_in")
    assert code(await client.get("/api/keys")) == (401, "not_signed_in")


@pytest.mark.parametrize("name", ["eva", "EVA", " Eva ", "Ｅｖａ"])
async def test_a_name_that_looks_the_same_is_taken(baton: Site, name: str):
    await baton.member("Eva")
    other = await baton.browser()
    answer = await other.post("/api/sign-up", json={"name": name, "password": PASSWORD})
    assert code(answer) == (409, "name_taken")
    assert code(await other.get("/api/me")) == (401, "not_signed_in")


@pytest.mark.parametrize("name", ["ab", "x" * 40, "王小明", "Straße", "O'Neil & co", "a\u00a0b"])
async def test_ordinary_names_are_welcome(baton: Site, name: str):
    client = await baton.member(name)
    shown = (await client.get("/api/me")).json()["name"]
    assert shown == name.replace("\u00a0", " ")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        " a ",
        "x" * 41,
        "ev\u0000a",
        "ev\u202ea",
        "e\u200bva",
        "\ufdfa\ufdfa\ufdfa",
        "a\u0085\u0007b",
    ],
)
async def test_names_that_cannot_be_shown_are_refused(baton: Site, name: str):
    client = await baton.browser()
    answer = await client.post("/api/sign-up", json={"name": name, "password": PASSWORD})
    assert code(answer) == (400, "invalid_request")
    assert answer.json()["error"]["param"] == "name"


async def test_half_a_character_is_refused_not_a_crash(baton: Site):
    client = await baton.browser()
    body = b'{"name": "e\\ud800a", "password": "correct horse"}'
    answer = await client.post(
        "/api/sign-up", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"><img src=x onerror=1>', "{{7*7}}"]
)
async def test_markup_in_a_name_stays_text_in_json(baton: Site, name: str):
    client = await baton.member(name)
    answer = await client.get("/api/me")
    assert answer.json()["name"] == name
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("password", ["", "1234567", "x" * 201])
async def test_passwords_have_8_to_200_characters(baton: Site, password: str):
    client = await baton.browser()
    answer = await client.post("/api/sign-up", json={"name": "Eva", "password": password})
    assert code(answer) == (400, "invalid_request")
    assert answer.json()["error"]["param"] == "password"


@pytest.mark.parametrize("password", ["x" * 8, "x" * 200, "пароль 密码 🔑"])
async def test_any_long_enough_password_works(baton: Site, password: str):
    client = await baton.browser()
    answer = await client.post("/api/sign-up", json={"name": "Eva", "password": password})
    assert answer.status_code == 201
    again = await baton.browser()
    answer = await again.post("/api/sign-in", json={"name": "Eva", "password": password})
    assert answer.status_code == 200


async def test_unknown_fields_are_refused(baton: Site):
    client = await baton.browser()
    body = {"name": "Eva", "password": PASSWORD, "is_admin": True}
    assert (await client.post("/api/sign-up", json=body)).status_code in (400, 422)


async def test_two_people_at_once_cannot_share_a_name(baton: Site):
    clients = [await baton.browser() for _ in range(4)]
    body = {"name": "Eva", "password": PASSWORD}
    answers = await asyncio.gather(*(c.post("/api/sign-up", json=body) for c in clients))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]


async def test_closed_sign_up_is_forbidden_but_the_first_admin_may_enter(
    valkey_url: str, tmp_path: Path
):
    async with site(valkey_url, tmp_path, sign_up="closed") as baton:
        client = await baton.browser()
        body = {"name": "Eva", "password": PASSWORD}
        assert code(await client.post("/api/sign-up", json=body)) == (403, "forbidden")
        token = await first_start_token(baton.parts.database)
        answer = await client.post("/api/sign-up", json=body | {"admin_token": token})
        assert answer.json() == {"name": "Eva", "admin": True}


async def test_the_first_admin_token_works_once(baton: Site):
    token = await first_start_token(baton.parts.database)
    first, second = await baton.browser(), await baton.browser()
    body = {"name": "Eva", "password": PASSWORD, "admin_token": token}
    assert (await first.post("/api/sign-up", json=body)).json()["admin"] is True
    assert (await first.get("/api/admin-only")).json() == {"name": "Eva"}
    answer = await second.post("/api/sign-up", json=body | {"name": "Mallory"})
    assert code(answer) == (403, "forbidden")
    async with baton.parts.database.session() as session:
        assert await session.scalar(select(func.count()).select_from(User)) == 1


async def test_a_taken_name_does_not_use_the_token_up(baton: Site):
    await baton.member("Eva")
    token = await first_start_token(baton.parts.database)
    client = await baton.browser()
    body = {"name": "eva", "password": PASSWORD, "admin_token": token}
    assert code(await client.post("/api/sign-up", json=body)) == (409, "name_taken")
    answer = await client.post("/api/sign-up", json=body | {"name": "Root"})
    assert answer.json() == {"name": "Root", "admin": True}


async def test_each_start_makes_the_token_before_worthless(baton: Site):
    old = await first_start_token(baton.parts.database)
    await first_start_token(baton.parts.database)
    client = await baton.browser()
    body = {"name": "Eva", "password": PASSWORD, "admin_token": old}
    assert code(await client.post("/api/sign-up", json=body)) == (403, "forbidden")


async def test_there_is_no_token_once_there_is_an_admin_and_only_its_hash_was_stored(baton: Site):
    token = await first_start_token(baton.parts.database)
    assert token is not None
    async with baton.parts.database.session() as session:
        assert await session.scalar(select(FirstStart.token_hash)) == digest(token)
    client = await baton.browser()
    body = {"name": "Eva", "password": PASSWORD, "admin_token": token}
    await client.post("/api/sign-up", json=body)
    assert await first_start_token(baton.parts.database) is None


async def test_users_are_not_admins(baton: Site):
    client = await baton.member()
    assert code(await client.get("/api/admin-only")) == (403, "forbidden")
    assert code(await (await baton.browser()).get("/api/admin-only")) == (401, "not_signed_in")


@pytest.mark.parametrize("way", ["created", "promoted"])
async def test_an_administrator_made_otherwise_ends_the_printed_link(baton: Site, way: str):
    token = await first_start_token(baton.parts.database)
    people = People(baton.parts.database, Passwords(QUICK))
    if way == "created":
        await people.create("Root", PASSWORD, is_admin=True)
    else:
        await people.create("Root", PASSWORD)
        await people.make_admin("root")
    async with baton.parts.database.session() as session:
        assert await session.scalar(select(FirstStart)) is None
    client = await baton.browser()
    body = {"name": "Mallory", "password": PASSWORD, "admin_token": token}
    assert code(await client.post("/api/sign-up", json=body)) == (403, "forbidden")


async def test_a_link_is_refused_where_there_is_an_administrator_whoever_made_it(baton: Site):
    people = People(baton.parts.database, Passwords(QUICK))
    await people.create("Root", PASSWORD, is_admin=True)
    async with baton.parts.database.session() as session:
        session.add(FirstStart(id=1, token_hash=digest("left over")))
    client = await baton.browser()
    body = {"name": "Mallory", "password": PASSWORD, "admin_token": "left over"}
    assert code(await client.post("/api/sign-up", json=body)) == (403, "forbidden")
