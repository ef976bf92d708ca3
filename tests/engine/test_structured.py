"""Answers that are held to a grammar, with and without drafts, thoughts and a second node."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.engine import Engine
from engine.grammar import ANY_OBJECT
from engine.matching import Grammars
from engine.speculation.director import Director
from engine.tokenizer import Tokenizer
from engine.types import (
    EngineError,
    Event,
    Finished,
    GenerateRequest,
    Grammar,
    GrammarError,
    ModelCard,
    SamplingParams,
    Step,
)
from tests.engine.references import CAP
from tests.engine.scripted_model import ScriptedModel
from tests.engine.speculation.paces import Bold
from tests.engine.speculation.test_loop import Prophet

DIGIT = Grammar(
    "json_schema",
    '{"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":9}},'
    '"required":["n"],"additionalProperties":false}',
)
ANSWER = Grammar(
    "json_schema",
    '{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"],'
    '"additionalProperties":false}',
)
PROMPT = (5, 6, 7)
BLANK = 216


class Wishful(ScriptedModel):
    """Wants the script, and where it may not have it, what comes first in `then`."""

    then: Sequence[int] = ()

    def logits(self, hidden: Tensor) -> Tensor:
        rows = super().logits(hidden) * 10
        for rank, token_id in enumerate(self.then):
            rows[:, token_id] += 5 - rank * 0.01
        return rows


def stage(
    card: ModelCard, text: str | Sequence[int], depth: int = 0, then: Sequence[int] = ()
) -> tuple[Engine, Tokenizer]:
    tokenizer = Tokenizer.from_card(card)
    script = tokenizer.encode(text) if isinstance(text, str) else list(text)
    model = Wishful([*script, card.stop_token_ids[0]], tokenizer.vocab_size, len(PROMPT))
    model.then, model.pass_rows = then, 1 + depth
    director = Director([Prophet(model.script)], Bold()) if depth else None
    return Engine(model, card, 64, director), tokenizer


def ask(
    engine: Engine,
    grammar: Grammar,
    resume: Sequence[int] = (),
    prompt: tuple[int, ...] = PROMPT,
    max_tokens: int = 60,
    **params: object,
) -> list[Event]:
    sampling = SamplingParams(**{"temperature": 0, "grammar": grammar} | params)  # type: ignore[arg-type]
    request = GenerateRequest(prompt, max_tokens, sampling, resume_ids=tuple(resume))
    return list(engine.generate(request, threading.Event()))


def ids(events: Sequence[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Step) for token in event.token_ids]


def text(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Step | Finished))


def last(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_the_answer_fits_and_ends_where_it_is_whole(smollm2_card: ModelCard, depth: int):
    engine, _ = stage(smollm2_card, '{"n": 7} and so on', depth)
    events = ask(engine, DIGIT)
    assert text(events) == '{"n": 7}'
    assert last(events).finish_reason == "stop"


@pytest.mark.parametrize("depth", [0, 3])
def test_what_does_not_fit_is_never_written(smollm2_card: ModelCard, depth: int):
    engine, _ = stage(smollm2_card, 'Sure! ```json {"m": 77}', depth)
    events = ask(engine, DIGIT)
    assert 0 <= json.loads(text(events))["n"] <= 9
    assert last(events).finish_reason == "stop"


def test_a_model_that_wants_blanks_gets_one(smollm2_path: Path):
    """vLLM 38696: legal white space up to max_tokens."""
    engine = Engine.load(smollm2_path, threads=1, context_tokens=512)
    try:
        for token_id in (BLANK, 198):
            events = ask(
                engine,
                DIGIT,
                prompt=CAP.prompt_ids,
                max_tokens=200,
                logit_bias=((token_id, 100.0),),
            )
            assert last(events).finish_reason == "stop"
            assert set(json.loads(text(events))) == {"n"}
            assert last(events).usage.completion_tokens <= 40
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("grammar", "wanted", "expected"),
    [
        (Grammar("regex", "(yes|no)"), "no way", "no"),
        (Grammar("regex", "[0-9]{4}"), "20267", "2026"),
        (Grammar("lark", 'start: "a" start | "b"'), "aaab", "aaab"),
        (Grammar("lark", 'root ::= "a" root | "b"'), "aaab", "aaab"),
        (ANY_OBJECT, '{"a": [1, {"b": null}]} x', '{"a": [1, {"b": null}]}'),
    ],
)
def test_every_kind_of_grammar(smollm2_card: ModelCard, grammar, wanted: str, expected: str):
    engine, _ = stage(smollm2_card, wanted)
    assert text(ask(engine, grammar)) == expected


def test_an_open_end_is_left_to_the_model(smollm2_card: ModelCard):
    engine, _ = stage(smollm2_card, "12")
    events = ask(engine, Grammar("regex", "[0-9]+"))
    assert (text(events), last(events).finish_reason) == ("12", "stop")
    engine, _ = stage(smollm2_card, "12")
    longer = ask(engine, Grammar("regex", "[0-9]+"), min_tokens=5, max_tokens=9)
    assert len(ids(longer)) >= 5
    assert text(longer).isdigit()


def test_a_whole_answer_ends_before_min_tokens(smollm2_card: ModelCard):
    engine, _ = stage(smollm2_card, "no")
    events = ask(engine, Grammar("regex", "no"), min_tokens=30, ignore_eos=True)
    assert (text(events), last(events).finish_reason) == ("no", "stop")


@settings(deadline=None, max_examples=25)
@given(which=st.integers(0, 2**32 - 1), depth=st.sampled_from([0, 2]))
def test_whatever_the_model_wants_and_wherever_it_moves_the_json_is_sound(
    smollm2_card: ModelCard, which: int, depth: int
):
    random = torch.Generator().manual_seed(which)
    script = torch.randint(3, 49000, (30,), generator=random).tolist()
    engine, _ = stage(smollm2_card, script, depth)
    params = {"temperature": 1.5, "seed": which, "max_tokens": 40}
    whole = ask(engine, DIGIT, **params)
    if last(whole).finish_reason == "stop":
        assert 0 <= json.loads(text(whole))["n"] <= 9
    written = ids(whole)
    for cut in range(1, len(written)):
        rest = ask(engine, DIGIT, written[:cut], **params)
        assert written[:cut] + ids(rest) == written
        assert text(whole).endswith(text(rest))


def test_tokens_that_the_grammar_forbids_are_not_continued(smollm2_card: ModelCard):
    engine, tokenizer = stage(smollm2_card, '{"n": 1}')
    with pytest.raises(EngineError, match="does not fit its grammar"):
        ask(engine, DIGIT, tokenizer.encode("Hello"))


def thinking(card: ModelCard) -> tuple[ModelCard, int, int]:
    """The card with two more marks, in the place of ids that nobody needs here."""
    marks = {"<think>": 10, "</think>": 11}
    return replace(card, special_tokens={**card.special_tokens, **marks}), 10, 11


@pytest.mark.parametrize("depth", [0, 1, 3, 7])
def test_thoughts_are_free_and_what_follows_is_not(smollm2_card: ModelCard, depth: int):
    """vLLM 34241 and 44012: neither JSON in the thoughts nor a fence behind them."""
    card, think, thought = thinking(smollm2_card)
    tokenizer = Tokenizer.from_card(card)
    script = [*tokenizer.encode("17-6=11"), thought, *tokenizer.encode('```json {"answer": "11"}')]
    engine, _ = stage(card, script, depth, then=tokenizer.encode('{"answer":"11"}'))
    events = ask(engine, ANSWER, prompt=(5, think, 7))
    written = ids(events)
    at = written.index(thought)
    assert tokenizer.decode(written[:at]) == "17-6=11"
    behind = tokenizer.decode(written[at + 1 :])
    assert behind.startswith("{")
    if last(events).finish_reason == "stop":
        assert set(json.loads(behind)) == {"answer"}
    constrained = ask(engine, ANSWER, prompt=(5, think, thought))
    assert text(constrained).startswith("{")


def test_thoughts_do_not_end_the_answer(smollm2_card: ModelCard):
    card, think, thought = thinking(smollm2_card)
    engine, tokenizer = stage(card, "12", then=(thought, *Tokenizer.from_card(card).encode("no")))
    events = ask(engine, Grammar("regex", "no"), prompt=(5, think))
    assert tokenizer.decode(ids(events)[-1:]) == "no"
    assert last(events).finish_reason == "stop"


def test_a_grammar_that_cannot_be_is_named_and_the_engine_stays(smollm2_card: ModelCard):
    engine, _ = stage(smollm2_card, "no")
    with pytest.raises(GrammarError, match="unclosed"):
        ask(engine, Grammar("regex", "("))
    with pytest.raises(GrammarError, match="cannot go on|cannot be used"):
        ask(engine, Grammar("regex", r"[^\s\S]"))
    assert text(ask(engine, Grammar("regex", "no"))) == "no"


def test_a_model_without_an_end_cannot_be_held(smollm2_tokenizer: Tokenizer):
    with pytest.raises(GrammarError, match="ends an answer"):
        Grammars(smollm2_tokenizer, ()).matcher(DIGIT)


def test_masks_beyond_the_time_limit_are_an_error(
    smollm2_card: ModelCard, monkeypatch: pytest.MonkeyPatch
):
    clock: Callable[[], float] = iter(range(0, 10_000, 5)).__next__
    engine, _ = stage(smollm2_card, "no")
    monkeypatch.setattr("engine.matching.time.perf_counter", clock)
    with pytest.raises(GrammarError, match="too hard"):
        ask(engine, Grammar("regex", "no"))
