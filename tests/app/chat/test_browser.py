"""The page's routes, through real ports, with a scripted node."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from app.errors import StoreUnavailableError
from app.line.line import Line
from app.node.kinds.scripted import Script
from tests.app.serving import Member, Web, first, names_of, scripted_node, serving, text_of
from tests.waiting import until


async def test_a_question_is_answered_and_events_come_in_order(web: Web, valkey_url: str):
    eva = await web.member()
    # slow enough that the line's first round comes before the first token
    script = Script(text="Because it is so.", tokens_per_second=30, prefill_ms_per_token=20)
    async with scripted_node(valkey_url, script):
        events = await eva.answer("Why?")
    names = names_of(events)
    assert text_of(events) == "Because it is so."
    assert names[0] == "state"
    assert names[-1] == "done"
    assert names.count("done") + names.count("failed") == 1
    assert "rate" not in names[: names.index("delta")]
    assert "rate" in names
    phases = [one.data["phase"] for one in events if one.name == "state"]
    assert phases[-1] == "answering"
    done = events[-1].data
    assert done["finish_reason"] == "stop"
    assert done["usage"]["completion_tokens"] == sum(
        one.data["n"] for one in events if one.name == "delta"
    )
    assert done["tps"]["peak"] >= done["tps"]["average"]


async def test_a_turn_that_is_open_too_often_is_refused_with_a_sentence(
    web: Web, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.line.board.MOST_READERS", 1)
    eva = await web.member()
    async with scripted_node(valkey_url, Script(stall_at=5)):
        generation = uuid4().hex
        async with eva.ask(generation=generation) as hers:
            await first(hers, "delta")
            refused = await eva.client.get(f"/api/turns/{generation}/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                429,
                "too_many_readers",
            )


async def test_waiting_shows_the_rank_of_each_user(web: Web, valkey_url: str):
    eva, ben, cai = [await web.member(name) for name in ("Eva", "Ben", "Cai")]
    async with scripted_node(valkey_url, Script(stall_at=5)):
        generation = uuid4().hex
        async with eva.ask(generation=generation) as hers:
            await first(hers, "delta")
            async with ben.ask() as his, cai.ask() as third:
                state = (await first(his, "state", rank=1)).data
                assert (state["phase"], state["node"]) == ("waiting", None)
                await first(third, "state", rank=2, waiting=2)
                stopped = await eva.client.post(f"/api/turns/{generation}/stop")
                assert stopped.status_code == 204
                done = (await first(hers, "done")).data
                assert (done["finish_reason"], done["stop_reason"]) == ("cancelled", "stopped")
                left = await eva.client.post("/api/line/leave")
                assert left.status_code == 204
                await first(his, "delta")
                await first(third, "state", rank=1, waiting=1)


async def test_the_same_id_again_resumes_and_asks_nothing_twice(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(text="Because.")):
        once = await eva.answer("Why?", generation=generation)
        # what a page does that never saw the answer's headers
        again = await eva.answer("Why?", generation=generation)
    assert again[-1] == once[-1]
    assert text_of(again) == "Because."
    listed = (await eva.client.get("/api/conversations")).json()["conversations"]
    assert len(listed) == 1
    shown = await conversation(eva, listed[0]["id"])
    assert [turn["generation"] for turn in shown["turns"]] == [generation]


async def test_a_question_whose_way_into_the_line_broke_goes_on_when_repeated(
    web: Web, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    eva = await web.member()
    generation = uuid4().hex
    asked = {"id": generation, "question": "Why?"}

    async def unreachable(*_: object, **__: object) -> None:
        raise StoreUnavailableError

    async with scripted_node(valkey_url, Script(text="Because.")):
        with monkeypatch.context() as broken:
            broken.setattr(Line, "submit", unreachable)
            refused = await eva.client.post("/api/chat", json=asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert text_of(await eva.answer("Why?", generation=generation)) == "Because."


async def test_a_refused_question_leaves_nothing_behind(web: Web, valkey_url: str):
    eva = await web.member()
    refused = await eva.client.post("/api/chat", json={"id": uuid4().hex, "question": "Why?"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_node")
    async with scripted_node(valkey_url, Script(stall_at=3)), AsyncExitStack() as stack:
        for _ in range(web.parts.settings.max_questions_per_seat):
            events = await stack.enter_async_context(eva.ask())
            await first(events, "state")
        too_many = await eva.client.post("/api/chat", json={"id": uuid4().hex, "question": "And?"})
        assert too_many.status_code == 429
        assert too_many.json()["error"]["code"] == "too_many_questions"
        await eva.client.post("/api/line/leave")
    listed = (await eva.client.get("/api/conversations")).json()["conversations"]
    assert len(listed) == web.parts.settings.max_questions_per_seat


async def test_a_conversation_goes_on_with_what_was_said(web: Web, valkey_url: str):
    eva = await web.member()
    system = {"settings": {"system": "Be brief.", "seed": 5, "temperature": 0}}
    async with scripted_node(valkey_url, Script(text="Because.")):
        one = await eva.answer("Why is the sky blue? " * 9, **system)
        (listed,) = (await eva.client.get("/api/conversations")).json()["conversations"]
        # at once: the first answer may not have reached SQL yet
        two = await eva.answer("And at night?", conversation_id=listed["id"], **system)
        await until(lambda: ended(eva, listed["id"]))
    # the second prompt begins with the first one and its answer, which the lease has kept
    usage = [events[-1].data["usage"] for events in (one, two)]
    assert usage[1]["cached_tokens"] >= usage[0]["prompt_tokens"]
    shown = await conversation(eva, listed["id"])
    assert [(turn["question"], turn["answer"]) for turn in shown["turns"]] == [
        ("Why is the sky blue? " * 9, "Because."),
        ("And at night?", "Because."),
    ]
    first_turn = shown["turns"][0]
    assert first_turn["status"] == "done"
    assert first_turn["error"] is None
    assert first_turn["figures"]["usage"] == usage[0]
    assert set(first_turn["figures"]) == {"usage", "timing", "tps", "accepted"}
    assert shown["title"] == listed["title"]
    assert listed["title"].startswith("Why is the sky blue? Why")
    assert len(listed["title"]) <= 61


async def test_a_stopped_answer_keeps_its_text_and_counts_as_said(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(stall_at=20)):
        async with eva.ask("Why?", generation=generation) as events:
            await first(events, "rate", tokens=20)
            await eva.client.post(f"/api/turns/{generation}/stop")
            await first(events, "done")
        (listed,) = (await eva.client.get("/api/conversations")).json()["conversations"]
        await until(lambda: ended(eva, listed["id"]))
        (turn,) = (await conversation(eva, listed["id"]))["turns"]
        assert turn["answer"].startswith("Answer ")
        assert (turn["status"], turn["stop_reason"]) == ("done", "stopped")
        async with eva.ask("Go on", conversation_id=listed["id"]) as events:
            state = await first(events, "state", phase="reading")
            assert state.data["prompt"]["total"] > 30
        await eva.client.post("/api/line/leave")


async def test_a_failed_answer_keeps_its_text_and_says_why(web: Web, valkey_url: str):
    eva = await web.member()
    async with scripted_node(valkey_url, Script(fail_at=20)):
        events = await eva.answer()
        (listed,) = (await eva.client.get("/api/conversations")).json()["conversations"]
        await until(lambda: ended(eva, listed["id"]))
    assert events[-1].name == "failed"
    assert "fails at token 20" in events[-1].data["message"]
    (turn,) = (await conversation(eva, listed["id"]))["turns"]
    assert (turn["status"], turn["answer"]) == ("failed", text_of(events))
    assert turn["error"] == {key: events[-1].data[key] for key in ("code", "message")}


async def test_conversations_are_renamed_and_deleted_by_their_owner_only(web: Web, valkey_url: str):
    eva, ben = await web.member("Eva"), await web.member("Ben")
    generation = uuid4().hex
    async with scripted_node(valkey_url, Script(stall_at=5)):
        async with eva.ask(generation=generation) as events:
            await first(events, "delta")
            (listed,) = (await eva.client.get("/api/conversations")).json()["conversations"]
            path = f"/api/conversations/{listed['id']}"
            for answer in (
                await ben.client.get(path),
                await ben.client.patch(path, json={"title": "Mine"}),
                await ben.client.request("DELETE", path),
                await ben.client.post(
                    "/api/chat",
                    json={"id": uuid4().hex, "question": "x", "conversation_id": listed["id"]},
                ),
            ):
                assert answer.status_code == 404, answer.text
            renamed = await eva.client.patch(path, json={"title": "  The\nsky "})
            assert renamed.status_code == 204
            assert (await eva.client.get(path)).json()["title"] == "The sky"
            assert (await eva.client.delete(path)).status_code == 204
            # the answer that nobody can see any more is stopped
            await first(events, "done", stop_reason="stopped")
        assert (await eva.client.get(path)).status_code == 404
        assert (await eva.client.get("/api/conversations")).json() == {"conversations": []}


async def test_the_line_tells_what_the_seat_has(web: Web, valkey_url: str):
    eva = await web.member()
    generation = uuid4().hex
    nothing = (await eva.client.get("/api/line")).json()
    assert (nothing["seat"]["state"], nothing["pools"]) == ("none", [])
    async with scripted_node(valkey_url, Script(stall_at=5)), eva.ask(generation=generation) as own:
        await first(own, "delta")
        told = (await eva.client.get("/api/line")).json()
        assert told["seat"]["state"] == "busy"
        assert told["seat"]["generation"] == generation
        assert told["seat"]["node"] == {"name": "node-1", "hardware": "scripted"}
        assert told["pools"] == [{"name": "scripted", "nodes": 1, "idle_nodes": 0, "waiting": 0}]
        await eva.client.post(f"/api/turns/{generation}/stop")
        await first(own, "done")

        async def holds() -> bool:
            return (await eva.client.get("/api/line")).json()["seat"]["state"] == "holding"

        await until(holds)


WRONG: list[tuple[dict[str, object], str]] = [
    ({"id": "short"}, "id"),
    ({"id": "Z" * 32}, "id"),
    ({"question": ""}, "question"),
    ({"question": " \n "}, "question"),
    ({"question": 5}, "question"),
    ({"question": "x" * 200_001}, "question"),
    ({"question": "\ud800"}, "question"),
    ({"conversation_id": "../1"}, "conversation_id"),
    ({"pool": "x" * 300}, "pool"),
    ({"more": 1}, "more"),
    ({"settings": {"temperature": 9}}, "settings.temperature"),
    ({"settings": {"temperature": float("nan")}}, "settings.temperature"),
    ({"settings": {"top_p": -1}}, "settings.top_p"),
    ({"settings": {"top_k": 0.5}}, "settings.top_k"),
    ({"settings": {"max_tokens": 0}}, "settings.max_tokens"),
    ({"settings": {"system": "x" * 50_001}}, "settings.system"),
]


async def test_wrong_questions_are_refused_with_the_fields_name(web: Web):
    eva = await web.member()
    for fields, param in WRONG:
        sent = json.dumps({"id": uuid4().hex, "question": "Why?"} | fields)
        answer = await eva.client.post(
            "/api/chat", content=sent, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 400, (fields, answer.text)
        assert answer.json()["error"]["param"] == param
    for position in ("x", "1", "-", "1-", f"{2**70}-0"):
        answer = await eva.client.get(
            f"/api/turns/{uuid4().hex}/events", params={"after": position}
        )
        assert answer.status_code == 400, position
    for path in ("/api/conversations/..%2fme", "/api/conversations/" + "g" * 32):
        assert (await eva.client.get(path)).status_code in (400, 404)


async def test_an_unknown_model_and_a_too_long_question_are_refused(web: Web, valkey_url: str):
    eva = await web.member()
    async with scripted_node(valkey_url, Script(context_tokens=40)):
        unknown = {"id": uuid4().hex, "question": "Why?", "pool": "gpt-9"}
        answer = await eva.client.post("/api/chat", json=unknown)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        long = {"id": uuid4().hex, "question": "word " * 5000}
        answer = await eva.client.post("/api/chat", json=long)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        # the prompt's tokens, and the most that are read
        numbers = [int(word) for word in error["message"].split() if word.isdigit()]
        assert numbers[0] > 5000
        assert numbers[1] == 39


async def test_strangers_get_nothing(web: Web):
    stranger = await web.client(Origin=web.url)
    some = uuid4().hex
    for method, path in (
        ("GET", "/api/conversations"), ("GET", f"/api/conversations/{some}"),
        ("DELETE", f"/api/conversations/{some}"), ("GET", f"/api/turns/{some}/events"),
        ("POST", f"/api/turns/{some}/stop"), ("GET", "/api/line"), ("POST", "/api/line/leave"),
    ):  # fmt: skip
        answer = await stranger.request(method, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "not_signed_in"), path
    asked = {"id": some, "question": "Why?"}
    assert (await stranger.post("/api/chat", json=asked)).status_code == 401


async def test_the_stream_starts_before_anything_happens(web: Web, valkey_url: str):
    eva, ben = await web.member("Eva"), await web.member("Ben")
    async with scripted_node(valkey_url, Script(stall_at=3)), eva.ask() as events:
        await first(events, "delta")
        sent = {"id": uuid4().hex, "question": "Why?"}
        async with ben.client.stream("POST", "/api/chat", json=sent) as response:
            assert response.headers["x-generation-id"] == sent["id"]
            assert response.headers["x-accel-buffering"] == "no"
            assert response.headers["cache-control"] == "no-store"
            assert "connection" not in response.headers
            listed = (await ben.client.get("/api/conversations")).json()["conversations"]
            assert response.headers["x-conversation-id"] == listed[0]["id"]
            chunk = await anext(response.aiter_bytes())
            assert chunk.startswith(b":\n\n")
            assert b"\r" not in chunk


async def conversation(member: Member, conversation_id: str) -> dict[str, Any]:
    answer = await member.client.get(f"/api/conversations/{conversation_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ended(member: Member, conversation_id: str) -> bool:
    """Whether all its turns have their end in SQL."""
    shown = await conversation(member, conversation_id)
    return all(turn["status"] != "open" for turn in shown["turns"])


async def test_whoever_looks_elsewhere_is_called_and_may_take_the_turn(web: Web, valkey_url: str):
    eva, ben, cai = [await web.member(name) for name in ("Eva", "Ben", "Cai")]
    async with scripted_node(valkey_url, Script(stall_at=5)), eva.ask() as hers:
        await first(hers, "delta")
        async with ben.ask() as his, cai.ask() as third:
            await first(his, "state", rank=1)
            await first(third, "state", rank=2)
            hidden = await ben.client.post("/api/line/presence", json={"hidden": True})
            assert hidden.status_code == 204
            await eva.client.post("/api/line/leave")
            state = (await first(his, "state", phase="claim")).data
            assert state["rank"] == 1
            assert 0 < state["claim_left_seconds"] <= 30
            await first(third, "delta")
            await ben.client.post("/api/line/presence", json={"hidden": False})
            await first(his, "state", phase="waiting", rank=1)
            await cai.client.post("/api/line/leave")
            await first(his, "delta")


async def test_a_holder_extends_the_time_while_nobody_waits(web: Web, valkey_url: str):
    eva, ben = [await web.member(name) for name in ("Eva", "Ben")]
    async with scripted_node(valkey_url, Script(stall_at=5)), eva.ask() as hers:
        await first(hers, "delta")
        assert (await ben.client.post("/api/line/extend")).json()["error"]["code"] == "no_lease"
        answer = await eva.client.post("/api/line/extend")
        assert answer.status_code == 200
        seat = answer.json()["seat"]
        assert (seat["state"], seat["may_extend"], seat["slice_left_seconds"]) == (
            "busy",
            True,
            None,
        )
        assert seat["certain_seconds"] > 295
        async with ben.ask() as his:
            await first(his, "state", rank=1)
            refused = await eva.client.post("/api/line/extend")
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "others_wait")
            assert "waiting" in refused.json()["error"]["message"]


async def test_one_address_fills_only_its_share_of_the_line(tmp_path: Path, valkey_url: str):
    async with (
        serving(valkey_url, tmp_path, max_waiting_per_address=1) as web,
        scripted_node(valkey_url, Script(stall_at=5)),
    ):
        eva, ben, cai = [await web.member(name) for name in ("Eva", "Ben", "Cai")]
        # what a proxy on this machine, which is trusted, says of its callers
        ben.client.headers["X-Forwarded-For"] = "198.51.100.9, 2001:db8:0:7::1"
        cai.client.headers["X-Forwarded-For"] = "2001:db8:0:7:ffff::2"
        async with eva.ask() as hers, ben.ask() as his:
            await first(hers, "delta")
            await first(his, "state", rank=1)
            question = {"id": uuid4().hex, "question": "Me too?"}
            refused = await cai.client.post("/api/chat", json=question)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "address_full")
            assert int(refused.headers["Retry-After"]) > 0
            # an entry that the caller made up is not what the proxy saw
            cai.client.headers["X-Forwarded-For"] = "2001:db8:0:7::1, 198.51.100.9"
            async with cai.ask() as third:
                await first(third, "state", rank=2)


async def test_a_race_asks_an_idle_node_beside_the_conversation(web: Web, valkey_url: str):
    eva, ben = [await web.member(name) for name in ("Eva", "Ben")]
    generation, raced = uuid4().hex, uuid4().hex
    async with scripted_node(valkey_url, Script(stall_at=5)), eva.ask(generation=generation) as one:
        await first(one, "delta")
        no_node = await eva.client.post(
            "/api/chat", json={"id": raced, "question": "Why?", "race": True}
        )
        assert (no_node.status_code, no_node.json()["error"]["code"]) == (429, "race_busy")
        async with (
            scripted_node(valkey_url, Script(stall_at=5), name="node-2"),
            eva.ask(generation=raced, race=True) as two,
        ):
            await first(two, "delta")
            async with ben.ask() as his:
                done = (await first(two, "done")).data
                assert (done["finish_reason"], done["stop_reason"]) == ("cancelled", "wanted")
                await first(his, "delta")
        listed = (await eva.client.get("/api/conversations")).json()["conversations"]
        assert len(listed) == 1
