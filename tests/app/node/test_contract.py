"""What every kind of node keeps to; one run per kind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest

from app.node.kinds import NODE_KINDS, KindOptions
from app.node.kinds.base import NodeKind
from app.node.kinds.local import LocalKind, LocalModel
from app.node.kinds.scripted import Script, ScriptedKind
from app.work import Work
from engine.card import card_from_bytes, card_to_bytes
from engine.tokenizer import Tokenizer
from engine.types import (
    EngineError,
    Event,
    Finished,
    ModelCard,
    ModelFileError,
    PromptTooLongError,
    Reading,
    SamplingParams,
    Step,
)

KINDS: dict[str, Callable[[], NodeKind]] = {
    "scripted": lambda: ScriptedKind(Script(tokens_per_second=2000, prefill_ms_per_token=0.01)),
    "local": lambda: LocalKind(LocalModel(threads=1)),
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[NodeKind, ModelCard]]:
    """Loading takes seconds, so it happens once; a kind is bound to no event loop."""
    kind = KINDS[request.param]()
    with asyncio.Runner() as runner:
        yield kind, runner.run(kind.open())
        runner.run(kind.close())


@pytest.fixture
async def opened(loaded: tuple[NodeKind, ModelCard]) -> tuple[NodeKind, ModelCard]:
    await loaded[0].forget()
    return loaded


def work_of(card: ModelCard, words: str = "Name three colours.", **changes: object) -> Work:
    values: dict[str, object] = {
        "model": card.name,
        "prompt_ids": tuple(Tokenizer.from_card(card).encode(words)),
        "max_tokens": 12,
        "sampling": SamplingParams(temperature=0, seed=7),
        **changes,
    }
    return Work(**values)  # pyright: ignore[reportArgumentType] fields by name


async def run(kind: NodeKind, work: Work, cancel: threading.Event | None = None) -> list[Event]:
    async with aclosing(kind.generate(work, cancel or threading.Event())) as events:
        return [event async for event in events]


def ids_of(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Step) for token in event.token_ids]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Step | Finished))


def test_every_kind_is_in_this_contract():
    assert set(NODE_KINDS) == set(KINDS)
    for name, make in NODE_KINDS.items():
        assert type(make(KindOptions())) is type(KINDS[name]())


async def test_reading_then_steps_then_one_finished(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    work = work_of(card)
    events = await run(kind, work)

    order = [type(event) for event in events]
    assert order == sorted(order, key=[Reading, Step, Finished].index)
    assert order.count(Finished) == 1
    assert isinstance(events[0], Reading)
    last_reading = [event for event in events if isinstance(event, Reading)][-1]
    assert last_reading.done_tokens == last_reading.total_tokens == len(work.prompt_ids)
    times = [event.t_ms for event in events if not isinstance(event, Finished)]
    assert times == sorted(times)

    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.completion_tokens == len(ids_of(events)) <= work.max_tokens
    assert finished.usage.prompt_tokens == len(work.prompt_ids)
    assert finished.timing.total_ms == pytest.approx(
        finished.timing.prefill_ms + finished.timing.decode_ms
    )


async def test_the_text_is_what_the_ids_spell(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    work = work_of(card)
    events = await run(kind, work)
    tokenizer = Tokenizer.from_card(card)
    ids = [token for token in ids_of(events) if token not in card.stop_token_ids]
    decoder = tokenizer.decoder(work.prompt_ids)
    assert text_of(events) == decoder.push(ids) + decoder.flush()


async def test_the_same_work_gives_the_same_tokens(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    first = ids_of(await run(kind, work_of(card)))
    await kind.forget()
    assert ids_of(await run(kind, work_of(card))) == first


async def test_max_tokens_is_exact_and_says_length(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    events = await run(kind, work_of(card, max_tokens=5))
    assert len(ids_of(events)) == 5
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reason == "length"


async def test_a_stop_text_ends_the_answer_and_is_not_shown(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    whole = text_of(await run(kind, work_of(card)))
    await kind.forget()
    stop = whole[4:7]
    events = await run(kind, work_of(card, stop=(stop,)))
    assert text_of(events) == whole[: whole.index(stop)]
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reason == "stop"


async def test_it_continues_an_answer_from_any_token(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    # a seed and a little warmth: positions count
    warm = SamplingParams(temperature=0.8, top_p=0.9, seed=5)
    whole = await run(kind, work_of(card, sampling=warm))
    ids, text = ids_of(whole), text_of(whole)
    spelling = Tokenizer.from_card(card).decoder(work_of(card).prompt_ids)
    shown = ""
    for cut in range(len(ids) + 1):
        await kind.forget()
        events = await run(kind, work_of(card, sampling=warm, resume_ids=tuple(ids[:cut])))
        assert ids_of(events) == ids[cut:]
        assert shown + text_of(events) == text
        finished = events[-1]
        assert isinstance(finished, Finished)
        assert finished.usage.completion_tokens == len(ids)
        assert finished.usage.resumed_tokens == cut
        assert isinstance(events[0], Reading)
        assert events[0].total_tokens == len(work_of(card).prompt_ids) + cut
        if cut < len(ids):
            shown += spelling.push(ids[cut : cut + 1])


async def test_a_stop_text_over_the_cut_still_ends_it(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    whole = await run(kind, work_of(card))
    ids, text = ids_of(whole), text_of(whole)
    stop = text[2:9]
    for cut in range(1, 4):
        await kind.forget()
        events = await run(kind, work_of(card, stop=(stop,), resume_ids=tuple(ids[:cut])))
        assert stop not in text_of(events)
        finished = events[-1]
        assert isinstance(finished, Finished)
        assert finished.finish_reason == "stop"


async def test_cancel_ends_it_between_two_steps(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    cancel = threading.Event()
    seen: list[Event] = []
    async with aclosing(kind.generate(work_of(card, max_tokens=1000), cancel)) as events:
        async for event in events:
            seen.append(event)
            if len(ids_of(seen)) >= 3:
                cancel.set()
    assert isinstance(seen[-1], Finished)
    assert seen[-1].finish_reason == "cancelled"
    assert len(ids_of(seen)) < 1000


async def test_cancel_before_the_start_ends_it_at_once(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    cancel = threading.Event()
    cancel.set()
    events = await run(kind, work_of(card, max_tokens=1000), cancel)
    assert isinstance(events[-1], Finished)
    assert events[-1].finish_reason == "cancelled"


async def test_a_reader_that_leaves_frees_the_kind_for_the_next(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    async with aclosing(kind.generate(work_of(card, max_tokens=500), threading.Event())) as events:
        async for event in events:
            if isinstance(event, Step):
                break
    assert len(ids_of(await run(kind, work_of(card, max_tokens=4)))) == 4


async def test_a_cancelled_task_frees_the_kind_for_the_next(opened: tuple[NodeKind, ModelCard]):
    kind, card = opened
    writing = asyncio.Event()

    async def read() -> None:
        async with aclosing(
            kind.generate(work_of(card, max_tokens=500), threading.Event())
        ) as events:
            async for event in events:
                if isinstance(event, Step):
                    writing.set()

    task = asyncio.create_task(read())
    await writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(ids_of(await run(kind, work_of(card, max_tokens=4)))) == 4


async def test_a_longer_prompt_of_the_same_seat_reuses_the_cache_until_forgotten(
    opened: tuple[NodeKind, ModelCard],
):
    kind, card = opened
    short = work_of(card, max_tokens=4)
    longer = work_of(card, "Name three colours. And then some more.", max_tokens=4)

    async def cached(work: Work) -> int:
        finished = (await run(kind, work))[-1]
        assert isinstance(finished, Finished)
        return finished.usage.cached_tokens

    assert await cached(short) == 0
    assert await cached(longer) > 0
    await kind.forget()
    assert await cached(longer) == 0


async def test_a_prompt_beyond_the_context_is_refused_and_the_kind_serves_on(
    opened: tuple[NodeKind, ModelCard],
):
    kind, card = opened
    with pytest.raises(PromptTooLongError, match=str(card.context_tokens)):
        await run(kind, work_of(card, prompt_ids=(5,) * (card.context_tokens + 1)))
    assert ids_of(await run(kind, work_of(card, max_tokens=2)))


async def test_the_card_travels_as_bytes(opened: tuple[NodeKind, ModelCard]):
    _, card = opened
    assert card_from_bytes(card_to_bytes(card)) == card
    assert card.chat_template is not None
    assert card.stop_token_ids


async def test_a_missing_model_file_is_named():
    kind = LocalKind(LocalModel(path="/nowhere/model.gguf"))
    with pytest.raises(ModelFileError, match="/nowhere/model.gguf"):
        await kind.open()
    await kind.close()


async def test_a_level_that_does_not_exist_is_named():
    kind = LocalKind(LocalModel(level="int3"))
    with pytest.raises(EngineError, match="int3.*int4"):
        await kind.open()
    await kind.close()


async def test_a_device_that_does_not_exist_is_named():
    kind = LocalKind(LocalModel(device="tpu"))
    with pytest.raises(EngineError, match="tpu.*auto, cpu, cuda"):
        await kind.open()
    await kind.close()


def test_a_scripted_node_never_loads_torch():
    check = (
        "import sys, app.node.run, app.cli\n"
        "from app.node.kinds import NODE_KINDS, KindOptions\n"
        "import asyncio\n"
        "asyncio.run(NODE_KINDS['scripted'](KindOptions()).open())\n"
        "assert 'torch' not in sys.modules, 'torch is loaded'"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
