"""Thoughts and calls of tools in the OpenAI-shaped API, by the official client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import httpx
import orjson
import pytest

from tests.app import thinking
from tests.app.chat.test_openai import official
from tests.app.serving import Web, scripted_node
from tests.app.thinking import CALLS, FAST, TEXT, THOUGHTS

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather now.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ASKED: Any = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture
async def key(web: Web) -> str:
    return await (await web.member()).key()


@pytest.fixture
async def api(web: Web, key: str) -> httpx.AsyncClient:
    return await web.client(Authorization=f"Bearer {key}")


def same_calls(found: list[tuple[str, str]]) -> bool:
    """Arguments are compared as JSON: how it is spaced says nothing."""
    made = [(name, orjson.loads(arguments)) for name, arguments in found]
    return made == [(name, orjson.loads(arguments)) for name, arguments in CALLS]


async def test_an_answer_says_its_thoughts_text_and_calls_apart(
    web: Web, key: str, valkey_url: str
):
    async with scripted_node(valkey_url, FAST), official(web, key) as client:
        made = await client.chat.completions.create(
            model="scripted", messages=ASKED, tools=TOOLS, tool_choice="auto"
        )
    choice = made.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == TEXT
    assert cast(Any, choice.message).reasoning_content == THOUGHTS
    calls = cast(Any, choice.message.tool_calls)
    assert same_calls([(call.function.name, call.function.arguments) for call in calls])
    assert len({call.id for call in calls}) == len(CALLS)
    usage = made.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    thoughts = usage.completion_tokens_details.reasoning_tokens
    assert thoughts is not None
    assert 0 < thoughts < usage.completion_tokens


async def test_a_stream_says_them_in_its_chunks(web: Web, key: str, valkey_url: str):
    texts = {"content": "", "reasoning_content": ""}
    calls: dict[int, tuple[str, str]] = {}
    reasons: list[str] = []
    async with scripted_node(valkey_url, FAST), official(web, key) as client:
        stream = await client.chat.completions.create(
            model="scripted", messages=ASKED, tools=TOOLS, stream=True
        )
        async for chunk in stream:
            delta = chunk.choices[0].delta
            for name in texts:
                texts[name] += getattr(delta, name, None) or ""
            for call in delta.tool_calls or []:
                assert call.index not in calls
                assert call.function is not None
                calls[call.index] = (call.function.name or "", call.function.arguments or "")
            if chunk.choices[0].finish_reason:
                reasons.append(chunk.choices[0].finish_reason)
    assert texts == {"content": TEXT, "reasoning_content": THOUGHTS}
    assert same_calls([calls[index] for index in sorted(calls)])
    assert reasons == ["tool_calls"]


async def test_results_of_tools_and_earlier_thoughts_are_taken(
    api: httpx.AsyncClient, valkey_url: str
):
    call = {
        "id": "call_1", "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Bern"}'},
    }  # fmt: skip
    messages = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    script = replace(FAST, text="Rain it is.\n</think>\n\nIt rains.")
    async with scripted_node(valkey_url, script):
        made = await api.post(
            "/v1/chat/completions",
            json={"model": "scripted", "messages": messages, "tools": TOOLS},
        )
    assert made.status_code == 200, made.text
    choice = made.json()["choices"][0]
    assert choice["message"] == {
        "role": "assistant", "content": "It rains.", "reasoning_content": "Rain it is.",
    }  # fmt: skip
    assert choice["finish_reason"] == "stop"


async def test_the_template_is_told_of_the_tools_unless_none_may_be_called(
    api: httpx.AsyncClient, valkey_url: str
):
    async def answer(**more: Any) -> dict[str, Any]:
        body = {"model": "scripted", "messages": ASKED, **more}
        made = await api.post("/v1/chat/completions", json=body)
        assert made.status_code == 200, made.text
        return made.json()

    async with scripted_node(valkey_url, FAST):
        plain, with_tools, unused = (
            await answer(),
            await answer(tools=TOOLS),
            await answer(tools=TOOLS, tool_choice="none"),
        )
    prompt = plain["usage"]["prompt_tokens"]
    assert unused["usage"]["prompt_tokens"] == prompt < with_tools["usage"]["prompt_tokens"]
    # nobody offered a tool, so what looks like a call is text
    for made in (plain, unused):
        assert "tool_calls" not in made["choices"][0]["message"]
        assert made["choices"][0]["message"]["content"].startswith(f"{TEXT}\n<tool_call>")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        "tool_choice",
    ),
    ({"tools": [{"type": "function"}]}, "tools.0.function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"tools": TOOLS * 129}, "tools"),
    ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls"),
]


async def test_what_cannot_be_done_with_tools_is_refused_by_name(
    api: httpx.AsyncClient, valkey_url: str
):
    async with scripted_node(valkey_url, FAST):
        for fields, param in REFUSED:
            body = {"model": "scripted", "messages": ASKED, **fields}
            made = await api.post("/v1/chat/completions", json=body)
            assert made.status_code == 400, (fields, made.text)
            assert made.json()["error"]["param"] == param, (fields, made.text)


async def test_a_model_that_knows_no_tools_says_so(api: httpx.AsyncClient, valkey_url: str):
    async with scripted_node(valkey_url):
        made = await api.post(
            "/v1/chat/completions", json={"model": "scripted", "messages": ASKED, "tools": TOOLS}
        )
    assert made.status_code == 400
    assert made.json()["error"]["param"] == "tools"


async def test_an_answer_cut_inside_a_call_shows_what_was_written(
    api: httpx.AsyncClient, valkey_url: str
):
    cut = thinking.WITH_CALLS[: thinking.WITH_CALLS.index("arguments")]
    async with scripted_node(valkey_url, replace(FAST, text=cut)):
        made = await api.post(
            "/v1/chat/completions", json={"model": "scripted", "messages": ASKED, "tools": TOOLS}
        )
    choice = made.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].startswith(f'{TEXT}<tool_call>\n{{"name": "weather"')
