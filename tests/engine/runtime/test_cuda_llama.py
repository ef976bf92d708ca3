"""The GPU level through the engine, on a real device and the real demo model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.types import Finished, GenerateRequest, SamplingParams, Step
from tests.engine.device_step import needs_gpu, needs_triton
from tests.engine.references import CAP, CAP_TEXT, COUNT, COUNT_TEXT, Reference

pytestmark = [pytest.mark.gpu, needs_gpu, needs_triton]
GREEDY = SamplingParams(temperature=0)
DRAWN = SamplingParams(temperature=0.8, top_p=0.9, top_k=50, seed=11)


@pytest.fixture(scope="module")
def engine(smollm2_path: Path) -> Iterator[Engine]:
    loaded = Engine.load(smollm2_path, context_tokens=2048)
    yield loaded
    loaded.close()


def ask(
    engine: Engine, prompt: Sequence[int], most: int = 40, sampling: SamplingParams = GREEDY
) -> tuple[tuple[int, ...], str, Finished]:
    events = list(
        engine.generate(GenerateRequest(tuple(prompt), most, sampling), threading.Event())
    )
    steps = [event for event in events if isinstance(event, Step)]
    done = events[-1]
    assert isinstance(done, Finished)
    text = "".join(step.text for step in steps) + done.text
    return tuple(t for step in steps for t in step.token_ids), text, done


def test_auto_takes_the_gpu_and_the_label_names_it(engine: Engine):
    assert "/cuda-bf16/NVIDIA" in engine.card.numerics


@pytest.mark.parametrize(
    ("reference", "text"), [(COUNT, COUNT_TEXT), (CAP, CAP_TEXT)], ids=["count", "cap"]
)
def test_the_reference_answers(engine: Engine, reference: Reference, text: str):
    engine.forget()
    ids, said, done = ask(engine, reference.prompt_ids)
    assert ids == reference.answer_ids[: len(ids)]
    assert (said, done.finish_reason) == (text, "stop" if reference is CAP else "length")


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_the_same_question_gives_the_same_text_whatever_stood_there_before(
    engine: Engine, sampling: SamplingParams
):
    engine.forget()
    first = ask(engine, CAP.prompt_ids[:-3], 200, sampling)[0]
    for between in (COUNT.prompt_ids, CAP.prompt_ids):
        ask(engine, between, 33, DRAWN)
        engine.forget()
        assert ask(engine, CAP.prompt_ids[:-3], 200, sampling)[0] == first


def test_a_cancelled_answer_leaves_nothing_in_the_next_one(engine: Engine):
    engine.forget()
    cancel = threading.Event()
    steps = 0
    for event in engine.generate(GenerateRequest(COUNT.prompt_ids, 500, DRAWN), cancel):
        steps += isinstance(event, Step)
        if steps == 7:
            cancel.set()
    assert steps == 7
    assert ask(engine, COUNT.prompt_ids)[1] == COUNT_TEXT


def test_a_second_turn_reads_only_what_is_new(engine: Engine):
    engine.forget()
    ids = ask(engine, COUNT.prompt_ids)[0]
    longer = (*COUNT.prompt_ids, *ids, *COUNT.answer_ids[:4])
    assert ask(engine, longer, 4)[2].usage.cached_tokens == len(COUNT.prompt_ids) + len(ids) - 1
