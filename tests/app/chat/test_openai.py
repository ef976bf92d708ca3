"""The OpenAI-shaped API, by the official client and by hand, through real ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionMessageParam
from sqlalchemy import select

from app.accounts.caller import user_seat
from app.accounts.models import Turn, User
from app.chat.sql import session_of
from app.node.kinds.scripted import Script
from tests.app.serving import Member, Web, first, scripted_node
from tests.waiting import until

ANSWER = "The answer is forty-two. 答案 🙂 " * 5
ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Why?"}]


@asynccontextmanager
async def official(web: Web, key: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=key, base_url=f"{web.url}/v1", max_retries=0, timeout=20
    ) as client:
        yield client


@pytest.fixture
async def eva(web: Web) -> Member:
    return await web.member()


@pytest.fixture
async def api(web: Web, eva: Member) -> httpx.AsyncClient:
    return await web.client(Authorization=f"Bearer {await eva.key()}")


def body(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": ASKED} | more


async def idle(web: Web) -> bool:
    return any(pool.idle_nodes for pool in await web.parts.line.pools())


async def only_turn(web: Web) -> Turn:
    async def ended() -> Turn | None:
        async with session_of(web.parts.database) as session:
            turns = (await session.scalars(select(Turn))).all()
        return turns[0] if turns and turns[0].status != "open" else None

    found = await until(ended, what="the turn's end in SQL")
    assert found
    return found


async def test_the_official_client_gets_a_whole_answer(web: Web, eva: Member, valkey_url: str):
    async with (
        scripted_node(valkey_url, Script(text=ANSWER)),
        official(web, await eva.key()) as client,
    ):
        answer = await client.chat.completions.create(model="scripted", messages=ASKED)
        assert [model.id async for model in client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("scripted")).id == "scripted"
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    extra = answer.model_extra or {}
    assert set(extra["pd_timing_ms"]) == {"queue", "prefill", "decode", "total"}
    assert extra["tps"]["peak"] >= extra["tps"]["average"] > 0


async def test_the_official_client_streams(web: Web, eva: Member, valkey_url: str):
    async with (
        scripted_node(valkey_url, Script(text=ANSWER)),
        official(web, await eva.key()) as client,
    ):
        stream = await client.chat.completions.create(
            model="scripted", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    *answer, usage = chunks
    assert answer[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in answer[:-1]] == [None] * (len(answer) - 1)
    assert answer[-1].choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens > 10
    assert (usage.model_extra or {})["pd_timing_ms"]["decode"] > 0


async def test_a_stream_is_plain_data_lines_and_every_chunk_has_a_choice(
    api: httpx.AsyncClient, valkey_url: str
):
    async with scripted_node(valkey_url, Script(text=ANSWER)):
        answer = await api.post("/v1/chat/completions", json=body(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-request-id"]
    assert b"\r" not in answer.content
    lines = answer.text.split("\n\n")
    assert lines[0] == ":"
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [line for line in lines[:-2] if line != ":"]
    assert all(line.startswith("data: {") and "\n" not in line for line in chunks)
    assert all(orjson.loads(line[6:])["choices"][0]["index"] == 0 for line in chunks)
    assert "usage" not in orjson.loads(chunks[-1][6:])


async def test_a_waiting_stream_sends_nothing_but_bare_comments(
    web: Web, api: httpx.AsyncClient, valkey_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.chat.sse.PING_SECONDS", 0.05)
    ben = await web.member("Ben")
    async with scripted_node(valkey_url, Script(stall_at=5)), ben.ask() as his:
        await first(his, "delta")
        async with api.stream("POST", "/v1/chat/completions", json=body(stream=True)) as response:
            heard = b""
            async for chunk in response.aiter_bytes():
                heard += chunk
                if len(heard) > 20:
                    break
        assert heard.replace(b":\n\n", b"") == b""
        headers = {"X-Baton-Comments": "off"}
        async with api.stream(
            "POST", "/v1/chat/completions", json=body(stream=True), headers=headers
        ) as response:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.4):
                    await anext(response.aiter_bytes())


@pytest.mark.parametrize("stream", [True, False])
async def test_hanging_up_frees_the_node(
    web: Web, api: httpx.AsyncClient, valkey_url: str, stream: bool
):
    async with scripted_node(valkey_url, Script(stall_at=5)):
        asking = asyncio.create_task(api.post("/v1/chat/completions", json=body(stream=stream)))

        async def busy() -> bool:
            return not await idle(web)

        await until(busy)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: idle(web), within_seconds=2, what="the node is free")
        turn = await only_turn(web)
    assert (turn.source, turn.finish_reason, turn.stop_reason) == ("api", "cancelled", "gone")


async def test_hanging_up_while_waiting_leaves_the_line(
    web: Web, api: httpx.AsyncClient, valkey_url: str
):
    ben = await web.member("Ben")
    async with scripted_node(valkey_url, Script(stall_at=5)), ben.ask() as his:
        await first(his, "delta")
        asking = asyncio.create_task(api.post("/v1/chat/completions", json=body()))

        async def waiting() -> int:
            return (await web.parts.line.pools())[0].waiting

        async def empty() -> bool:
            return await waiting() == 0

        await until(waiting)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(empty, within_seconds=2, what="the line is empty")


async def test_only_figures_of_an_api_answer_are_kept(
    web: Web, api: httpx.AsyncClient, valkey_url: str
):
    async with scripted_node(valkey_url, Script(text=ANSWER)):
        answer = await api.post("/v1/chat/completions", json=body(seed=7, temperature=0.5))
        turn = await only_turn(web)
    assert (turn.question, turn.answer, turn.reasoning) == ("", "", "")
    assert turn.params["seed"] == 7
    assert turn.figures is not None
    usage = answer.json()["usage"]
    assert turn.figures["usage"]["completion_tokens"] == usage["completion_tokens"]


async def test_an_engine_fault_is_an_api_error_with_its_sentence(
    web: Web, eva: Member, valkey_url: str
):
    async with (
        scripted_node(valkey_url, Script(fail_at=10)),
        official(web, await eva.key()) as client,
    ):
        with pytest.raises(openai.APIStatusError, match="fails at token 10"):
            await client.chat.completions.create(model="scripted", messages=ASKED)
        stream = await client.chat.completions.create(model="scripted", messages=ASKED, stream=True)
        texts: list[str] = []

        async def listen() -> None:
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content or "")

        with pytest.raises(openai.APIError, match="fails at token 10"):
            await listen()
    assert "".join(texts)


async def test_a_stream_ends_with_done_also_after_an_error(api: httpx.AsyncClient, valkey_url: str):
    async with scripted_node(valkey_url, Script(fail_at=3)):
        answer = await api.post("/v1/chat/completions", json=body(stream=True))
    *_, error, done, empty = answer.text.split("\n\n")
    assert (done, empty) == ("data: [DONE]", "")
    assert set(orjson.loads(error[6:])["error"]) >= {"message", "type", "param", "code"}


async def test_stop_texts_and_lengths_are_honoured(api: httpx.AsyncClient, valkey_url: str):
    async with scripted_node(valkey_url, Script(text=ANSWER)):
        stopped = await api.post("/v1/chat/completions", json=body(stop=["forty", "zzz"]))
        short = await api.post("/v1/chat/completions", json=body(max_completion_tokens=3))
    choice = stopped.json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("The answer is ", "stop")
    assert short.json()["choices"][0]["finish_reason"] == "length"
    assert short.json()["usage"]["completion_tokens"] == 3


async def test_content_parts_count_like_strings_and_null_is_tolerated(
    api: httpx.AsyncClient, valkey_url: str
):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    part = [{"type": "text", "text": "Hello!"}]
    turns: list[list[dict[str, Any]]] = [
        [{"role": "assistant", "content": "Hello!"}],
        [{"role": "assistant", "content": part}],
        [{"role": "assistant", "content": None, "tool_calls": [call]},
         {"role": "tool", "tool_call_id": "1", "content": part}],
    ]  # fmt: skip
    counts: list[int] = []
    async with scripted_node(valkey_url, Script(text="Yes.")):
        for turn in turns:
            messages = [
                {"role": "user", "content": "Hi"},
                *turn,
                {"role": "user", "content": "Bye"},
            ]
            answer = await api.post("/v1/chat/completions", json=body(messages=messages))
            assert answer.status_code == 200, answer.text
            counts.append(answer.json()["usage"]["prompt_tokens"])
    assert counts[0] == counts[1]
    assert counts[2] > counts[0]


IMAGE = [
    {"type": "text", "text": "What is this?"},
    {"type": "image_url", "image_url": {"url": "x"}},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[1]"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": []}, "messages"),
    ({"messages": "Why?"}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
    ({"n": 2}, "n"),
    ({"best_of": 3}, "best_of"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"temprature": 1}, "temprature"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop": ["a"] * 257}, "stop"),
    ({"stop": ["a" * 999] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"seed": 2**63}, "seed"),
    ({"stream_options": {"include_usage": "maybe"}}, "stream_options.include_usage"),
]  # fmt: skip


async def test_what_cannot_be_done_is_refused_by_name(api: httpx.AsyncClient, valkey_url: str):
    async with scripted_node(valkey_url):
        for fields, param in REFUSED:
            answer = await api.post("/v1/chat/completions", json=body(**fields))
            assert answer.status_code == 400, (fields, answer.text)
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["param"].startswith(param), (fields, error)


async def test_values_that_ask_for_nothing_are_taken(api: httpx.AsyncClient, valkey_url: str):
    neutral = {
        "n": 1, "logprobs": False, "logit_bias": {}, "presence_penalty": 0, "user": "someone",
        "frequency_penalty": 0.0, "response_format": {"type": "text"}, "metadata": {"a": "b"},
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none", "stop": None, "seed": None,
    }  # fmt: skip
    async with scripted_node(valkey_url, Script(text="Yes.")):
        answer = await api.post("/v1/chat/completions", json=body(**neutral))
    assert answer.status_code == 200, answer.text


async def test_refusals_before_the_line(web: Web, api: httpx.AsyncClient, valkey_url: str):
    async with scripted_node(valkey_url, Script(context_tokens=50)):
        unknown = await api.post("/v1/chat/completions", json=body(model="gpt-9"))
        long = [{"role": "user", "content": "word " * 100}]
        too_long = await api.post("/v1/chat/completions", json=body(messages=long))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    error = too_long.json()["error"]
    assert (too_long.status_code, error["code"]) == (400, "context_length_exceeded")
    # the prompt's length and the most that fits
    assert "49" in error["message"]
    empty = await api.post("/v1/chat/completions", json=body())
    assert (empty.status_code, empty.json()["error"]["code"]) == (503, "no_node")
    assert int(empty.headers["retry-after"]) > 0
    async with session_of(web.parts.database) as session:
        assert (await session.scalars(select(Turn))).all() == []


async def test_without_a_key_the_official_client_sees_an_authentication_error(web: Web):
    async with official(web, "sk-baton-wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="scripted", messages=ASKED)


async def test_a_model_without_node_and_waiters_is_not_listed(
    web: Web, api: httpx.AsyncClient, valkey_url: str
):
    async with scripted_node(valkey_url):
        listed = (await api.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["scripted"]
    assert (await api.get("/v1/models")).json()["data"] == []
    assert (await api.get("/v1/models/scripted")).status_code == 404


async def test_a_session_keeps_the_node_and_what_it_has_read(
    web: Web, eva: Member, valkey_url: str
):
    async with (
        scripted_node(valkey_url, Script(text="Yes.")),
        official(web, await eva.key()) as client,
    ):
        cached: list[int] = []
        messages = list(ASKED)
        for session in ("report-7", "report-7", "end"):
            assert (await web.parts.line.seat(await seat_of(eva))).state == (
                "holding" if cached else "none"
            )
            answer = await client.chat.completions.create(
                model="scripted", messages=messages, extra_headers={"X-Baton-Session": session}
            )
            usage = answer.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            cached.append(usage.prompt_tokens_details.cached_tokens or 0)
            messages += [
                {"role": "assistant", "content": answer.choices[0].message.content},
                {"role": "user", "content": "And then?"},
            ]
        assert cached[0] == 0
        assert cached[2] > cached[1] > 0
        await until(lambda: idle(web), what="the node is given back")


async def test_a_session_is_ended_by_its_name(web: Web, api: httpx.AsyncClient, valkey_url: str):
    async with scripted_node(valkey_url, Script(text="Yes.")):
        headers = {"X-Baton-Session": "mine"}
        answer = await api.post("/v1/chat/completions", json=body(), headers=headers)
        assert answer.status_code == 200

        async def held() -> bool:
            return not await idle(web)

        await until(held)
        assert (await api.delete("/v1/sessions/mine")).status_code == 204
        assert await idle(web)
        assert (await api.delete("/v1/sessions/mine")).status_code == 204


@pytest.mark.parametrize("name", ["", "two words", "x" * 65, "ü"])
async def test_a_sessions_name_is_short_and_plain(web: Web, api: httpx.AsyncClient, name: str):
    headers = {b"X-Baton-Session": name.encode()}
    answer = await api.post("/v1/chat/completions", json=body(), headers=headers)
    assert answer.status_code == 400
    assert "session" in answer.json()["error"]["message"]


async def seat_of(member: Member) -> str:
    async with session_of(member.web.parts.database) as session:
        user = await session.scalar(select(User))
    assert user is not None
    return user_seat(user.id)
