"""An answer that goes on from tokens made elsewhere is the answer it would have been."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.cache import KvCache
from engine.engine import Engine
from engine.tokenizer import Tokenizer
from engine.types import (
    EngineError,
    Event,
    Finished,
    GenerateRequest,
    ModelCard,
    Reading,
    SamplingParams,
    Step,
)
from tests.engine.references import CAP, CAP_TEXT, COUNT
from tests.engine.scripted_model import ScriptedModel

GREEDY = SamplingParams(temperature=0)
WARM = SamplingParams(temperature=0.8, top_p=0.95, seed=11)
END = 2
PROMPT = (5, 6, 7)
STORY = (
    "Once upon a time there was a keeper of a lighthouse who wrote down every ship that went by, "
    "its name, its colours and the weather of the day, until one night in November"
)


def ask(
    engine: Engine,
    prompt: Sequence[int],
    max_tokens: int,
    resume: Sequence[int] = (),
    *,
    stop: tuple[str, ...] = (),
    sampling: SamplingParams = GREEDY,
    cancel: threading.Event | None = None,
) -> list[Event]:
    request = GenerateRequest(tuple(prompt), max_tokens, sampling, stop, tuple(resume))
    return list(engine.generate(request, cancel or threading.Event()))


def ids(events: Sequence[Event]) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Step) for token in event.token_ids)


def text(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Step | Finished))


def last(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


# -- the real model -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    loaded = Engine.load(smollm2_path, threads=1, chunk_tokens=16, speculation=False)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def story(smollm2_tokenizer: Tokenizer) -> tuple[int, ...]:
    """A beginning that leaves much open, of more than two chunks."""
    return tuple(smollm2_tokenizer.encode(STORY))


def cache_bits(engine: Engine) -> torch.Tensor:
    """Everything that the next token depends on."""
    cache = engine._cache
    assert isinstance(cache, KvCache)
    return cache._data[:, :, :, : cache.length].clone()


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_the_real_model_goes_on_bit_for_bit(
    engine: Engine, story: tuple[int, ...], sampling: SamplingParams
):
    length = 24
    engine.forget()
    whole = ask(engine, story, length, sampling=sampling)
    bits, written = cache_bits(engine), ids(whole)
    assert len(written) == length
    for cut in (1, 2, 9, 23):
        engine.forget()
        rest = ask(engine, story, length, written[:cut], sampling=sampling)
        assert ids(rest) == written[cut:]
        assert torch.equal(cache_bits(engine), bits)
        steps = [event for event in whole if isinstance(event, Step)]
        assert text(steps[:cut]) + text(rest) == text(whole)


def test_a_sampled_answer_differs_from_a_greedy_one(engine: Engine, story: tuple[int, ...]):
    """Or the test above would show nothing about the noise."""
    answers = {ids(ask(engine, story, 24, sampling=sampling)) for sampling in (GREEDY, WARM)}
    assert len(answers) == 2


def test_a_real_answer_ends_where_it_would_have(engine: Engine):
    engine.forget()
    rest = ask(engine, CAP.prompt_ids, 40, CAP.answer_ids[:5])
    assert ids(rest) == CAP.answer_ids[5:]
    assert CAP_TEXT.endswith(text(rest))
    assert last(rest).finish_reason == "stop"


# -- every place to cut, on a model that writes a script ------------------------------------------


@pytest.fixture(scope="module")
def stage(smollm2_card: ModelCard) -> tuple[Engine, ScriptedModel, Tokenizer]:
    tokenizer = Tokenizer.from_card(smollm2_card)
    model = ScriptedModel((), tokenizer.vocab_size, len(PROMPT), smollm2_card.context_tokens)
    return Engine(model, smollm2_card, 16), model, tokenizer


WORDS = st.text(st.sampled_from("ab ,é世🙂🌶\n"), min_size=1, max_size=12)
# the bytes F0 9F 8C of many emoji, and some that never belong together
LOOSE = st.sampled_from([10813, 230, 131, 17, 216, END + 1])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_wherever_it_is_cut_the_text_comes_exactly_once(
    stage: tuple[Engine, ScriptedModel, Tokenizer], data: st.DataObject
):
    engine, model, tokenizer = stage
    script = tokenizer.encode(data.draw(WORDS)) + data.draw(st.lists(LOOSE, max_size=5))
    script += tokenizer.encode(data.draw(WORDS))
    spelled = tokenizer.decode(script)
    cuts = st.tuples(st.integers(0, len(spelled)), st.integers(1, 4))
    stops = tuple(
        spelled[start : start + size] for start, size in data.draw(st.lists(cuts, max_size=3))
    )
    ends = data.draw(st.booleans())
    model.script = (*script, END) if ends else tuple(script)
    limit = len(model.script)

    whole = ask(engine, PROMPT, limit, stop=stops)
    steps = [event for event in whole if isinstance(event, Step)]
    for cut in range(len(steps) + 1):
        shown, made = text(steps[:cut]), ids(steps[:cut])
        rest = ask(engine, PROMPT, limit, made, stop=stops)
        assert shown + text(rest) == text(whole)
        assert made + ids(rest) == ids(whole)
        assert last(rest).finish_reason == last(whole).finish_reason
        assert last(rest).usage.completion_tokens == last(whole).usage.completion_tokens
        assert last(rest).usage.resumed_tokens == cut


def test_progress_is_told_and_the_tokens_run_one_by_one(
    stage: tuple[Engine, ScriptedModel, Tokenizer],
):
    engine, model, _ = stage
    engine.forget()
    model.script, model.passes = COUNT.answer_ids, []
    events = ask(engine, PROMPT, 6, COUNT.answer_ids[:3])
    readings = [event for event in events if isinstance(event, Reading)]
    assert [event.done_tokens for event in readings] == [0, 3, 4, 5, 6]
    assert {event.total_tokens for event in readings} == {6}
    # the prompt, three tokens again, and the new ones but for the last
    assert model.passes == [3, 1, 1, 1, 1, 1]


def test_figures_are_those_of_the_new_tokens(stage: tuple[Engine, ScriptedModel, Tokenizer]):
    engine, model, _ = stage
    model.script = COUNT.answer_ids
    finished = last(ask(engine, PROMPT, 6, COUNT.answer_ids[:4]))
    assert finished.usage.completion_tokens == 6
    assert finished.speed.e2e == pytest.approx(2000 / finished.timing.total_ms, rel=0.5)
    assert finished.accepted.mean == 1


def test_cancel_is_looked_at_while_the_tokens_run_again(
    stage: tuple[Engine, ScriptedModel, Tokenizer],
):
    engine, model, _ = stage
    engine.forget()
    model.script, model.passes = COUNT.answer_ids, []
    cancel, events = threading.Event(), []
    request = GenerateRequest(PROMPT, 40, GREEDY, (), COUNT.answer_ids[:10])
    for event in engine.generate(request, cancel):
        events.append(event)
        if isinstance(event, Reading) and event.done_tokens == 5:
            cancel.set()
    assert last(events).finish_reason == "cancelled"
    assert last(events).usage.completion_tokens == 10
    assert model.passes == [3, 1, 1]


@pytest.mark.parametrize(
    ("written", "limit", "reason"),
    [((*COUNT.answer_ids[:3], END), 40, "stop"), (COUNT.answer_ids[:3], 3, "length")],
)
def test_what_was_already_over_ends_without_computing(
    stage: tuple[Engine, ScriptedModel, Tokenizer],
    written: tuple[int, ...],
    limit: int,
    reason: str,
):
    engine, model, _ = stage
    model.script, model.passes = COUNT.answer_ids, []
    events = ask(engine, PROMPT, limit, written)
    assert [type(event) for event in events] == [Reading, Finished]
    assert last(events).finish_reason == reason
    assert model.passes == []


@pytest.mark.parametrize("written", [(-1,), (10**9,), (END, 5)])
def test_tokens_of_another_model_are_refused(
    stage: tuple[Engine, ScriptedModel, Tokenizer], written: tuple[int, ...]
):
    engine, model, _ = stage
    model.script = COUNT.answer_ids
    with pytest.raises(EngineError, match="does not come from this model"):
        ask(engine, PROMPT, 40, written)
    assert ids(ask(engine, PROMPT, 2)) == COUNT.answer_ids[:2]
