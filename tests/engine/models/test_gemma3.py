"""The real Gemma 3 270M against the references, and as a model that can be talked to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.engine import Engine
from engine.models import load_model
from engine.tokenizer import Tokenizer
from engine.types import Finished, GenerateRequest, SamplingParams, Step
from engine.weights.gguf_checkpoint import GgufCheckpoint
from tests.engine.references import FRANCE, GEMMA_FIB, LILY, Reference

CONTEXT_TOKENS = 256


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a machine with other work torch's threads wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@torch.inference_mode()
def greedy(gemma: GgufCheckpoint, level: str, *references: Reference) -> list[tuple[int, ...]]:
    model = load_model(gemma, level, CONTEXT_TOKENS)
    answers: list[tuple[int, ...]] = []
    for reference in references:
        cache = model.new_cache()
        hidden = model.prefill(reference.prompt_ids, cache)
        answer: list[int] = []
        while len(answer) < len(reference.answer_ids):
            answer.append(int(model.logits(hidden).argmax()))
            hidden = model.decode(answer[-1:], cache)
        answers.append(tuple(answer))
    model.close()
    return answers


def test_float32_gives_every_reference_answer(gemma: GgufCheckpoint):
    references = (FRANCE, LILY, GEMMA_FIB)
    assert greedy(gemma, "fp32", *references) == [r.answer_ids for r in references]


def test_8_bits_give_the_answer_without_close_ties(gemma: GgufCheckpoint):
    assert greedy(gemma, "int8", GEMMA_FIB) == [GEMMA_FIB.answer_ids]


def test_the_file_is_served_as_it_is(gemma_path: Path):
    engine = Engine.load(gemma_path, level="int8", device="cpu", context_tokens=CONTEXT_TOKENS)
    try:
        request = GenerateRequest(GEMMA_FIB.prompt_ids, 8, SamplingParams(temperature=0))
        steps = engine.generate(request, threading.Event())
        text = "".join(step.text for step in steps if isinstance(step, Step | Finished))
        assert text == Tokenizer.from_card(engine.card).decode(GEMMA_FIB.answer_ids[:8])
        assert text.strip() == "if n == 0:"
    finally:
        engine.close()
