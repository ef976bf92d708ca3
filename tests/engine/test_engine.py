"""The loop: events in order, stop rules, cancel, one at a time, and turns that share a cache."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.cache import KvCache
from engine.engine import Engine
from engine.tokenizer import Tokenizer
from engine.types import (
    EngineError,
    Event,
    Finished,
    GenerateRequest,
    ModelCard,
    ModelFileError,
    OutOfMemoryError,
    PromptTooLongError,
    Reading,
    SamplingParams,
    Step,
)
from tests.engine.native import native_or_skip
from tests.engine.references import (
    CAP,
    CAP_TEXT,
    COMMA,
    COUNT,
    COUNT_TEXT,
    DIGIT_0,
    SPACE,
    counting,
)
from tests.engine.scripted_model import ScriptedModel

GREEDY = SamplingParams(temperature=0)
END = 2


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    loaded = Engine.load(smollm2_path, threads=1, chunk_tokens=64, speculation=False)
    yield loaded
    loaded.close()


def scripted(
    card: ModelCard,
    script: Sequence[int],
    prompt: Sequence[int] = COUNT.prompt_ids,
    chunk: int = 16,
) -> tuple[Engine, ScriptedModel]:
    vocabulary = Tokenizer.from_card(card).vocab_size
    model = ScriptedModel(script, vocabulary, len(prompt), card.context_tokens)
    return Engine(model, card, chunk), model


def ask(
    engine: Engine,
    prompt: Sequence[int] = COUNT.prompt_ids,
    max_tokens: int = 40,
    stop: tuple[str, ...] = (),
    sampling: SamplingParams = GREEDY,
) -> list[Event]:
    request = GenerateRequest(tuple(prompt), max_tokens, sampling, stop)
    return list(engine.generate(request, threading.Event()))


def ids(events: list[Event]) -> tuple[int, ...]:
    return tuple(token for event in events if isinstance(event, Step) for token in event.token_ids)


def text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Step | Finished))


def last(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, Finished) for event in events) == 1
    return events[-1]


def test_a_real_answer_from_question_to_end(engine: Engine):
    engine.forget()
    events = ask(engine, CAP.prompt_ids)
    assert [type(event) for event in events] == [Reading, Reading, *[Step] * 8, Finished]
    assert ids(events) == CAP.answer_ids
    assert text(events) == CAP_TEXT
    done = last(events)
    assert done.finish_reason == "stop"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (37, 8)
    assert (done.accepted.mean, done.accepted.min, done.accepted.max) == (1, 1, 1)
    assert 0 < done.timing.prefill_ms < done.timing.total_ms
    assert done.timing.total_ms == pytest.approx(done.timing.prefill_ms + done.timing.decode_ms)
    # the definition: average x time between first and last token = tokens after the first step
    made = done.usage.completion_tokens - 1
    assert done.speed.average * done.timing.decode_ms / 1000 == pytest.approx(made)
    assert done.speed.average > 0


def test_reading_tells_how_far_the_prompt_is(engine: Engine):
    engine.forget()
    prompt = counting(1, 60)
    events = [e for e in ask(engine, prompt, 1) if isinstance(e, Reading)]
    assert [e.done_tokens for e in events] == [0, 64, 128, 192, len(prompt)]
    assert {(e.total_tokens, e.cached_tokens) for e in events} == {(len(prompt), 0)}
    assert all(a.t_ms <= b.t_ms for a, b in zip(events, events[1:], strict=False))


TENS = (
    *counting(1, 10),
    SPACE,
    *(t for n in "2345" for t in (DIGIT_0 + int(n), DIGIT_0, COMMA, SPACE)),
)[:-1]
JUMP = (*counting(1, 80), SPACE, *counting(200, 203))


def following(*numbers: int) -> tuple[int, ...]:
    return tuple(
        token
        for number in numbers
        for token in (SPACE, *(DIGIT_0 + int(digit) for digit in str(number)), COMMA)
    )[:8]


def test_turns_of_one_lease_share_only_what_is_equal_and_computed(engine: Engine):
    engine.forget()

    def turn(prompt: tuple[int, ...], answer: tuple[int, ...]) -> int:
        events = ask(engine, prompt, 8)
        assert ids(events) == answer
        return last(events).usage.cached_tokens

    assert turn(COUNT.prompt_ids, COUNT.answer_ids[:8]) == 0
    assert turn(COUNT.prompt_ids, COUNT.answer_ids[:8]) == 53
    assert turn(counting(1, 20), following(21, 22)) <= 69
    assert turn(counting(1, 10), following(11, 12)) == 29
    assert turn(TENS, following(60, 70)) <= 31
    assert turn(counting(1, 100), following(101, 102)) <= 31
    assert turn(JUMP, following(204, 205)) <= 311

    cancel, computed = threading.Event(), 0
    long = counting(1, 200)
    for event in engine.generate(GenerateRequest(long, 8, GREEDY), cancel):
        if isinstance(event, Reading) and event.done_tokens >= 500:
            cancel.set()
            computed = event.done_tokens
        if isinstance(event, Finished):
            assert event.finish_reason == "cancelled"
            assert event.usage.completion_tokens == 0
    assert 500 <= computed < len(long)

    assert turn(long, following(201, 202)) == computed
    engine.forget()
    assert turn(JUMP, following(204, 205)) == 0


def test_the_same_seed_gives_the_same_answer_and_another_one_another(engine: Engine):
    def answer(seed: int) -> tuple[int, ...]:
        engine.forget()
        return ids(ask(engine, CAP.prompt_ids, 12, sampling=SamplingParams(seed=seed)))

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


@pytest.mark.parametrize(
    ("stop", "max_tokens", "expected", "reason"),
    [
        (("19, 2",), 40, " 17, 18, ", "stop"),
        (("20, 3",), 14, " 17, 18, 19, 2", "length"),
        ((",",), 40, " 17", "stop"),
        (("17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27",), 40, COUNT_TEXT, "length"),
        (("18", "17, 18, 1"), 40, " 17, ", "stop"),
    ],
)
def test_stop_texts_over_token_borders(smollm2_card, stop, max_tokens, expected, reason):
    engine, _ = scripted(smollm2_card, COUNT.answer_ids)
    events = ask(engine, max_tokens=max_tokens, stop=stop)
    assert text(events) == expected
    assert last(events).finish_reason == reason


@pytest.mark.parametrize(
    ("max_tokens", "reason", "tokens"), [(12, "stop", 11), (11, "stop", 11), (10, "length", 10)]
)
def test_a_stop_token_at_the_limit_is_a_stop(smollm2_card, max_tokens, reason, tokens):
    engine, _ = scripted(smollm2_card, [*COUNT.answer_ids[:10], END, *COUNT.answer_ids])
    events = ask(engine, max_tokens=max_tokens)
    assert text(events) == " 17, 18, 1"
    assert last(events).finish_reason == reason
    assert last(events).usage.completion_tokens == tokens == len(ids(events))


def test_a_character_cut_by_the_limit_is_left_out(smollm2_card):
    engine, _ = scripted(smollm2_card, [10813, 230, 131, 17])
    assert text(ask(engine, max_tokens=4)) == "\U0001f336!"
    engine, _ = scripted(smollm2_card, [10813, 230, 131, 17])
    assert text(ask(engine, max_tokens=2)) == ""


def test_the_context_ends_an_answer(smollm2_card):
    card = replace(smollm2_card, context_tokens=60)
    engine, _ = scripted(card, COUNT.answer_ids)
    done = last(ask(engine, max_tokens=40))
    assert (done.finish_reason, done.usage.completion_tokens) == ("length", 6)


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(smollm2_card):
    engine, model = scripted(replace(smollm2_card, context_tokens=54), COUNT.answer_ids)
    with pytest.raises(PromptTooLongError, match=r"54 tokens.*54"):
        ask(engine)
    assert model.passes == []
    assert last(ask(engine, COUNT.prompt_ids[:50], 1)).usage.prompt_tokens == 50


@pytest.mark.parametrize("prompt", [(), (-1, 5), (5, 10**9)])
def test_prompts_that_are_no_tokens_are_refused(smollm2_card, prompt):
    engine, _ = scripted(smollm2_card, COUNT.answer_ids)
    with pytest.raises(EngineError, match="prompt"):
        ask(engine, prompt)
    assert last(ask(engine, max_tokens=2)).usage.completion_tokens == 2


def test_cancel_between_steps_keeps_what_was_made(smollm2_card):
    engine, model = scripted(smollm2_card, COUNT.answer_ids)
    cancel, events = threading.Event(), []
    for event in engine.generate(GenerateRequest(COUNT.prompt_ids, 40, GREEDY), cancel):
        events.append(event)
        if len(ids(events)) == 5:
            cancel.set()
    assert ids(events) == COUNT.answer_ids[:5]
    assert last(events).finish_reason == "cancelled"
    assert model.passes == [16, 16, 16, 6, 1, 1, 1, 1]


class ScriptedWriter(ScriptedModel):
    """Chooses its tokens itself, as the GPU level does, and goes on behind any end."""

    def write(
        self, hidden: torch.Tensor, cache: KvCache, sampling: SamplingParams, most: int
    ) -> Generator[int, None, None]:
        self.asked = most
        for _ in range(most):
            token = int(self.logits(hidden).argmax())
            yield token
            hidden = self.decode((token,), cache)


@pytest.mark.parametrize("wanted", [3, 20])
def test_a_model_that_writes_itself_is_stopped_like_any_other(smollm2_card, wanted: int):
    vocabulary = Tokenizer.from_card(smollm2_card).vocab_size
    script = (*COUNT.answer_ids[:5], END, *COUNT.answer_ids)
    model = ScriptedWriter(script, vocabulary, len(COUNT.prompt_ids), smollm2_card.context_tokens)
    events = ask(Engine(model, smollm2_card, 64), max_tokens=wanted)
    assert ids(events) == script[: min(wanted, 6)]
    assert last(events).finish_reason == ("length" if wanted == 3 else "stop")
    assert model.asked == wanted
    assert model.passes == [len(COUNT.prompt_ids), *[1] * (min(wanted, 6) - 1)]


def test_cancel_before_the_first_chunk_computes_nothing(smollm2_card):
    engine, model = scripted(smollm2_card, COUNT.answer_ids)
    cancel = threading.Event()
    cancel.set()
    events = list(engine.generate(GenerateRequest(COUNT.prompt_ids, 40, GREEDY), cancel))
    assert [type(event) for event in events] == [Reading, Finished]
    assert last(events).usage.completion_tokens == 0
    assert model.passes == []


def test_a_second_request_is_refused_while_one_runs_and_an_abandoned_one_frees_the_engine(
    smollm2_card,
):
    engine, _ = scripted(smollm2_card, COUNT.answer_ids)
    first = engine.generate(GenerateRequest(COUNT.prompt_ids, 40, GREEDY), threading.Event())
    next(first)
    with pytest.raises(EngineError, match="one request at a time"):
        ask(engine)
    with pytest.raises(EngineError, match="one request at a time"):
        engine.forget()
    first.close()
    assert text(ask(engine)) == COUNT_TEXT


def test_no_memory_in_the_middle_is_named_and_the_next_caller_is_served(smollm2_card):
    engine, model = scripted(smollm2_card, COUNT.answer_ids)

    def fail_at_the_third_chunk(length: int) -> None:
        if length == 32:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")

    model.before_pass = fail_at_the_third_chunk
    with pytest.raises(OutOfMemoryError, match="no memory left"):
        ask(engine)
    model.before_pass = lambda _length: None
    events = ask(engine)
    assert last(events).usage.cached_tokens == 32
    assert text(events) == COUNT_TEXT


def test_a_suspended_answer_leaves_the_caller_s_torch_mode_alone(smollm2_card):
    engine, _ = scripted(smollm2_card, COUNT.answer_ids)
    events = engine.generate(GenerateRequest(COUNT.prompt_ids, 3, GREEDY), threading.Event())
    for _ in events:
        assert not torch.is_inference_mode_enabled()


def test_a_closed_engine_says_so(smollm2_card):
    engine, model = scripted(smollm2_card, COUNT.answer_ids)
    engine.close()
    engine.close()
    assert model.closed
    with pytest.raises(EngineError, match="closed"):
        ask(engine)


def test_load_shortens_the_context_and_never_lengthens_it(smollm2_path: Path):
    engine = Engine.load(smollm2_path, threads=1, context_tokens=100, name="small")
    assert (engine.card.name, engine.card.context_tokens) == ("small", 100)
    engine.close()


@pytest.mark.parametrize("level", ["int4", "native"])
def test_the_numerics_label_names_file_and_level(smollm2_path: Path, level: str):
    if level == "native":
        native_or_skip()
    engine = Engine.load(smollm2_path, threads=1, context_tokens=100, level=level)
    assert engine.card.numerics.startswith(f"b179c9523d0e6a0f/{level}")
    engine.close()


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ModelFileError, match="no model file"):
        Engine.load(tmp_path / "none.gguf")
