"""The decode step's kernels against a naive llama in float64 and against the sampling rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.noise import gumbel
from engine.runtime.device_cache import DeviceCache
from engine.runtime.llama_weights import read_weights
from engine.runtime.prefill import prefill
from engine.sampling import choose, kept_tokens
from engine.types import SamplingParams
from engine.weights.gguf_checkpoint import GgufCheckpoint
from tests.engine.device_step import DEVICE, PDL, needs_triton
from tests.engine.tiny_llama import TinyLlama

pytestmark = needs_triton
CONTEXT = 256
# float32 against float64 on logits of about 1
TOLERANCE = 5e-5


class Bench:
    """A tiny model with its step."""

    def __init__(self, tiny: TinyLlama, path: Path, dtype: torch.dtype = torch.float32) -> None:
        from engine.runtime.decode_step import DecodeStep

        file = GgufCheckpoint.open(tiny.write(path / "tiny.gguf"))
        self.weights = read_weights(file, DEVICE, dtype, CONTEXT)
        c = self.weights.config
        self.cache = DeviceCache(c.layers, c.kv_heads, c.head_width, CONTEXT, dtype, DEVICE)
        self.step = DecodeStep(self.weights, self.cache, pdl=PDL)

    @torch.inference_mode()
    def read(self, token_ids: list[int]) -> torch.Tensor:
        hidden = prefill(self.weights, torch.tensor(token_ids, device=DEVICE), self.cache)
        self.cache.claim(token_ids)
        self.step.hidden.copy_(hidden)
        self.step.enqueue_head()
        return self.logits()

    @torch.inference_mode()
    def write(self, position: int) -> int:
        self.step.enqueue()
        self.logits()  # waits for the device
        return int(self.step.choice.seen[position])

    def logits(self) -> torch.Tensor:
        return self.step.logits.cpu()


def prompt(tiny: TinyLlama, tokens: int) -> list[int]:
    return np.random.default_rng(1).integers(0, tiny.vocabulary, tokens).tolist()


@pytest.mark.parametrize(
    ("heads", "tokens"), [((4, 2), 1), ((6, 2), 63), ((3, 3), 64), ((4, 1), 129)], ids=str
)
def test_steps_equal_the_naive_twin(tmp_path: Path, heads: tuple[int, int], tokens: int):
    tiny = TinyLlama(layers=2, heads=heads[0], kv_heads=heads[1], tied=tokens % 2 == 0)
    bench, ids = Bench(tiny, tmp_path), prompt(tiny, tokens)
    first = bench.read(ids)
    assert np.abs(first.numpy() - tiny.logits(ids)[-1]).max() < TOLERANCE
    params = SamplingParams(temperature=0.8, seed=3)
    bench.step.choice.arm(params, tokens)
    for _ in range(3):
        expected = choose(bench.logits(), params, len(ids))
        ids.append(bench.write(len(ids)))
        assert ids[-1] == expected
        assert np.abs(bench.logits().numpy() - tiny.logits(ids)[-1]).max() < TOLERANCE


def test_given_tokens_leave_what_chosen_ones_left_to_the_last_bit(tmp_path: Path):
    tiny = TinyLlama(layers=2)
    chose, reread = Bench(tiny, tmp_path), Bench(tiny, tmp_path)
    ids = prompt(tiny, 64)
    for bench in (chose, reread):
        bench.read(ids)
    chose.step.choice.arm(SamplingParams(temperature=1.0, seed=4), 64)
    tokens = [chose.write(64 + n) for n in range(3)]
    with torch.inference_mode():
        for n, token in enumerate(tokens):
            reread.step.enqueue_given(token, 64 + n)
        reread.step.enqueue_head()
    assert torch.equal(reread.logits(), chose.logits())


def test_many_parts_of_a_long_context_are_combined(tmp_path: Path):
    tiny = TinyLlama(layers=1)
    bench, ids = Bench(tiny, tmp_path), prompt(tiny, 250)
    bench.read(ids)
    bench.step.choice.arm(SamplingParams(temperature=0), 250)
    for _ in range(2):
        ids.append(bench.write(len(ids)))
    assert np.abs(bench.logits().numpy() - tiny.logits(ids)[-1]).max() < TOLERANCE


def test_prefill_in_chunks_equals_prefill_in_one(tmp_path: Path):
    tiny = TinyLlama()
    bench, ids = Bench(tiny, tmp_path), prompt(tiny, 40)
    for start in range(0, 30, 15):
        bench.read(ids[start : start + 15])
    logits = bench.read(ids[30:])
    assert np.abs(logits.numpy() - tiny.logits(ids)[-1]).max() < TOLERANCE


CUTS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=0.3, top_p=0.5),
    SamplingParams(temperature=1.5, top_p=0.05),
    SamplingParams(temperature=1.0, top_p=0.0),
    SamplingParams(temperature=1.2, top_k=1),
    SamplingParams(temperature=1.2, top_k=7),
    SamplingParams(temperature=2.0, top_k=40, top_p=0.8),
    SamplingParams(temperature=0.9, top_k=10**6, top_p=0.6),
    SamplingParams(temperature=1.5, min_p=0.02),
    SamplingParams(temperature=1.1, min_p=1.0),
    SamplingParams(temperature=2.0, top_k=40, top_p=0.9, min_p=0.1),
]


class Choice:
    """survey and decide alone, on given logits."""

    def __init__(self, vocabulary: int) -> None:
        from engine.runtime.choice import Choice as DeviceChoice

        table = torch.arange(vocabulary, dtype=torch.float32, device=DEVICE)[:, None].repeat(1, 4)
        self.device = DeviceChoice(table, positions=1 << 16, pdl=PDL)
        self.hidden = torch.zeros(4, device=DEVICE)

    @torch.inference_mode()
    def __call__(self, logits: torch.Tensor, params: SamplingParams, position: int) -> int:
        self.device.arm(params, position)
        self.device.enqueue(logits.to(DEVICE), self.hidden)
        embedded = self.hidden.cpu()  # waits for the device
        token = int(self.device.seen[position])
        assert embedded.tolist() == [max(token, 0)] * 4
        return token


@pytest.mark.parametrize("params", CUTS, ids=str)
@pytest.mark.parametrize("coarse", [False, True], ids=["fine", "ties"])
def test_the_device_chooses_what_the_rule_chooses(params: SamplingParams, coarse: bool):
    vocabulary, random = 5003, np.random.default_rng(7)
    device = Choice(vocabulary)
    for n in range(12 if DEVICE.type == "cpu" else 200):
        values = random.normal(0, 3, vocabulary).astype(np.float32)
        row = torch.from_numpy(np.round(values) if coarse else values)
        seed, position = int(random.integers(0, 2**63)) * 2 + n % 2, int(random.integers(0, 65000))
        drawn = replace(params, seed=seed)
        token = device(row, drawn, position)
        assert token == choose(row, drawn, position)
        assert params.temperature == 0 or token in kept_tokens(row, drawn)


def test_the_noise_is_the_rule_s_to_the_last_bit():
    device = Choice(5003)
    row = torch.zeros(5003)
    device(row, SamplingParams(temperature=1.0, seed=2**63 + 12345), 777)
    expected = gumbel(2**63 + 12345, 777, np.arange(5003))
    assert np.array_equal(device.device.scores.cpu().numpy(), expected)


# numpy, which interprets the kernels on the CPU, warns of what the device computes silently
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_told_to_the_host(bad: float, temperature: float):
    row = torch.zeros(5003)
    row[4321] = bad
    assert Choice(5003)(row, SamplingParams(temperature=temperature), 5) == -1
