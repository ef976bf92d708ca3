"""The llama architecture: against the references of a real file and a naive twin of tiny ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from engine import models
from engine.kernels.cpu.native.build import NativeUnavailableError
from engine.models import best_level, load_model
from engine.models.llama import Llama
from engine.types import ModelFileError
from engine.weights.gguf_checkpoint import GgufCheckpoint
from tests.engine.references import CAP, COUNT, FIB, Reference
from tests.engine.tiny_llama import TinyLlama

# float32 against float64 on logits of about 1
TOLERANCE = 5e-5


@torch.inference_mode()
def greedy(model: Llama, reference: Reference) -> tuple[int, ...]:
    cache = model.new_cache()
    hidden = model.prefill(reference.prompt_ids, cache)
    answer: list[int] = []
    while len(answer) < len(reference.answer_ids):
        answer.append(int(model.logits(hidden).argmax()))
        hidden = model.decode(answer[-1:], cache)
    return tuple(answer)


@torch.inference_mode()
def all_logits(model: Llama, token_ids: list[int], prefilled: int) -> np.ndarray:
    """Logits behind each token from `prefilled` - 1 on; the rest goes through the decode path."""
    cache = model.new_cache()
    rows = [model.logits(model.prefill(token_ids[:prefilled], cache))]
    rows += [model.logits(model.decode([token], cache)) for token in token_ids[prefilled:]]
    return torch.cat(rows).numpy()


@pytest.fixture(scope="module")
def by_level(smollm2: GgufCheckpoint) -> dict[str, Llama]:
    return {level: Llama(smollm2, level) for level in ("int4", "int8")}


@pytest.mark.parametrize("reference", [COUNT, FIB, CAP], ids=["count", "fib", "cap"])
def test_4_bit_level_gives_the_reference_answers(by_level: dict[str, Llama], reference: Reference):
    assert greedy(by_level["int4"], reference) == reference.answer_ids


@pytest.mark.parametrize("reference", [COUNT, CAP], ids=["count", "cap"])
def test_8_bit_level_gives_the_answers_without_the_closest_tie(
    by_level: dict[str, Llama], reference: Reference
):
    assert greedy(by_level["int8"], reference) == reference.answer_ids


@pytest.mark.parametrize("reference", [FIB, CAP], ids=["fib", "cap"])
def test_float32_level_has_the_reference_s_own_gaps(smollm2: GgufCheckpoint, reference: Reference):
    model = Llama(smollm2, "fp32")
    with torch.inference_mode():
        (logits,) = model.logits(model.prefill(reference.prompt_ids, model.new_cache()))
        best = logits.topk(2).values
    expected = {FIB: 0.07, CAP: 0.09}[reference]
    assert float(best[0] - best[1]) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("prefilled", [1, 5, 39, 40])
@pytest.mark.parametrize("tied", [True, False])
def test_a_tiny_model_equals_its_naive_twin(tmp_path: Path, prefilled: int, tied: bool):
    tiny = TinyLlama(tied=tied)
    model = Llama(GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf")), "fp32")
    token_ids = np.random.default_rng(1).integers(0, tiny.vocabulary, 40).tolist()
    expected = tiny.logits(token_ids)[prefilled - 1 :]
    assert np.abs(all_logits(model, token_ids, prefilled) - expected).max() < TOLERANCE


def test_a_prompt_in_chunks_equals_the_prompt_in_one(tmp_path: Path):
    tiny = TinyLlama()
    model = Llama(GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf")), "fp32")
    token_ids = np.random.default_rng(2).integers(0, tiny.vocabulary, 40).tolist()
    cache = model.new_cache()
    with torch.inference_mode():
        for start in range(0, 35, 7):
            model.prefill(token_ids[start : start + 7], cache)
        hidden = model.prefill(token_ids[35:], cache)
        logits = model.logits(hidden).numpy()
    assert np.abs(logits - tiny.logits(token_ids)[-1]).max() < TOLERANCE


def llama3_factors(head_width: int, base: float) -> np.ndarray:
    """Llama 3's rule: long waves divided by 32, short ones kept, a linear blend in between."""
    factor, low, high, original = 32.0, 1.0, 4.0, 8192
    factors = []
    for i in range(head_width // 2):
        frequency = base ** (-2 * i / head_width)
        turns = original * frequency / (2 * math.pi)
        blend = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - blend) / factor + blend))
    return np.array(factors, dtype=np.float32)


def test_rope_factors_of_the_file_are_followed_near_and_far(tmp_path: Path):
    factors = llama3_factors(64, 5e5)
    assert factors[:15].tolist() == [1.0] * 15
    assert factors[15:18].tolist() == pytest.approx([1.6513, 3.2923, 9.6667], abs=1e-4)
    assert factors[18:].tolist() == [32.0] * 14
    tiny = TinyLlama(
        layers=1, heads=1, kv_heads=1, head_width=64, rope_base=5e5, rope_factors=factors
    )
    model = Llama(GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf")), "fp32")
    token_ids = np.random.default_rng(3).integers(0, tiny.vocabulary, 4064).tolist()
    near = all_logits(model, token_ids[:64], 1)
    assert np.abs(near - tiny.logits(token_ids[:64])).max() < TOLERANCE
    far = all_logits(model, token_ids, 4001)
    # The last bit of a float32 frequency, which libraries round differently, is 2e-4 rad at 4000.
    assert np.abs(far - tiny.logits(token_ids, last=64)).max() < 4 * TOLERANCE


def test_the_factors_matter_as_much_as_the_test_says(tmp_path: Path):
    tiny = TinyLlama(layers=1, heads=1, kv_heads=1, head_width=64, rope_base=5e5)
    model = Llama(GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf")), "fp32")
    tiny.rope_factors = llama3_factors(64, 5e5)
    token_ids = np.random.default_rng(3).integers(0, tiny.vocabulary, 64).tolist()
    assert np.abs(all_logits(model, token_ids, 1) - tiny.logits(token_ids)).max() > 20 * TOLERANCE


def test_decode_rows_do_not_depend_on_how_many_share_the_pass(by_level: dict[str, Llama]):
    tokens = COUNT.answer_ids[:6]
    for model in by_level.values():
        with torch.inference_mode():
            alone = model.new_cache()
            model.prefill(COUNT.prompt_ids, alone)
            one_by_one = torch.cat([model.decode([token], alone) for token in tokens])
            for rows in (2, 3, 6):
                cache = model.new_cache()
                model.prefill(COUNT.prompt_ids, cache)
                together = [
                    model.decode(tokens[start : start + rows], cache) for start in range(0, 6, rows)
                ]
                assert torch.equal(torch.cat(together), one_by_one)


def test_results_do_not_depend_on_the_number_of_threads(by_level: dict[str, Llama]):
    def states() -> torch.Tensor:
        cache = by_level["int4"].new_cache()
        read = by_level["int4"].prefill(COUNT.prompt_ids, cache)
        return torch.cat([read, by_level["int4"].decode(COUNT.answer_ids[:1], cache)])

    before = torch.get_num_threads()
    try:
        with torch.inference_mode():
            torch.set_num_threads(1)
            one = states()
            torch.set_num_threads(2)
            assert torch.equal(states(), one)
    finally:
        torch.set_num_threads(before)


def test_an_unknown_architecture_is_named_with_the_known_ones(tmp_path: Path):
    file = GgufCheckpoint.open(
        TinyLlama(layers=1).write(tmp_path / "tiny.gguf", architecture="mamba")
    )
    with pytest.raises(ModelFileError, match=r"'mamba'.*llama"):
        load_model(file, "fp32")


def test_sizes_that_contradict_the_tensors_are_refused(tmp_path: Path):
    tiny = TinyLlama(layers=1)
    tiny.weights["blk.0.attn_k"] = tiny.weights["blk.0.attn_k"][:-16]
    file = GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf"))
    with pytest.raises(ModelFileError, match=r"k_proj\.weight"):
        load_model(file, "fp32")


def test_a_missing_tensor_is_named(tmp_path: Path):
    tiny = TinyLlama(layers=1)
    del tiny.weights["blk.0.ffn_down"]
    file = GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf"))
    with pytest.raises(ModelFileError, match=r"down_proj\.weight"):
        load_model(file, "fp32")


def test_a_level_that_does_not_exist_is_refused(smollm2: GgufCheckpoint):
    with pytest.raises(ValueError, match="int4"):
        load_model(smollm2, "int2")


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> str:
        raise NativeUnavailableError("There is no C++ compiler.")

    monkeypatch.setattr(models, "native_instructions", unavailable)


def test_the_native_level_is_chosen_where_its_instructions_are(
    smollm2: GgufCheckpoint, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(models, "native_instructions", lambda: "avx512-vnni")
    assert best_level(smollm2) == "native"
    monkeypatch.setattr(models, "native_instructions", lambda: "portable")
    assert best_level(smollm2) == "int4"


def test_without_a_compiler_a_4_bit_file_gets_the_packed_products_and_the_log_says_why(
    smollm2: GgufCheckpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    without_compiler(monkeypatch)
    assert best_level(smollm2) == "int4"
    assert "no C++ compiler" in caplog.text


def test_a_file_of_finer_weights_is_not_squeezed_into_4_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    without_compiler(monkeypatch)
    assert (
        best_level(GgufCheckpoint.open(TinyLlama(layers=1).write(tmp_path / "tiny.gguf"))) == "int8"
    )
