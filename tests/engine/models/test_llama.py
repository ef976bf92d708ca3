"""The llama architecture: against the references of a real file and a naive twin of tiny ones."""

from __future__ import annotations

import pytest
import torch

from engine.models import best_level, load_model
from engine.weights.gguf import GgufFile
from tests.engine.references import CAP, COUNT, FIB, Reference


@torch.inference_mode()
def greedy(file: GgufFile, level: str, reference: Reference) -> tuple[int, ...]:
    model = load_model(file, level)
    cache = model.new_cache()
    hidden = model.prefill(reference.prompt_ids, cache)
    answer: list[int] = []
    while len(answer) < len(reference.answer_ids):
        answer.append(int(model.logits(hidden).argmax()))
        hidden = model.decode(answer[-1:], cache)
    return tuple(answer)


@pytest.mark.parametrize("reference", [COUNT, FIB, CAP], ids=["count", "fib", "cap"])
def test_default_level_gives_the_reference_answers(smollm2: GgufFile, reference: Reference):
    assert best_level(smollm2) == "int4"
    assert greedy(smollm2, "int4", reference) == reference.answer_ids
