"""From messages to a node's work, before the line."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat import prompt
from app.chat.prompt import AnswerSettings, fitting_tokens, make_work, resolve_pool
from app.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    PoolEmptyError,
    PromptTooLongError,
)
from app.line.line import Line
from app.line.nodes import NodeDesk
from app.line.types import NodeInfo
from app.node.kinds import scripted_model
from app.store.client import Store
from engine.card import card_to_bytes
from engine.types import ModelCard, SamplingDefaults
from tests.app.serving import settings_of
from tests.waiting import until

SETTINGS = settings_of("redis://unused", Path("unused"))
HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def line(store: Store) -> Line:
    return Line(store, SETTINGS)


async def publish(store: Store, card: ModelCard, *, alive: bool = True) -> None:
    desk = NodeDesk(store, card.name, SETTINGS)
    info = NodeInfo(f"n-{card.name}", "boot", "n", "H200", "scripted", "label")
    await desk.register(info, card_to_bytes(card))
    if not alive:
        await desk.leave(info.id, info.boot)


def card(name: str = "m", **more: Any) -> ModelCard:
    return replace(scripted_model.card(name, 100), **more)


async def test_what_a_request_leaves_out_comes_from_the_card(store: Store, line: Line):
    await publish(store, card(defaults=SamplingDefaults(temperature=0.3, top_p=0.8, top_k=40)))
    one = await make_work(line, "m", HELLO, AnswerSettings(), 20)
    two = await make_work(line, "m", HELLO, AnswerSettings(), 20)
    sampling = one.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.3, 0.8, 40)
    # drawn here, kept with the turn, exact in JavaScript
    assert one.sampling.seed != two.sampling.seed
    assert 0 <= one.sampling.seed < 2**53
    assert (one.model, one.max_tokens) == ("m", 20)
    assert one.prompt_ids == two.prompt_ids


async def test_what_a_request_says_is_kept(store: Store, line: Line):
    await publish(store, card())
    settings = AnswerSettings(0.0, 0.5, 7, 0, 9, ("END",))
    work = await make_work(line, "m", HELLO, settings, 20)
    sampling = work.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0, 0.5, 7, 0)
    assert (work.max_tokens, work.stop) == (9, ("END",))


async def test_a_temperature_too_small_to_divide_by_is_greedy(store: Store, line: Line):
    await publish(store, card())
    work = await make_work(line, "m", HELLO, AnswerSettings(temperature=1e-300), 20)
    assert work.sampling.temperature == 0.0


async def test_a_model_without_a_template_stops_before_the_next_speaker(store: Store, line: Line):
    await publish(store, card(chat_template=None))
    work = await make_work(line, "m", HELLO, AnswerSettings(stop=("x",)), 20)
    assert work.stop == ("x", "\nUser:")


async def test_messages_the_template_refuses_are_the_callers_fault(store: Store, line: Line):
    await publish(store, card(chat_template="{{ raise_exception('no such role') }}"))
    with pytest.raises(InvalidRequestError, match="no such role"):
        await make_work(line, "m", HELLO, AnswerSettings(), 20)


async def test_a_card_of_another_version_is_named(store: Store, line: Line):
    desk = NodeDesk(store, "m", SETTINGS)
    await desk.register(NodeInfo("n", "boot", "n", "H200", "scripted", "label"), b"no card")
    with pytest.raises(prompt.ModelUnreadableError, match="same version"):
        await make_work(line, "m", HELLO, AnswerSettings(), 20)


@pytest.mark.parametrize("words", [3, 5000])
async def test_long_and_short_prompts_are_the_same_work(
    store: Store, line: Line, words: int, monkeypatch: pytest.MonkeyPatch
):
    await publish(store, card(context_tokens=10**6))
    messages = [{"role": "user", "content": "word " * words}]
    inline = await make_work(line, "m", messages, AnswerSettings(seed=1), 20)
    monkeypatch.setattr(prompt, "INLINE_CHARACTERS", -1)
    threaded = await make_work(line, "m", messages, AnswerSettings(seed=1), 20)
    assert inline == threaded


async def test_an_unchanged_card_is_read_once_and_a_new_one_is_noticed(
    store: Store, line: Line, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prompt, "CARD_SECONDS", 0.0)
    await publish(store, card())
    one = await prompt.model_of(line, "m")
    assert await prompt.model_of(line, "m") is one
    await publish(store, card(context_tokens=7))
    assert (await prompt.model_of(line, "m")).card.context_tokens == 7


async def test_pools_are_found_by_name_and_the_first_alive_is_the_default(store: Store, line: Line):
    with pytest.raises(PoolEmptyError):
        await resolve_pool(line, None)
    await publish(store, card("a"), alive=False)
    await publish(store, card("b"))
    await publish(store, card("c"))
    assert await resolve_pool(line, None) == "b"
    assert await resolve_pool(line, "a") == "a"
    with pytest.raises(ModelNotFoundError, match="'d'"):
        await resolve_pool(line, "d")


async def test_a_model_that_the_store_forgot_is_away_not_unknown(store: Store, line: Line):
    await publish(store, card("a"))
    await prompt.model_of(line, "a")
    await store.command("FLUSHALL")
    with pytest.raises(PoolEmptyError) as refused:  # another replica knows no more than this
        await resolve_pool(line, "z")
    assert refused.value.retry_after_seconds
    await publish(store, card("b"))
    with pytest.raises(PoolEmptyError):
        await resolve_pool(line, "a")
    with pytest.raises(ModelNotFoundError):
        await resolve_pool(line, "z")


@given(st.integers(1, 200), st.none() | st.integers(1, 300), st.integers(1, 300))
def test_an_answer_never_leaves_the_context(length: int, asked: int | None, most: int):
    if length >= 100:
        with pytest.raises(PromptTooLongError, match=rf"has {length} tokens.* at most 99 "):
            fitting_tokens(length, asked, 100, most)
        return
    tokens = fitting_tokens(length, asked, 100, most)
    assert 1 <= tokens <= 100 - length
    assert tokens == min(asked or most, 100 - length)


@pytest.mark.parametrize(
    ("messages", "short"),
    [
        (HELLO, True),
        ([{"role": "user", "content": "x" * prompt.INLINE_CHARACTERS}], False),
        ([{"role": "user", "content": "", "name": "x" * prompt.INLINE_CHARACTERS}], False),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"a": ["x" * 10_000, 1.5]}]}],
            False,
        ),
        ([{"role": "user", "content": ""}] * prompt.INLINE_CHARACTERS, False),
    ],
)
def test_all_that_a_template_may_print_decides_what_is_short(
    messages: list[dict[str, Any]], short: bool
):
    assert prompt.is_short(messages) is short


async def test_only_two_long_prompts_are_encoded_at_a_time(
    store: Store, line: Line, monkeypatch: pytest.MonkeyPatch
):
    await publish(store, card(context_tokens=10**6))
    running, most = list[int](), list[int]()
    let_go = threading.Event()

    def encode(*_: object, tools: object) -> list[int]:
        running.append(1)
        most.append(len(running))
        let_go.wait(10)
        running.pop()
        return [1]

    monkeypatch.setattr(prompt, "prompt_ids", encode)
    messages = [{"role": "user", "content": "word " * 5000}]
    tasks = [
        asyncio.create_task(make_work(line, "m", messages, AnswerSettings(), 20)) for _ in range(4)
    ]
    await until(lambda: len(most) == 2, what="two prompts")
    let_go.set()
    await asyncio.gather(*tasks)
    assert len(most) == 4
    assert max(most) == 2
