"""What web pages of other sites may read of the API."""

from __future__ import annotations

import httpx
import pytest

from tests.app.accounts.site import Site, code, make_key

SITE, FOREIGN = "https://shop.example", "https://evil.example"


def preflight(origin: str | None, names: str = "authorization, content-type") -> dict[str, str]:
    headers = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": names,
    }
    return headers | ({"Origin": origin} if origin else {})


def allowed(answer: httpx.Response) -> str | None:
    assert "access-control-allow-credentials" not in answer.headers
    return answer.headers.get("access-control-allow-origin")


async def test_a_preflight_is_granted_to_origins_that_a_live_key_names(baton: Site):
    await make_key(await baton.member(), SITE)
    client = await baton.browser(origin=None)
    for path in ("/v1/chat/completions", "/api/embed/chat"):
        answer = await client.options(path, headers=preflight(SITE))
        assert answer.status_code == 204
        assert allowed(answer) == SITE
        assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize("origin", [FOREIGN, "null", "https://shop.example.evil", None])
async def test_a_preflight_from_elsewhere_is_refused(baton: Site, origin: str | None):
    await make_key(await baton.member(), SITE)
    client = await baton.browser(origin=None)
    answer = await client.options("/v1/work", headers=preflight(origin))
    assert code(answer) == (403, "forbidden")
    assert allowed(answer) is None
    assert answer.headers["vary"] == "Origin"
    if origin:
        assert origin in answer.json()["error"]["message"]


async def test_a_revoked_keys_origin_is_granted_nothing(baton: Site):
    member, client = await baton.member(), await baton.browser(origin=None)
    key = await make_key(member, SITE)
    await member.delete(f"/api/keys/{key['id']}")
    assert code(await client.options("/v1/work", headers=preflight(SITE))) == (403, "forbidden")


async def test_headers_of_client_libraries_are_granted_and_nonsense_is_not(baton: Site):
    await make_key(await baton.member(), SITE)
    client = await baton.browser(origin=None)
    names = "authorization,x-stainless-lang,x-stainless-retry-count"
    answer = await client.options("/v1/work", headers=preflight(SITE, names))
    assert answer.headers["access-control-allow-headers"] == names
    answer = await client.options("/v1/work", headers=preflight(SITE, "a; b=<c>"))
    assert "access-control-allow-headers" not in answer.headers


async def test_answers_and_errors_alike_can_be_read_by_the_site(baton: Site):
    key = await make_key(await baton.member(), SITE)
    client = await baton.browser(origin=SITE)
    good = {"Authorization": f"Bearer {key['secret']}"}
    answers = [
        await client.get("/v1/who", headers=good),
        await client.get("/v1/who"),
        await client.get("/v1/who", headers={"Authorization": "Bearer x"}),
        await client.get("/v1/no-such-route"),
        await client.post("/v1/who", headers=good),
        await client.get("/v1/broken"),
    ]
    assert [answer.status_code for answer in answers] == [200, 401, 401, 404, 405, 500]
    for answer in answers:
        assert allowed(answer) == SITE
        assert "Origin" in answer.headers["vary"]
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


async def test_other_sites_read_nothing(baton: Site):
    key = await make_key(await baton.member(), SITE)
    client = await baton.browser(origin=FOREIGN)
    answer = await client.get("/v1/who", headers={"Authorization": f"Bearer {key['secret']}"})
    assert code(answer) == (403, "forbidden")
    assert allowed(answer) is None
    assert "Origin" in answer.headers["vary"]


async def test_pages_of_other_sites_read_nothing_of_the_cookie_routes(baton: Site):
    member = await baton.member()
    await make_key(member, SITE)
    answer = await member.get("/api/me", headers={"Origin": SITE})
    assert answer.status_code == 200
    assert allowed(answer) is None
    answer = await member.options("/api/keys", headers=preflight(SITE))
    assert allowed(answer) is None


async def test_plain_clients_are_not_disturbed(baton: Site):
    key = await make_key(await baton.member())
    client = await baton.browser(origin=None)
    answer = await client.get("/v1/who", headers={"Authorization": f"Bearer {key['secret']}"})
    assert answer.status_code == 200
    assert allowed(answer) is None
