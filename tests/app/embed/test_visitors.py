"""What a visitor may do, and what not; a whole chat through the frame's API."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import select

from app.accounts.models import Turn
from app.embed.secret import load_secret
from app.embed.tokens import LASTS_SECONDS, Tokens
from app.node.kinds.scripted import Script
from tests.app.accounts.site import code
from tests.app.embed.site import SITE, enter, make_site, mount, question_body
from tests.app.serving import Web, first, names_of, scripted_node, serving, text_of
from tests.waiting import until


async def test_a_visitor_without_cookies_gets_an_answer_with_its_figures(web: Web, valkey_url: str):
    site = await make_site(web)
    async with scripted_node(valkey_url):
        visitor = await enter(web, site["secret"])
        heard = await visitor.answer("Why?")
        assert heard[-1].name == "done"
        assert {"state", "delta", "done"} <= set(names_of(heard))
        assert text_of(heard)
        assert heard[-1].data["tps"]["average"] > 0
        assert not visitor.client.cookies


async def test_the_same_id_again_resumes_instead_of_asking_twice(web: Web, valkey_url: str):
    site = await make_site(web)
    async with scripted_node(valkey_url):
        visitor = await enter(web, site["secret"])
        body = question_body("Why?")
        once = await visitor.answer(**body)
        again = await visitor.answer(**body)
        assert text_of(again) == text_of(once)
    async with web.parts.database.session() as session:
        assert len((await session.scalars(select(Turn))).all()) == 1


async def test_a_turn_can_be_watched_again_from_a_position(web: Web, valkey_url: str):
    site = await make_site(web)
    async with scripted_node(valkey_url):
        visitor = await enter(web, site["secret"])
        body = question_body("Why?")
        whole = await visitor.answer(**body)
        deltas = [one for one in whole if one.name == "delta"]
        path = f"/api/embed/turns/{body['id']}/events"
        answer = await visitor.client.get(path, headers={"Last-Event-ID": str(deltas[-1].id)})
        assert answer.status_code == 200
        assert "event: delta" not in answer.text
        assert "event: done" in answer.text


async def test_questions_and_answers_of_visitors_are_not_kept(web: Web, valkey_url: str):
    site = await make_site(web)
    async with scripted_node(valkey_url):
        visitor = await enter(web, site["secret"])
        await visitor.answer("a very private question")

        async def ended() -> Turn | None:
            async with web.parts.database.session() as session:
                return await session.scalar(select(Turn).where(Turn.status == "done"))

        turn = await until(ended, what="the turn's end in SQL")
    assert turn is not None
    assert turn.source == "embed"
    assert turn.seat.startswith("v:")
    assert turn.question == turn.answer == turn.reasoning == ""


async def test_waiting_visitors_hear_their_place_and_may_leave(web: Web, valkey_url: str):
    site = await make_site(web)
    async with scripted_node(valkey_url, Script(stall_at=5)):
        one, two = await enter(web, site["secret"]), await enter(web, site["secret"])
        async with one.asking() as ahead:
            await first(ahead, "state", phase="answering")
            body = question_body("me too")
            async with two.asking(**body) as behind:
                state = await first(behind, "state", phase="waiting")
                assert state.data["rank"] == 1
                answer = await two.client.post(f"/api/embed/turns/{body['id']}/stop")
                assert answer.status_code == 204
                last = [heard async for heard in behind][-1]
                assert last.name in ("done", "failed")


async def test_each_session_is_a_new_visitor_and_renewal_keeps_it(web: Web):
    site = await make_site(web)
    one, other = await enter(web, site["secret"]), await enter(web, site["secret"])
    reader = await _tokens(web)
    first_claims = reader.read(one.token, time.time())
    assert first_claims != reader.read(other.token, time.time())
    answer = await one.client.post("/api/embed/session", json={"key": site["secret"]})
    assert reader.read(answer.json()["token"], time.time()) == first_claims
    assert answer.json()["expires_seconds"] == LASTS_SECONDS
    assert answer.headers["cache-control"] == "no-store"


async def test_a_token_of_one_site_is_not_renewed_by_another(web: Web):
    one, other = await make_site(web), await make_site(web, "https://b.example", name="Adam")
    visitor = await enter(web, one["secret"])
    answer = await visitor.client.post("/api/embed/session", json={"key": other["secret"]})
    claims = (await _tokens(web)).read(answer.json()["token"], time.time())
    assert claims.key_id == other["id"]
    assert claims.visitor != (await _tokens(web)).read(visitor.token, time.time()).visitor


@pytest.mark.parametrize("origin", ["https://evil.example", "null", None])
async def test_sessions_begin_on_our_own_page_or_the_keys_sites(web: Web, origin: str | None):
    site = await make_site(web)
    for sent, expected in ((origin, 403), (SITE, 200), (web.url, 200)):
        client = await web.client(**({"Origin": sent} if sent else {}))
        answer = await client.post("/api/embed/session", json={"key": site["secret"]})
        assert answer.status_code == expected
        if expected == 403 and sent:
            assert f"origin {sent} is not allowed" in answer.json()["error"]["message"]


async def test_a_session_needs_a_live_publishable_key(web: Web):
    site = await make_site(web)
    secret = await site["member"].key()
    client = await web.client(Origin=web.url)
    for key, expected in ((secret, (403, "forbidden")), ("x", (401, "invalid_api_key"))):
        answer = await client.post("/api/embed/session", json={"key": key})
        assert code(answer) == expected


@pytest.mark.parametrize("method_and_path", [
    ("GET", "/api/me"), ("GET", "/api/keys"), ("POST", "/api/keys"), ("GET", "/api/conversations"),
    ("GET", "/v1/models"), ("GET", "/api/line"),
])  # fmt: skip
async def test_a_visitors_token_opens_nothing_else(web: Web, method_and_path: tuple[str, str]):
    site = await make_site(web)
    visitor = await enter(web, site["secret"])
    method, path = method_and_path
    body = {"name": "mine"} if method == "POST" else None
    answer = await visitor.client.request(method, path, json=body)
    assert answer.status_code == 401


async def test_keys_and_cookies_do_not_open_the_visitors_api(web: Web):
    site = await make_site(web)
    member = site["member"]
    for token in (site["secret"], await member.key()):
        client = await web.client(Authorization=f"Bearer {token}", Origin=SITE)
        answer = await client.post("/api/embed/chat", json=question_body("Why?"))
        assert code(answer) == (401, "visitor_expired")
    answer = await member.client.post("/api/embed/chat", json=question_body("Why?"))
    assert code(answer) == (401, "visitor_expired")


async def test_a_token_that_is_over_opens_nothing_until_renewed(web: Web):
    site = await make_site(web)
    visitor = await enter(web, site["secret"])
    claims = (await _tokens(web)).read(visitor.token, time.time())
    over = (await _tokens(web)).make(claims, time.time() - LASTS_SECONDS - 1)
    visitor.client.headers["Authorization"] = f"Bearer {over}"
    assert code(await visitor.ask()) == (401, "visitor_expired")
    answer = await visitor.client.post("/api/embed/session", json={"key": site["secret"]})
    assert (await _tokens(web)).read(answer.json()["token"], time.time()) == claims


async def test_revoking_the_key_ends_its_visitors_at_once(web: Web):
    site = await make_site(web)
    visitor = await enter(web, site["secret"])
    await site["member"].client.delete(f"/api/keys/{site['id']}")
    assert code(await visitor.ask()) == (401, "invalid_api_key")


async def test_nobody_watches_or_stops_the_turn_of_another_visitor(web: Web, valkey_url: str):
    site = await make_site(web)
    async with scripted_node(valkey_url):
        one, other = await enter(web, site["secret"]), await enter(web, site["secret"])
        body = question_body("mine")
        await one.answer(**body)
        path = f"/api/embed/turns/{body['id']}"
        assert code(await other.client.get(f"{path}/events")) == (404, "not_found")
        assert code(await other.client.post(f"{path}/stop")) == (404, "not_found")
        assert code(await other.ask(id=body["id"])) == (404, "not_found")


async def test_only_so_many_visitors_of_a_site_are_in_line(web: Web, valkey_url: str):
    site = await make_site(web)
    another = await make_site(web, "https://b.example", name="Adam")
    async with scripted_node(valkey_url, Script(stall_at=5)):
        one, two, three = [await enter(web, site["secret"]) for _ in range(3)]
        async with one.asking() as first_events, two.asking() as second_events:
            await first(first_events, "state", phase="answering")
            await first(second_events, "state", phase="waiting")
            refused = await three.ask()
            assert code(refused) == (429, "site_full")
            assert int(refused.headers["retry-after"]) > 0
            # another question of one who is in, and visitors of other sites, are not held back
            guest = await enter(web, another["secret"])
            async with guest.asking() as third_events:
                await first(third_events, "state", phase="waiting")


async def test_further_keys_bring_an_account_no_further_places(web: Web, valkey_url: str):
    site = await make_site(web)
    body = {"name": "second shop", "kind": "publishable", "origins": [SITE]}
    keys = [site["secret"]]
    for _ in range(2):
        keys.append((await site["member"].client.post("/api/keys", json=body)).json()["secret"])
    async with scripted_node(valkey_url, Script(stall_at=5)):
        one, two, three = [await enter(web, key) for key in keys]
        async with one.asking() as first_events, two.asking() as second_events:
            await first(first_events, "state", phase="answering")
            await first(second_events, "state", phase="waiting")
            assert code(await three.ask()) == (429, "site_full")
            script = await web.client(Authorization=f"Bearer {keys[2]}", Origin=SITE)
            asked = {"model": "scripted", "messages": [{"role": "user", "content": "Why?"}]}
            answer = await script.post("/v1/chat/completions", json=asked)
            assert code(answer) == (429, "site_full")


async def test_a_visitor_of_one_replica_is_known_to_one_on_another_machine(
    web: Web, valkey_url: str, tmp_path: Path
):
    site = await make_site(web)
    visitor = await enter(web, site["secret"])
    database = web.parts.settings.database()
    async with serving(valkey_url, tmp_path / "elsewhere", database_url=database) as other:
        client = await other.client(Authorization=f"Bearer {visitor.token}")
        answer = await client.post("/api/embed/chat", json=question_body("Why?"))
        assert code(answer) == (503, "no_node")


async def test_those_no_longer_in_line_make_room(web: Web, valkey_url: str):
    site = await make_site(web)
    async with scripted_node(valkey_url):
        for _ in range(2):
            visitor = await enter(web, site["secret"])
            await visitor.answer()
        (key,) = await web.parts.store.command("KEYS", "baton:{v:*")
        for seat in await web.parts.store.command("ZRANGE", key, 0, -1):
            # they came in longer ago than a question needs to reach the line
            await web.parts.store.command("ZINCRBY", key, -60_000, seat)
        third = await enter(web, site["secret"])
        assert (await third.answer())[-1].name == "done"
        assert await web.parts.store.command("ZCARD", key) == 1


@pytest.mark.parametrize("messages", [
    [],
    [{"role": "assistant", "content": "x"}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}],
    [{"role": "system", "content": "x"}],
    [{"role": "user", "content": ""}],
    [{"role": "user", "content": "   "}],
    [{"role": "user", "content": "x" * 20_001}],
    [{"role": "user", "content": ["x"]}],
    [{"role": "user", "content": "x", "name": "y"}],
    [{"role": "user", "content": "x"}] * 501,
])  # fmt: skip
async def test_messages_that_are_no_conversation_are_refused(
    web: Web, messages: list[dict[str, object]]
):
    site = await make_site(web)
    visitor = await enter(web, site["secret"])
    assert code(await visitor.ask(messages=messages)) == (400, "invalid_request")


async def test_new_sessions_of_one_address_are_limited(valkey_url: str, tmp_path: Path):
    async with serving(valkey_url, tmp_path, requests_per_minute=2) as web:
        mount(web)
        site = await make_site(web)
        client = await web.client(Origin=web.url)
        answers = [
            await client.post("/api/embed/session", json={"key": site["secret"]}) for _ in range(3)
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 429]


async def test_sites_may_call_the_visitors_api_across_origins(web: Web):
    site = await make_site(web)
    visitor = await enter(web, site["secret"])
    answer = await visitor.client.post(
        "/api/embed/chat", json=question_body("Why?"), headers={"Origin": SITE}
    )
    assert code(answer) == (503, "no_node")
    assert answer.headers["access-control-allow-origin"] == SITE


async def _tokens(web: Web) -> Tokens:
    return Tokens(await load_secret(web.parts.database))


async def test_a_visitor_who_looks_elsewhere_is_called_too(web: Web, valkey_url: str):
    site = await make_site(web)
    other = await make_site(web, name="Ben")
    one, two, three = [await enter(web, at["secret"]) for at in (site, site, other)]
    ids = [question_body("?")["id"] for _ in range(3)]
    async with (
        scripted_node(valkey_url, Script(stall_at=5)),
        one.asking(id=ids[0]) as holder,
        two.asking(id=ids[1]) as second,
    ):
        await first(holder, "delta")
        await first(second, "state", rank=1)
        async with three.asking(id=ids[2]) as third:
            await first(third, "state", rank=2)
            for path, body in (
                ("line/presence", {"hidden": True}),
                (f"turns/{ids[0]}/stop", None),
            ):
                who = two if body else one
                assert (await who.client.post(f"/api/embed/{path}", json=body)).status_code == 204
            await first(second, "state", phase="claim")
            await first(third, "delta")
            await two.client.post("/api/embed/line/presence", json={"hidden": False})
            await three.client.post(f"/api/embed/turns/{ids[2]}/stop")
            await first(second, "delta")
