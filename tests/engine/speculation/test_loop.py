"""Drafts in the loop: what is right is kept, what is wrong leaves no trace, an end is an end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from torch import Tensor

from engine.engine import Engine
from engine.speculation.director import Director
from engine.tokenizer import Tokenizer
from engine.types import (
    Event,
    Finished,
    GenerateRequest,
    ModelCard,
    SamplingParams,
    Step,
)
from tests.engine.references import COUNT, COUNT_TEXT
from tests.engine.scripted_model import ScriptedModel
from tests.engine.speculation.paces import Bold

GREEDY = SamplingParams(temperature=0)
END, WRONG = 2, 5


class Prophet:
    """Knows the script; lies at the answer's tokens whose numbers are in `lies`."""

    def __init__(self, script: Sequence[int], lies: Sequence[int] = ()) -> None:
        self.script, self.lies = script, frozenset(lies)
        self.answer: list[int] = []
        self.asked: list[int] = []
        self.began: list[int] = []

    def begin(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> None:
        self.began.append(len(prompt_ids))
        self.answer = []

    def extend(self, token_ids: Sequence[int], hidden: Tensor) -> None:
        assert hidden.tolist() == [[len(self.answer) + i] for i in range(len(token_ids))]
        self.answer += token_ids

    def kind(self) -> str:
        return "prophecy"

    def propose(self, most: int) -> Sequence[int]:
        self.asked.append(most)
        at = len(self.answer)
        return [
            WRONG if at + i in self.lies else self.script[(at + i) % len(self.script)]
            for i in range(most)
        ]

    def forget(self) -> None:
        self.answer = []

    def close(self) -> None:
        pass


def stage(
    card: ModelCard, script: Sequence[int], depth: int, lies: Sequence[int] = ()
) -> tuple[Engine, ScriptedModel, Prophet]:
    vocabulary = Tokenizer.from_card(card).vocab_size
    model = ScriptedModel(script, vocabulary, len(COUNT.prompt_ids), card.context_tokens)
    model.pass_rows = 1 + depth
    prophet = Prophet(script, lies)
    return Engine(model, card, 64, Director([prophet], Bold())), model, prophet


def ask(
    engine: Engine, max_tokens: int = 40, stop: tuple[str, ...] = (), resume: Sequence[int] = ()
) -> list[Event]:
    request = GenerateRequest(COUNT.prompt_ids, max_tokens, GREEDY, stop, tuple(resume))
    return list(engine.generate(request, threading.Event()))


def steps(events: Sequence[Event]) -> list[tuple[int, ...]]:
    return [event.token_ids for event in events if isinstance(event, Step)]


def ids(events: Sequence[Event]) -> tuple[int, ...]:
    return tuple(token for step in steps(events) for token in step)


def text(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Step | Finished))


def last(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def test_drafts_that_are_right_come_in_one_step(smollm2_card: ModelCard):
    engine, model, _ = stage(smollm2_card, COUNT.answer_ids, 3)
    events = ask(engine, 13)
    assert ids(events) == COUNT.answer_ids[:13]
    assert [len(step) for step in steps(events)] == [1, 4, 4, 4]
    assert model.passes == [54, 4, 4, 4]
    assert last(events).accepted.mean == 13 / 4
    assert (last(events).accepted.min, last(events).accepted.max) == (1, 4)


def test_the_first_wrong_draft_ends_a_step_and_leaves_the_cache(smollm2_card: ModelCard):
    engine, model, prophet = stage(smollm2_card, COUNT.answer_ids, 3, lies=(3, 4, 9))
    events = ask(engine, 13)
    assert ids(events) == COUNT.answer_ids[:13]
    # draft number 3 is wrong: 1 and 2 are kept, and 3 comes from the row before it
    assert [len(step) for step in steps(events)] == [1, 3, 1, 4, 1, 3]
    assert engine._cache.tokens == (*COUNT.prompt_ids, *COUNT.answer_ids[:12])
    assert prophet.asked == [3, 3, 3, 3, 2]
    assert model.passes[-1] == 3


@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize(
    ("max_tokens", "reason", "tokens"), [(12, "stop", 11), (11, "stop", 11), (10, "length", 10)]
)
def test_an_end_inside_a_step_is_the_end(
    smollm2_card: ModelCard, depth: int, max_tokens: int, reason: str, tokens: int
):
    engine, _, _ = stage(
        smollm2_card, [*COUNT.answer_ids[:10], END, *COUNT.answer_ids, 20, 21, 22], depth
    )
    events = ask(engine, max_tokens)
    assert text(events) == " 17, 18, 1"
    assert last(events).finish_reason == reason
    assert last(events).usage.completion_tokens == tokens == len(ids(events))


@pytest.mark.parametrize("depth", [1, 3, 7])
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
def test_a_stop_text_inside_a_step_is_the_end(
    smollm2_card: ModelCard,
    depth: int,
    stop: tuple[str, ...],
    max_tokens: int,
    expected: str,
    reason: str,
):
    plain, _, _ = stage(smollm2_card, COUNT.answer_ids, 0)
    engine, _, _ = stage(smollm2_card, COUNT.answer_ids, depth)
    events = ask(engine, max_tokens, stop)
    assert (text(events), last(events).finish_reason) == (expected, reason)
    assert ids(events) == ids(ask(plain, max_tokens, stop))


def test_the_context_ends_an_answer_and_no_draft_goes_beyond_it(smollm2_card: ModelCard):
    card = replace(smollm2_card, context_tokens=60)
    engine, model, _ = stage(card, COUNT.answer_ids, 7)
    events = ask(engine)
    assert (last(events).finish_reason, len(ids(events))) == ("length", 6)
    assert sum(model.passes) <= 60


def test_cancel_is_looked_at_between_steps(smollm2_card: ModelCard):
    engine, model, _ = stage(smollm2_card, COUNT.answer_ids, 3)
    cancel, events = threading.Event(), []
    for event in engine.generate(GenerateRequest(COUNT.prompt_ids, 40, GREEDY), cancel):
        events.append(event)
        if len(ids(events)) == 5:
            cancel.set()
    assert ids(events) == COUNT.answer_ids[:5]
    assert last(events).finish_reason == "cancelled"
    assert model.passes == [54, 4]


def test_what_is_continued_is_told_to_the_drafter(smollm2_card: ModelCard):
    engine, _, prophet = stage(smollm2_card, COUNT.answer_ids, 3)
    events = ask(engine, 13, resume=COUNT.answer_ids[:6])
    assert ids(events) == COUNT.answer_ids[6:13]
    assert [len(step) for step in steps(events)] == [1, 4, 2]
    assert prophet.began == [54]


def test_a_model_that_cannot_share_a_pass_gets_no_drafts(smollm2_card: ModelCard):
    engine, _, prophet = stage(smollm2_card, COUNT.answer_ids, 0)
    assert ids(ask(engine, 5)) == COUNT.answer_ids[:5]
    assert prophet.asked == prophet.began == []


def test_the_next_seat_s_drafter_knows_nothing(smollm2_card: ModelCard):
    engine, _, prophet = stage(smollm2_card, COUNT.answer_ids, 3)
    ask(engine, 13)
    assert prophet.answer
    engine.forget()
    assert prophet.answer == []
