"""What a request asks of the choice and of the end, through the whole engine, with drafts and without."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache import KvCache
from engine.engine import Engine
from engine.speculation.director import Director
from engine.types import Event, Finished, GenerateRequest, ModelCard, SamplingParams, Step
from tests.engine.references import COMMA, COUNT, DIGIT_0, SPACE
from tests.engine.scripted_model import ScriptedModel
from tests.engine.speculation.paces import Bold
from tests.engine.speculation.test_loop import Prophet, stage

GREEDY = SamplingParams(temperature=0)
END = 2


def ask(
    engine: Engine,
    max_tokens: int,
    sampling: SamplingParams,
    stop: tuple[str, ...] = (),
    resume: Sequence[int] = (),
) -> list[Event]:
    request = GenerateRequest(COUNT.prompt_ids, max_tokens, sampling, stop, tuple(resume))
    return list(engine.generate(request, threading.Event()))


def ids(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Step) for token in event.token_ids]


def text(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Step | Finished))


def last(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> Iterator[Engine]:
    """With a drafter that believes in plain counting, where the level can check drafts."""
    engine = Engine.load(smollm2_path, threads=1, level="int8", context_tokens=512)
    director = Director([Prophetic(COUNT.answer_ids)], Bold())
    yield Engine(engine.model, engine.card, 64, director)
    engine.close()


class Prophetic(Prophet):
    """Compares no hidden states: the model is a real one."""

    def extend(self, token_ids: Sequence[int], hidden: torch.Tensor) -> None:
        self.answer += token_ids


def plain(engine: Engine) -> Engine:
    return Engine(engine.model, engine.card, 64)


@pytest.mark.parametrize("speculate", [True, False])
def test_bias_and_penalties_reach_every_token_of_a_step(real: Engine, speculate: bool):
    """sglang 8734, vllm 26317."""
    engine = real if speculate else plain(real)
    biased = ids(ask(engine, 24, replace(GREEDY, logit_bias=((33, -100.0),))))
    assert biased[:6] == [SPACE, 34, 32, COMMA, SPACE, 34]
    assert 33 not in biased
    penalised = ids(ask(engine, 11, replace(GREEDY, frequency_penalty=2.0)))
    assert penalised == [SPACE, 33, 39, COMMA, SPACE, 33, 40, COMMA, SPACE, 34, 32]


WARM = SamplingParams(
    temperature=0.9, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3,
    frequency_penalty=0.2, logit_bias=((33, 1.5),), min_tokens=12, seed=5, top_logprobs=2,
)  # fmt: skip


def test_an_answer_that_moves_goes_on_by_the_counts_it_had(real: Engine):
    engine = plain(real)
    engine.forget()
    whole = ask(engine, 16, WARM)
    drafted = ask(real, 16, WARM)
    assert ids(drafted) == ids(whole)
    for cut in (1, 7, 15):
        rest = ask(engine, 16, WARM, resume=ids(whole)[:cut])
        assert ids(whole)[:cut] + ids(rest) == ids(whole)
        assert told(rest) == pytest.approx(told(whole)[cut:], abs=1e-3)


def told(events: Sequence[Event]) -> list[float]:
    return [one.logprob for event in events if isinstance(event, Step) for one in event.logprobs]


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
def test_every_token_has_its_logprobs(smollm2_card: ModelCard, depth: int):
    engine, _, _ = stage(smollm2_card, COUNT.answer_ids, depth)
    events = ask(engine, 13, replace(GREEDY, top_logprobs=3))
    for event in events:
        if isinstance(event, Step):
            assert len(event.logprobs) == len(event.token_ids)
            for token_id, one in zip(event.token_ids, event.logprobs, strict=True):
                assert one.top[0] == (token_id, one.logprob)
                assert [i for i, _ in one.top[1:]] == [0, 1]
    assert len(told(events)) == 13
    assert told(ask(engine, 3, GREEDY)) == []
    assert len(told(ask(engine, 3, replace(GREEDY, top_logprobs=0)))) == 3


@pytest.mark.parametrize("depth", [0, *range(1, 9)])
@pytest.mark.parametrize(
    ("most", "reason", "tokens"), [(12, "stop", 11), (11, "stop", 11), (10, "length", 10)]
)
def test_a_stop_token_of_the_request_ends_inside_a_step(
    smollm2_card: ModelCard, depth: int, most: int, reason: str, tokens: int
):
    """sglang 31599: the digit 9 is the eleventh token."""
    engine, _, _ = stage(smollm2_card, COUNT.answer_ids, depth)
    events = ask(engine, most, replace(GREEDY, stop_token_ids=(DIGIT_0 + 9,)))
    assert (text(events), last(events).finish_reason) == (" 17, 18, 1", reason)
    assert last(events).usage.completion_tokens == tokens == len(ids(events))


@pytest.mark.parametrize("depth", [0, 3])
def test_the_model_s_own_end_can_be_ignored(smollm2_card: ModelCard, depth: int):
    script = [*COUNT.answer_ids[:5], END, *COUNT.answer_ids[5:]]
    engine, _, _ = stage(smollm2_card, script, depth)
    events = ask(engine, 9, replace(GREEDY, ignore_eos=True))
    assert (ids(events), last(events).finish_reason) == (script[:9], "length")
    assert text(events) == " 17, 18,"
    stopped = ask(engine, 9, replace(GREEDY, ignore_eos=True, stop_token_ids=(END,)))
    assert (text(stopped), last(stopped).finish_reason) == (" 17, ", "stop")


@pytest.mark.parametrize("depth", [0, 3])
def test_nothing_ends_an_answer_before_its_least_length(smollm2_card: ModelCard, depth: int):
    engine, _, _ = stage(smollm2_card, [*COUNT.answer_ids[:5], END, *COUNT.answer_ids[5:]], depth)
    events = ask(engine, 9, replace(GREEDY, min_tokens=5))
    assert (len(ids(events)), last(events).finish_reason) == (6, "stop")
    longer = ask(engine, 9, replace(GREEDY, min_tokens=6))
    assert (len(ids(longer)), last(longer).finish_reason) == (9, "length")
    assert END not in ids(longer)
    # a stop text within the least length ends nothing; one behind it does
    texts = ask(engine, 9, replace(GREEDY, min_tokens=4), (",", "8"))
    assert (text(texts), last(texts).finish_reason) == (" 17, ", "stop")


class Writing(ScriptedModel):
    """Would choose by itself, as the GPU level does, and must not where it cannot do what is asked."""

    def write(self, hidden: torch.Tensor, cache: KvCache, sampling: SamplingParams, most: int):
        for _ in range(most):
            yield DIGIT_0


@pytest.mark.parametrize(
    "wish",
    [
        {"repetition_penalty": 1.0001},
        {"presence_penalty": 0.001},
        {"frequency_penalty": 0.001},
        {"logit_bias": ((5, 0.5),)},
        {"min_tokens": 2},
        {"top_logprobs": 0},
    ],
    ids=str,
)
def test_no_wish_is_ignored_by_a_model_that_chooses_itself(
    smollm2_card: ModelCard, wish: dict[str, Any]
):
    model = Writing(COUNT.answer_ids, 49152, len(COUNT.prompt_ids))
    engine = Engine(model, smollm2_card, 64)
    assert ids(ask(engine, 3, GREEDY)) == [DIGIT_0] * 3
    assert ids(ask(engine, 3, replace(GREEDY, **wish))) == list(COUNT.answer_ids[:3])
