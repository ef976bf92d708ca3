"""The choice of tokens asked for by the official client, from the API to the engine and back."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from app.chat.openai_choice import ChoiceIn
from app.node.kinds import scripted_model
from app.node.kinds.local import LocalKind, LocalModel
from engine.engine import Engine
from tests.app.serving import Member, Web, scripted_node, serving_node
from tests.engine.scripted_model import ScriptedModel

ASKED: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Why?"}]
TEXT = 'Yes: {"n": 7}, naïve 🙂 forty-two.'


class StagedKind(LocalKind):
    """The engine on a model that wants to write one text."""

    def __init__(self, text: str = TEXT) -> None:
        super().__init__(LocalModel())
        self._text = text

    def _load(self) -> Engine:
        card = scripted_model.card("scripted", 2048)
        ids = scripted_model.tokenizer().encode(self._text)
        vocabulary = scripted_model.tokenizer().vocab_size
        return Engine(_Staged([*ids, scripted_model.end_token()], vocabulary), card, 64)


class _Staged(ScriptedModel):
    """Counts from the end of whatever prompt comes."""

    def __init__(self, script: Sequence[int], vocabulary: int) -> None:
        super().__init__(script, vocabulary, 0)

    def prefill(self, token_ids: Sequence[int], cache: Any) -> Any:
        self._prompt_tokens = cache.length + len(token_ids)
        return super().prefill(token_ids, cache)


@pytest.fixture
async def eva(web: Web) -> Member:
    return await web.member()


@pytest.fixture
async def client(web: Web, eva: Member) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        api_key=await eva.key(), base_url=f"{web.url}/v1", max_retries=0, timeout=60
    ) as made:
        yield made


@asynccontextmanager
async def staged(valkey_url: str, text: str = TEXT) -> AsyncIterator[None]:
    async with serving_node(valkey_url, StagedKind(text)):
        yield


async def test_logprobs_of_a_whole_answer(client: openai.AsyncOpenAI, valkey_url: str):
    async with staged(valkey_url):
        answer = await client.chat.completions.create(
            model="scripted", messages=ASKED, logprobs=True, top_logprobs=2, temperature=0
        )
    choice = answer.choices[0]
    assert choice.message.content == TEXT
    assert choice.logprobs
    entries = choice.logprobs.content
    assert entries
    # the token that ended the answer is not among them
    assert answer.usage
    assert len(entries) == answer.usage.completion_tokens - 1
    assert b"".join(bytes(one.bytes or ()) for one in entries).decode() == TEXT
    vocabulary = scripted_model.tokenizer().vocab_size
    # one logit of 1 among zeros
    likely = 1 - math.log(math.e + vocabulary - 1)
    assert all(one.logprob == pytest.approx(likely, abs=1e-5) for one in entries)
    assert all(one.top_logprobs[0].token == one.token for one in entries)
    assert all(len(one.top_logprobs) == 2 for one in entries)


@pytest.mark.parametrize("stop", [None, "forty", "42"])
async def test_streamed_logprobs_belong_to_the_shown_text(
    client: openai.AsyncOpenAI, valkey_url: str, stop: str | None
):
    async with staged(valkey_url):
        stream = await client.chat.completions.create(
            model="scripted", messages=ASKED, logprobs=True, temperature=0, stream=True, stop=stop
        )
        chunks = [chunk.choices[0] async for chunk in stream]
    content = "".join(chunk.delta.content or "" for chunk in chunks)
    assert content == TEXT.partition(stop)[0] if stop else TEXT
    entries = [one for chunk in chunks if chunk.logprobs for one in (chunk.logprobs.content or ())]
    told = b"".join(bytes(one.bytes or ()) for one in entries).decode()
    # a token that shares a stop text's first letters is no part of it
    assert content.startswith(told)
    assert len(content) - len(told) < 2
    assert told == content or stop == "forty"
    assert all(one.top_logprobs == [] for one in entries)


async def test_without_the_wish_there_are_none(client: openai.AsyncOpenAI, valkey_url: str):
    async with staged(valkey_url):
        answer = await client.chat.completions.create(model="scripted", messages=ASKED)
    assert answer.choices[0].logprobs is None


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, {"n": 7}),
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}}, {"n": 7}),
        ({"extra_body": {"regex": r'\{"n": 7\}'}}, {"n": 7}),
        ({"extra_body": {"grammar": 'start: "{\\"n\\": " /[0-9]/ "}"'}}, {"n": 7}),
        ({"extra_body": {"grammar": 'root ::= "{\\"n\\": " [0-9] "}"'}}, {"n": 7}),
    ],
    ids=["object", "schema", "regex", "lark", "gbnf"],
)  # fmt: skip
async def test_every_form_of_structured_output(
    client: openai.AsyncOpenAI, valkey_url: str, fields: dict[str, Any], expected: object
):
    async with staged(valkey_url, '{"n": 7} Yes'):
        answer = await client.chat.completions.create(
            model="scripted", messages=ASKED, temperature=0, **fields
        )
    assert json.loads(answer.choices[0].message.content or "") == expected
    assert answer.choices[0].finish_reason == "stop"


async def test_penalties_bias_and_ends_reach_the_engine(
    client: openai.AsyncOpenAI, valkey_url: str
):
    ids = scripted_model.tokenizer().encode(TEXT)
    async with staged(valkey_url):

        async def content(**fields: Any) -> str | None:
            answer = await client.chat.completions.create(
                model="scripted", messages=ASKED, temperature=0, max_tokens=40, **fields
            )
            return answer.choices[0].message.content

        assert await content(
            extra_body={"stop_token_ids": [ids[3]]}
        ) == scripted_model.tokenizer().decode(ids[:3])
        assert await content(logit_bias={str(ids[0]): -100}) != TEXT
        assert await content(presence_penalty=2, frequency_penalty=2) != TEXT
        biased = {str(ids[0]): 0.5}
        assert await content(logit_bias=biased) == TEXT
        assert await content(logit_bias=biased, extra_body={"repetition_penalty": 5}) != TEXT
        longer = await content(extra_body={"ignore_eos": True})
        assert longer
        assert longer.startswith(TEXT + TEXT[:4])
        assert await content(extra_body={"min_tokens": 40}) != TEXT
        assert await content(extra_body={"min_p": 1}) == TEXT


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "100"),
    ({"logit_bias": {"5": "1"}}, "logit_bias", "number"),
    ({"logit_bias": {str(n): 1 for n in range(2000)}}, "logit_bias", "at most"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", "99999"),
    ({"stop_token_ids": [99999]}, "stop_token_ids", "99999"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "token ids"),
    ({"stop_token_ids": [1] * 65}, "stop_token_ids", "at most"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "9"),
    ({"presence_penalty": 2.5}, "presence_penalty", ""),
    ({"frequency_penalty": -3}, "frequency_penalty", ""),
    ({"repetition_penalty": 0}, "repetition_penalty", ""),
    ({"min_p": 2}, "min_p", ""),
    ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", ""),
    ({"logprobs": 3}, "logprobs", ""),
    ({"response_format": {"type": "xml"}}, "response_format", "xml"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "king"}}}},
     "response_format", "king"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
     "response_format", "not"),
    ({"regex": "("}, "regex", "unclosed"),
    ({"grammar": "start: ("}, "grammar", "cannot be used"),
    ({"grammar": 'start: "a"', "regex": "a"}, "grammar", "at once"),
]  # fmt: skip


async def test_what_cannot_be_is_refused_before_the_line(web: Web, eva: Member, valkey_url: str):
    api: httpx.AsyncClient = await web.client(Authorization=f"Bearer {await eva.key()}")
    async with scripted_node(valkey_url):
        for fields, param, words in REFUSED:
            body = {"model": "scripted", "messages": ASKED} | fields
            answer = await api.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400, (fields, answer.text)
            error = answer.json()["error"]
            assert error["param"].startswith(param), (fields, error)
            assert words in error["message"], (fields, error)


async def test_a_grammar_that_leads_nowhere_fails_the_turn_with_its_sentence(
    client: openai.AsyncOpenAI, valkey_url: str
):
    async with staged(valkey_url):
        with pytest.raises(openai.BadRequestError, match="cannot go on|cannot be used") as refused:
            await client.chat.completions.create(
                model="scripted", messages=ASKED, extra_body={"regex": r"[^\s\S]"}
            )
        assert refused.value.code == "invalid_grammar"


@pytest.mark.parametrize("bias", [float("nan"), float("inf"), True])
def test_a_bias_that_is_no_number_is_none(bias: float):
    with pytest.raises(ValueError, match="-100 to 100"):
        ChoiceIn.model_validate({"logit_bias": {"5": bias}})
