"""Signing in and out: cookies, uniform refusals, rotation, limits."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

import httpx
import pytest
from argon2 import PasswordHasher
from sqlalchemy import select, update

from app.accounts.models import SignIn, User, now
from app.accounts.routes import NAME_TRIES_FACTOR
from app.accounts.secrets import Passwords, digest
from app.accounts.sign_ins import SignIns, WrongPasswordError
from tests.app.accounts.site import PASSWORD, QUICK, Site, code, site

RIGHT = {"name": "Eva", "password": PASSWORD}


def cookie_of(answer: httpx.Response) -> str:
    (header,) = answer.headers.get_list("set-cookie")
    return header


async def test_signing_in_works_in_any_spelling_of_the_name(baton: Site):
    await baton.member("Eva")
    client = await baton.browser()
    answer = await client.post("/api/sign-in", json={"name": " EVA", "password": PASSWORD})
    assert answer.json() == {"name": "Eva", "admin": False}
    assert (await client.get("/api/me")).status_code == 200


async def test_an_unknown_name_and_a_wrong_password_get_one_answer(baton: Site):
    await baton.member("Eva")
    client = await baton.browser()
    tries = [
        {"name": "Eva", "password": "wrong horse"},
        {"name": "Nobody", "password": PASSWORD},
        {"name": "Eva", "password": "short"},
        {"name": "", "password": ""},
        {"name": "x" * 1000, "password": "x" * 1000},
        {"name": "Eva\0", "password": PASSWORD},
        {"name": "\x1b[2JEva", "password": PASSWORD},
    ]
    answers = [await client.post("/api/sign-in", json=body) for body in tries]
    assert {code(answer) for answer in answers} == {(401, "wrong_password")}
    assert len({answer.text for answer in answers}) == 1
    assert all("set-cookie" not in answer.headers for answer in answers)


async def test_an_unknown_name_costs_as_much_as_a_known_one(baton: Site):
    """Both are checked by argon2 once, with the same parameters."""
    checks: list[str] = []

    class Counting(PasswordHasher):
        def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:
            checks.append(str(hash).rpartition("$")[0].rpartition("$")[0])
            return super().verify(hash, password)

    await baton.member("Eva")
    sign_ins = SignIns(
        baton.parts.database, Passwords(Counting(time_cost=1, memory_cost=64, parallelism=1)), 1
    )
    for name in ("Eva", "Nobody"):
        for password in ("wrong horse", "short"):
            with pytest.raises(WrongPasswordError):
                await sign_ins.check(name, password)
    assert len(checks) == 4
    assert len(set(checks)) == 1


async def test_the_cookie_is_hidden_from_scripts_and_other_sites(baton: Site):
    await baton.member("Eva")
    client = await baton.browser()
    header = cookie_of(await client.post("/api/sign-in", json=RIGHT))
    parts = {part.strip().lower() for part in header.split(";")[1:]}
    assert header.startswith("baton_session=")
    assert {"httponly", "samesite=lax", "path=/", f"max-age={30 * 86400}"} <= parts
    assert "secure" not in parts


async def test_on_https_the_cookie_is_secure_and_bound_to_the_host(valkey_url: str, tmp_path: Path):
    async with site(valkey_url, tmp_path, public_url="https://baton.test") as baton:
        client = await baton.browser(base="https://baton.test", origin="https://baton.test")
        header = cookie_of(await client.post("/api/sign-up", json=RIGHT))
        assert header.startswith("__Host-baton_session=")
        assert "Secure" in header
        assert "domain" not in header.lower()
        assert (await client.get("/api/me")).status_code == 200
        out = cookie_of(await client.post("/api/sign-out"))
        assert out.startswith('__Host-baton_session="";')
        assert "Secure" in out


async def test_the_database_holds_no_token(baton: Site):
    client = await baton.member("Eva")
    token = client.cookies["baton_session"]
    async with baton.parts.database.session() as session:
        (row,) = (await session.scalars(select(SignIn))).all()
    assert row.token_hash == digest(token)
    assert token not in vars(row).values()


async def test_signing_in_anew_ends_the_session_before(baton: Site):
    client = await baton.member("Eva")
    old = client.cookies["baton_session"]
    await client.post("/api/sign-in", json=RIGHT)
    assert client.cookies["baton_session"] != old
    thief = await baton.browser()
    thief.cookies.set("baton_session", old)
    assert code(await thief.get("/api/me")) == (401, "not_signed_in")
    assert (await client.get("/api/me")).status_code == 200


async def test_signing_out_ends_the_session_on_the_server(baton: Site):
    client = await baton.member("Eva")
    token = client.cookies["baton_session"]
    assert (await client.post("/api/sign-out")).status_code == 204
    assert "baton_session" not in client.cookies
    client.cookies.set("baton_session", token)
    assert code(await client.get("/api/me")) == (401, "not_signed_in")


async def test_signing_out_leaves_other_devices_signed_in(baton: Site):
    here = await baton.member("Eva")
    there = await baton.browser()
    await there.post("/api/sign-in", json=RIGHT)
    await here.post("/api/sign-out")
    assert (await there.get("/api/me")).status_code == 200


async def test_a_session_ends_after_its_days(baton: Site):
    client = await baton.member("Eva")
    async with baton.parts.database.session() as session:
        await session.execute(update(SignIn).values(expires_at=now() - timedelta(seconds=1)))
    assert code(await client.get("/api/me")) == (401, "not_signed_in")
    await client.post("/api/sign-in", json=RIGHT)
    async with baton.parts.database.session() as session:
        assert len((await session.scalars(select(SignIn))).all()) == 1


@pytest.mark.parametrize("token", ["", "x", "x" * 43, "x" * 5000])
async def test_an_invented_cookie_is_nobodys(baton: Site, token: str):
    client = await baton.browser()
    client.cookies.set("baton_session", token)
    assert code(await client.get("/api/me")) == (401, "not_signed_in")


async def test_an_old_hash_is_renewed_at_the_next_sign_in(baton: Site):
    await baton.member("Eva")
    weak = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    async with baton.parts.database.session() as session:
        await session.execute(update(User).values(password_hash=weak))
    client = await baton.browser()
    assert (await client.post("/api/sign-in", json=RIGHT)).status_code == 200
    async with baton.parts.database.session() as session:
        renewed = await session.scalar(select(User.password_hash))
    assert renewed != weak
    assert not QUICK.check_needs_rehash(str(renewed))
    assert (await client.post("/api/sign-in", json=RIGHT)).status_code == 200


async def test_tries_of_one_address_are_limited_right_or_wrong(valkey_url: str, tmp_path: Path):
    async with site(valkey_url, tmp_path, sign_in_tries_per_minute=3) as baton:
        await baton.member("Eva", address="198.51.100.7")
        client = await baton.browser(address="192.0.2.1")
        for n in range(3):
            body = {"name": f"user {n}", "password": PASSWORD}
            assert code(await client.post("/api/sign-in", json=body)) == (401, "wrong_password")
        refused = await client.post("/api/sign-in", json=RIGHT)
        assert code(refused) == (429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        elsewhere = await baton.browser(address="192.0.2.2")
        assert (await elsewhere.post("/api/sign-in", json=RIGHT)).status_code == 200


async def test_failures_for_one_name_are_limited_from_all_addresses(
    valkey_url: str, tmp_path: Path
):
    async with site(valkey_url, tmp_path, sign_in_tries_per_minute=1) as baton:
        for n in range(NAME_TRIES_FACTOR):
            client = await baton.browser(address=f"192.0.2.{n}")
            body = {"name": ("eva", "EVA", " Eva")[n % 3], "password": "wrong horse"}
            assert code(await client.post("/api/sign-in", json=body)) == (401, "wrong_password")
        client = await baton.browser(address="192.0.2.99")
        assert code(await client.post("/api/sign-in", json=RIGHT)) == (429, "rate_limited")


async def test_a_stranger_cannot_lock_an_owner_out_by_guessing(valkey_url: str, tmp_path: Path):
    async with site(valkey_url, tmp_path, sign_in_tries_per_minute=4) as baton:
        await baton.member("Eva", address="198.51.100.7")
        stranger = await baton.browser(address="192.0.2.1")
        wrong = RIGHT | {"password": "wrong horse"}
        answers = [(await stranger.post("/api/sign-in", json=wrong)).status_code for _ in range(4)]
        assert answers == [401, 401, 429, 429]
        owner = await baton.browser(address="192.0.2.2")
        assert (await owner.post("/api/sign-in", json=RIGHT)).status_code == 200


@pytest.mark.parametrize("has_store", [True, False])
async def test_right_passwords_use_no_budget_of_the_name_up(
    valkey_url: str, tmp_path: Path, has_store: bool
):
    url = valkey_url if has_store else "unix:///nowhere/at/all"
    async with site(url, tmp_path, sign_in_tries_per_minute=4) as baton:
        await baton.member("Eva", address="198.51.100.7")
        client = await baton.browser()
        answers = [(await client.post("/api/sign-in", json=RIGHT)).status_code for _ in range(5)]
        # only all tries of the address are bounded
        assert answers == [200, 200, 200, 200, 429]


async def test_over_https_the_cookie_is_secure_without_a_public_address(baton: Site):
    await baton.member("Eva")
    client = await baton.browser(base="https://baton.test", origin="https://baton.test")
    header = cookie_of(await client.post("/api/sign-in", json=RIGHT))
    assert header.startswith("__Host-baton_session=")
    assert "Secure" in header
    assert (await client.get("/api/me")).status_code == 200


async def test_one_ipv6_network_is_one_address(valkey_url: str, tmp_path: Path):
    async with site(valkey_url, tmp_path, sign_in_tries_per_minute=1) as baton:
        first = await baton.browser(address="2001:db8:1:2::1")
        neighbour = await baton.browser(address="2001:db8:1:2:ffff::9")
        stranger = await baton.browser(address="2001:db8:1:3::1")
        body = [{"name": f"user {n}", "password": PASSWORD} for n in range(3)]
        assert (await first.post("/api/sign-in", json=body[0])).status_code == 401
        assert (await neighbour.post("/api/sign-in", json=body[1])).status_code == 429
        assert (await stranger.post("/api/sign-in", json=body[2])).status_code == 401


async def test_without_the_store_sign_in_works_and_stays_limited(tmp_path: Path):
    async with site("unix:///nowhere/at/all", tmp_path, sign_in_tries_per_minute=2) as baton:
        await baton.member("Eva", address="198.51.100.7")
        client = await baton.browser()
        assert (await client.post("/api/sign-in", json=RIGHT)).status_code == 200
        assert (await client.post("/api/sign-in", json=RIGHT)).status_code == 200
        assert code(await client.post("/api/sign-in", json=RIGHT)) == (429, "rate_limited")
