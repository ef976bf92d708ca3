"""API keys: shown once, bound to origins, limited in number, revoked at once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from app.accounts.api_keys import MOST_KEYS
from app.accounts.models import ApiKey, now
from app.accounts.secrets import digest
from tests.app.accounts.site import Site, code, make_key

SITE = "https://shop.example"


def bearer(secret: str, origin: str | None = None) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {secret}"}
    return headers | ({"Origin": origin} if origin else {})


async def test_a_key_is_shown_once_and_stored_as_a_digest(baton: Site):
    client = await baton.member()
    made = await make_key(client)
    assert made["secret"].startswith("sk-baton-")
    assert made["secret"].startswith(made["prefix"])
    assert len(made["prefix"]) < len(made["secret"]) - 30
    listed = await client.get("/api/keys")
    assert made["secret"] not in listed.text
    assert listed.json()["keys"] == [{k: v for k, v in made.items() if k != "secret"}]
    async with baton.parts.database.session() as session:
        (row,) = (await session.scalars(select(ApiKey))).all()
    assert row.secret_hash == digest(made["secret"])
    assert made["secret"] not in map(str, vars(row).values())


async def test_a_secret_key_speaks_for_its_account(baton: Site):
    member, outside = await baton.member("Eva"), await baton.browser(origin=None)
    one, two = await make_key(member), await make_key(member)
    seats = set[str]()
    for key in (one, two):
        answer = await outside.get("/v1/who", headers=bearer(key["secret"]))
        assert answer.json()["kind"] == "key"
        assert answer.json()["tier"] == "api"
        assert answer.json()["name"] == "Eva"
        seats.add(answer.json()["seat"])
    assert len(seats) == 1


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, (401, "not_signed_in")),
        ("", (401, "not_signed_in")),
        ("Bearer", (401, "not_signed_in")),
        ("Basic abc", (401, "not_signed_in")),
        ("Bearer sk-baton-wrong", (401, "invalid_api_key")),
        ("Bearer sk-baton-" + "x" * 43, (401, "invalid_api_key")),
        ("Bearer pk-baton-" + "x" * 43, (401, "invalid_api_key")),
        ("Bearer sk-baton-" + "x" * 5000, (401, "invalid_api_key")),
        ("Bearer ' OR 1=1 --", (401, "invalid_api_key")),
    ],
)
async def test_the_api_wants_a_known_key(
    baton: Site, header: str | None, expected: tuple[int, str]
):
    client = await baton.browser(origin=None)
    headers = {} if header is None else {"Authorization": header}
    assert code(await client.get("/v1/who", headers=headers)) == expected


async def test_a_cookie_opens_no_api_and_a_key_no_page(baton: Site):
    member = await baton.member()
    key = await make_key(member)
    assert code(await member.get("/v1/who")) == (401, "not_signed_in")
    outside = await baton.browser(origin=None)
    answer = await outside.get("/api/keys", headers=bearer(key["secret"]))
    assert code(answer) == (401, "not_signed_in")


async def test_the_scheme_may_be_spelt_in_any_case(baton: Site):
    key = await make_key(await baton.member())
    client = await baton.browser(origin=None)
    headers = {"Authorization": f"bEARER  {key['secret']} "}
    assert (await client.get("/v1/who", headers=headers)).status_code == 200


async def test_a_revoked_key_is_dead_at_once(baton: Site):
    member = await baton.member()
    key = await make_key(member)
    assert (await member.delete(f"/api/keys/{key['id']}")).status_code == 204
    client = await baton.browser(origin=None)
    answer = await client.get("/v1/who", headers=bearer(key["secret"]))
    assert code(answer) == (401, "invalid_api_key")
    assert (await member.get("/api/keys")).json() == {"keys": []}
    assert code(await member.delete(f"/api/keys/{key['id']}")) == (404, "not_found")


async def test_nobody_sees_or_revokes_the_keys_of_others(baton: Site):
    key = await make_key(await baton.member("Eva"))
    other = await baton.member("Mallory")
    assert (await other.get("/api/keys")).json() == {"keys": []}
    assert code(await other.delete(f"/api/keys/{key['id']}")) == (404, "not_found")


async def test_a_publishable_key_works_only_from_its_sites(baton: Site):
    key = await make_key(await baton.member(), SITE, "http://localhost:3000")
    client = await baton.browser(origin=None)
    good = await client.get("/v1/who", headers=bearer(key["secret"], SITE))
    assert good.json()["origin"] == SITE
    for origin in (
        "https://evil.example",
        "http://shop.example",
        f"{SITE}:8443",
        "null",
        f"{SITE}.evil",
    ):
        answer = await client.get("/v1/who", headers=bearer(key["secret"], origin))
        assert code(answer) == (403, "forbidden")
        assert answer.json()["error"]["message"] == f"origin {origin} is not allowed for this key"
    answer = await client.get("/v1/who", headers=bearer(key["secret"]))
    assert code(answer) == (403, "forbidden")


async def test_a_publishable_key_does_not_sit_on_its_owners_seat(baton: Site):
    member, client = await baton.member(), await baton.browser(origin=None)
    secret, public = await make_key(member), await make_key(member, SITE)
    one = await client.get("/v1/who", headers=bearer(secret["secret"]))
    other = await client.get("/v1/who", headers=bearer(public["secret"], SITE))
    assert one.json()["seat"] != other.json()["seat"]


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("https://Shop.Example", "https://shop.example"),
        ("https://shop.example/", "https://shop.example"),
        ("https://shop.example:443", "https://shop.example"),
        ("http://shop.example:80", "http://shop.example"),
        ("http://shop.example:443", "http://shop.example:443"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("HTTPS://[2001:DB8::0001]", "https://[2001:db8::1]"),
        ("http://127.0.0.1", "http://127.0.0.1"),
    ],
)
async def test_origins_are_kept_as_browsers_spell_them(baton: Site, typed: str, kept: str):
    key = await make_key(await baton.member(), typed)
    assert key["origins"] == [kept]


# the last two would be bound to strasse.example and to a name without its joiner
@pytest.mark.parametrize(
    "host",
    ["bücher.example", "stra\u00dfe.example", "\u0646\u0627\u0645\u0647\u200c\u0627\u06cc.example"],
)
async def test_a_host_beyond_ascii_is_to_be_given_in_its_xn_form(baton: Site, host: str):
    member = await baton.member()
    body = {"name": "shop", "kind": "publishable", "origins": [f"https://{host}"]}
    answer = await member.post("/api/keys", json=body)
    assert code(answer) == (400, "invalid_request")
    assert "xn--" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "origin",
    [
        "*", "https://*.example", "", "null", "shop.example", "//shop.example", "ftp://a.example",
        "https://", "https://a.example/path", "https://a.example?x", "https://a.example#x",
        "https://eva@a.example", "https://eva:x@a.example", "https://a.example:0",
        "https://a.example:99999", "https://a.example:x", "https://a b.example", " https://a.example",
        "https://a.example; script-src *", "https://a.example'", "https://a.example,https://b.example",
        "https://a.example\nx", "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd",
        "https://" + "a" * 300 + ".example", "https://a.example//", "https://[::zz]", "https://a..b",
    ],
)  # fmt: skip
async def test_what_is_no_origin_is_refused(baton: Site, origin: str):
    member = await baton.member()
    body = {"name": "shop", "kind": "publishable", "origins": [origin]}
    answer = await member.post("/api/keys", json=body)
    assert code(answer) == (400, "invalid_request")
    assert answer.json()["error"]["param"] == "origins"


async def test_publishable_keys_need_origins_and_secret_ones_have_none(baton: Site):
    member = await baton.member()
    for body in (
        {"name": "a", "kind": "publishable", "origins": []},
        {"name": "a", "kind": "secret", "origins": [SITE]},
        {
            "name": "a",
            "kind": "publishable",
            "origins": [f"https://{n}.example" for n in range(21)],
        },
    ):
        assert code(await member.post("/api/keys", json=body)) == (400, "invalid_request")
    assert (await member.post("/api/keys", json={"name": "a", "kind": "root"})).status_code == 400


async def test_an_account_has_at_most_fifty_live_keys(baton: Site):
    member = await baton.member()
    made = [await make_key(member) for _ in range(MOST_KEYS)]
    answer = await member.post("/api/keys", json={"name": "one more"})
    assert code(answer) == (409, "too_many_keys")
    await member.delete(f"/api/keys/{made[0]['id']}")
    await make_key(member)
    assert len((await member.get("/api/keys")).json()["keys"]) == MOST_KEYS


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>"]
)
async def test_markup_in_a_keys_name_stays_text(baton: Site, name: str):
    member = await baton.member()
    answer = await member.post("/api/keys", json={"name": name})
    assert answer.json()["name"] == name
    assert (await member.get("/api/keys")).json()["keys"][0]["name"] == name


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "a\u202eb"])
async def test_keys_need_a_name_that_can_be_shown(baton: Site, name: str):
    member = await baton.member()
    assert code(await member.post("/api/keys", json={"name": name})) == (400, "invalid_request")


async def test_last_use_is_noted_at_most_once_a_minute(baton: Site):
    member, client = await baton.member(), await baton.browser(origin=None)
    key = await make_key(member)

    async def used() -> str:
        await client.get("/v1/who", headers=bearer(key["secret"]))
        return (await member.get("/api/keys")).json()["keys"][0]["last_used_at"]

    assert key["last_used_at"] is None
    first = await used()
    assert first is not None
    assert await used() == first
    async with baton.parts.database.session() as session:
        await session.execute(update(ApiKey).values(last_used_at=now() - timedelta(minutes=2)))
    assert await used() > first


async def test_answers_with_secrets_are_not_kept_by_caches(baton: Site):
    member = await baton.member()
    answer = await member.post("/api/keys", json={"name": "a"})
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("key_id", ["x", "0" * 31, "0" * 33, "%00" * 32, "G" * 32])
async def test_a_key_id_that_is_none_is_refused_before_the_database(baton: Site, key_id: str):
    member = await baton.member()
    assert code(await member.delete(f"/api/keys/{key_id}")) == (400, "invalid_request")
