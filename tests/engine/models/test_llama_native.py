"""The native level: the same model as the other levels, whatever the threads do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels.cpu.native.build import NativeUnavailableError
from engine.models import Model, best_level, load_model
from engine.models.llama import Llama
from engine.models.llama_native import NativeLlama
from engine.weights.gguf_checkpoint import GgufCheckpoint
from tests.engine.native import native_or_skip
from tests.engine.references import CAP, COUNT, FIB, Reference
from tests.engine.tiny_llama import TinyLlama


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    native_or_skip()


def native(file: GgufCheckpoint, context_tokens: int | None = None) -> NativeLlama:
    model = load_model(file, "native", context_tokens)
    assert isinstance(model, NativeLlama)
    return model


@pytest.fixture(scope="module")
def smol(smollm2: GgufCheckpoint) -> Iterator[NativeLlama]:
    model = native(smollm2)
    yield model
    model.close()


def rounded(tiny: TinyLlama, path: Path) -> GgufCheckpoint:
    """The tiny model with its matrices rounded to what Q8_0 keeps, so that both sides have the same."""
    for name, weight in tiny.weights.items():
        if weight.ndim == 2:
            groups = weight.reshape(len(weight), -1, 32)
            scale = np.float32(2) ** np.ceil(np.log2(np.abs(groups).max(-1, keepdims=True) / 127))
            codes = np.rint(groups / scale)
            codes[..., 0] = 127  # the largest of each group is what its scale is found by
            tiny.weights[name] = (codes * scale).reshape(weight.shape)
    return GgufCheckpoint.open(tiny.write(path))


@torch.inference_mode()
def decoded(model: Model, token_ids: list[int], prefilled: int = 1) -> Tensor:
    """Logits behind each token from `prefilled` - 1 on; all but the prefilled by decode."""
    cache = model.new_cache()
    rows = [model.logits(model.prefill(token_ids[:prefilled], cache))]
    rows += [model.logits(model.decode([token], cache)) for token in token_ids[prefilled:]]
    return torch.cat(rows)


@torch.inference_mode()
def greedy(model: Model, reference: Reference) -> tuple[int, ...]:
    cache = model.new_cache()
    hidden = model.prefill(reference.prompt_ids, cache)
    answer: list[int] = []
    while len(answer) < len(reference.answer_ids):
        answer.append(int(model.logits(hidden).argmax()))
        hidden = model.decode(answer[-1:], cache)
    return tuple(answer)


@pytest.mark.parametrize("reference", [COUNT, FIB, CAP], ids=["count", "fib", "cap"])
def test_it_gives_the_reference_answers(smol: NativeLlama, reference: Reference):
    assert greedy(smol, reference) == reference.answer_ids


def test_logits_of_the_real_file_are_those_of_float32(smollm2: GgufCheckpoint, smol: NativeLlama):
    token_ids = [*COUNT.prompt_ids[:20]]
    exact = Llama(smollm2, "fp32")
    with torch.inference_mode():
        cache, other = exact.new_cache(), smol.new_cache()
        for token in token_ids:
            expected = exact.logits(exact.decode([token], cache))
            actual = smol.logits(smol.decode([token], other))
            # logits up to 30; 16-bit activations leave a thousandth of that, 8-bit ones a tenth
            assert float((actual - expected).abs().max()) < 0.05


SHAPES = [
    TinyLlama(),
    TinyLlama(tied=False, vocabulary=77),
    TinyLlama(layers=1, heads=16, kv_heads=16, head_width=2),
    TinyLlama(layers=2, heads=8, kv_heads=1, head_width=20, ffn_width=32),
    TinyLlama(layers=2, heads=2, kv_heads=2, head_width=80, ffn_width=160, vocabulary=33),
]


@pytest.mark.parametrize("tiny", SHAPES, ids=["usual", "untied", "pairs", "odd heads", "wide"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_tiny_model_equals_its_naive_twin(tmp_path: Path, tiny: TinyLlama, threads: int):
    model = native(rounded(tiny, tmp_path / "tiny.gguf"))
    model.use_threads(threads)
    token_ids = np.random.default_rng(1).integers(0, tiny.vocabulary, 24).tolist()
    with torch.inference_mode():
        cache = model.new_cache()
        actual = torch.cat([model.logits(model.decode([token], cache)) for token in token_ids])
    model.close()
    expected = tiny.logits(token_ids)
    # activations of 16 bits against float64, on logits of about 1
    assert np.abs(actual.numpy() - expected).max() < 1e-3


def test_results_do_not_depend_on_the_number_of_threads(smol: NativeLlama):
    token_ids = [*COUNT.prompt_ids, *COUNT.answer_ids[:3]]
    results = []
    for threads in (1, 2, 3, 7):
        smol.use_threads(threads)
        results.append(decoded(smol, token_ids, len(COUNT.prompt_ids)))
    assert all(torch.equal(result, results[0]) for result in results)


def assert_rows_keep_apart(model: NativeLlama, prompt: Sequence[int], tokens: Sequence[int]):
    """Every number of rows, 11 of them more than one pass holds, at one thread and at three."""
    for threads in (1, 3):
        model.use_threads(threads)
        alone = model.new_cache()
        model.prefill(prompt, alone)
        states = torch.cat([model.decode([token], alone) for token in tokens])
        logits = torch.cat([model.logits(state.view(1, -1)) for state in states])
        for rows in (2, 3, 4, 5, 6, 7, 8, 11):
            together = model.new_cache()
            model.prefill(prompt, together)
            assert torch.equal(model.decode(tokens[:rows], together), states[:rows])
            assert together.tokens == alone.tokens[: len(prompt) + rows]
            end = together.length
            assert torch.equal(
                together.views(0, end)[1][-1], alone.views(0, alone.length)[1][-1][:, :end]
            )
            assert torch.equal(model.logits(states[:rows]), logits[:rows])


def test_rows_do_not_depend_on_how_many_share_the_pass(smol: NativeLlama):
    with torch.inference_mode():
        assert_rows_keep_apart(smol, COUNT.prompt_ids, COUNT.answer_ids[:11])


@pytest.mark.parametrize("tiny", SHAPES, ids=["usual", "untied", "pairs", "odd heads", "wide"])
def test_rows_of_odd_shapes_keep_apart_too(tmp_path: Path, tiny: TinyLlama):
    model = native(rounded(tiny, tmp_path / "tiny.gguf"))
    token_ids = np.random.default_rng(1).integers(0, tiny.vocabulary, 24).tolist()
    with torch.inference_mode():
        assert_rows_keep_apart(model, token_ids[:13], token_ids[13:])
    model.close()


def test_what_lies_in_the_cache_behind_the_text_is_not_read(tmp_path: Path):
    tiny = TinyLlama()
    model = native(GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf")))
    token_ids = np.random.default_rng(1).integers(0, tiny.vocabulary, 12).tolist()

    def states(poison: float) -> Tensor:
        cache = model.new_cache()
        cache.reserve(40)
        for part in cache.views(0, 40)[0]:
            part.fill_(poison)
        return torch.cat([model.decode([token], cache) for token in token_ids])

    with torch.inference_mode():
        assert torch.equal(states(float("nan")), states(0.0))
    model.close()


def test_the_cache_may_grow_in_the_middle_of_a_text(tmp_path: Path):
    tiny = TinyLlama(layers=1)
    model = native(rounded(tiny, tmp_path / "tiny.gguf"))
    token_ids = np.random.default_rng(1).integers(0, tiny.vocabulary, 520).tolist()
    actual = decoded(model, token_ids, 500)
    model.close()
    expected = tiny.logits(token_ids)[499:]
    # the prefill's bfloat16 stands in all that follows
    assert np.abs(actual.numpy() - expected).max() < 0.1


def test_a_child_process_starts_its_own_threads(tmp_path: Path):
    tiny = TinyLlama()
    model = native(GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf")))
    model.use_threads(3)
    with torch.inference_mode():
        cache = model.new_cache()
        hidden = torch.ones(1, tiny.width)
        model.decode([1], cache)
        expected = model.logits(hidden)
        child = os.fork()
        if child == 0:  # no assertion may leave this branch
            same = torch.equal(model.logits(hidden), expected)
            model.close()
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert torch.equal(model.logits(hidden), expected)
    model.close()


def threads_of_this_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_closing_leaves_no_thread(tmp_path: Path):
    model = native(GgufCheckpoint.open(TinyLlama(layers=1).write(tmp_path / "tiny.gguf")))
    model.use_threads(4)
    before = threads_of_this_process()
    with torch.inference_mode():
        model.decode([1], model.new_cache())
        assert threads_of_this_process() == before + 3
        model.use_threads(1)
        model.decode([1], model.new_cache())
        assert threads_of_this_process() == before
        model.use_threads(2)
        model.decode([1], model.new_cache())
    model.close()
    model.close()
    assert threads_of_this_process() == before


def test_a_step_after_closing_is_refused(tmp_path: Path):
    model = native(GgufCheckpoint.open(TinyLlama(layers=1).write(tmp_path / "tiny.gguf")))
    model.close()
    with pytest.raises(RuntimeError, match="closed"), torch.inference_mode():
        model.decode([1], model.new_cache())


def test_a_position_beyond_the_context_is_refused(tmp_path: Path):
    model = native(GgufCheckpoint.open(TinyLlama(layers=1).write(tmp_path / "tiny.gguf")), 4)
    with torch.inference_mode():
        cache = model.new_cache()
        model.decode([1, 2, 3, 4], cache)
        with pytest.raises(IndexError):
            model.decode([5], cache)
    model.close()


def test_a_token_that_the_table_does_not_have_is_refused(tmp_path: Path):
    model = native(GgufCheckpoint.open(TinyLlama(layers=1).write(tmp_path / "tiny.gguf")))
    with torch.inference_mode(), pytest.raises(IndexError):
        model.decode([0, 128], model.new_cache())
    model.close()


def test_weights_are_counted_as_the_step_reads_them(smol: NativeLlama):
    layers, head = 30 * 3538944 // 32 * 20, 49152 * 576 // 32 * 34
    assert smol.decode_bytes == layers + head


@pytest.mark.parametrize("token", [-1, 49152])
def test_no_row_outside_of_the_packed_table_is_read(smol: NativeLlama, token: int):
    with torch.inference_mode(), pytest.raises(IndexError, match="49152"):
        smol.decode([token], smol.new_cache())


def test_sizes_without_whole_groups_are_left_to_other_levels(tmp_path: Path):
    odd = GgufCheckpoint.open(TinyLlama(layers=1, ffn_width=80).write(tmp_path / "tiny.gguf"))
    assert best_level(odd) == "int8"
    with pytest.raises(NativeUnavailableError, match="sizes"):
        load_model(odd, "native")
