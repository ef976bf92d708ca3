"""Decode on one CUDA device beside a compiled plain loop: `python -m engine.bench.gpu`.

Both sides work on the same weight tensors and take turns within a round. Times are those at which
the host saw tokens, our choice of the token included. The read ceiling that shares refer to is
measured first, in the same process. Texts of the demo model are compared with those of the CPU's
float32 level before anything is timed.
"""

from __future__ import annotations

import argparse
import gc
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import torch

from engine.bench import gpu_baseline
from engine.bench.gpu_ceiling import read_bytes_per_second
from engine.bench.gpu_models import LLAMA_1B, QWEN3_600M, random_weights
from engine.bench.report import Row, commit, json_line, machine, measured, table
from engine.demo_model import demo_model_path
from engine.engine import Engine
from engine.runtime.cuda_llama import CudaLlama
from engine.tokenizer import Tokenizer
from engine.types import GenerateRequest, SamplingParams, Step
from engine.weights.gguf_checkpoint import GgufCheckpoint

PROMPT_TOKENS, ANSWER_TOKENS, LONG_RUN_TOKENS = 32, 128, 1000
CONTEXT_TOKENS = 9216
GREEDY = SamplingParams(temperature=0)
GOALS_US = {"Llama-3.2-1B": 640.0, "Qwen3-0.6B": 400.0, "SmolLM2-135M": 222.0}
SAMPLINGS = {
    "temperature 0.8": SamplingParams(0.8, seed=7),
    "temperature 0.8, top_p 0.9": SamplingParams(0.8, 0.9, seed=7),
    "temperature 0.8, top_k 40": SamplingParams(0.8, top_k=40, seed=7),
    "temperature 0.8, top_k 40, top_p 0.95": SamplingParams(0.8, 0.95, 40, seed=7),
}


class Ours:
    """A model with its cache, filled at random up to wherever a run begins."""

    def __init__(self, name: str, model: CudaLlama) -> None:
        self.name = name
        self.model = model
        self.cache = self.model.new_cache()
        self.vocabulary = len(self.model.weights.embedding)

    @torch.inference_mode()
    def read(self, tokens: int) -> torch.Tensor:
        """A cold prefill of `tokens` random ids. Returns the hidden state behind them."""
        self.cache.keep_prefix(())
        ids = torch.randint(0, self.vocabulary, (tokens,)).tolist()
        hidden = self.model.prefill(ids, self.cache)
        torch.cuda.synchronize()
        return hidden

    def write(self, start: int, tokens: int, sampling: SamplingParams = GREEDY) -> list[float]:
        """Seconds at which the host saw each of `tokens` tokens behind `start` random ones."""
        hidden = self.read(start)
        seen: list[float] = []
        for _ in self.model.write(hidden, self.cache, sampling, tokens):
            seen.append(time.perf_counter())
        return seen


def per_token_us(seen: Sequence[float]) -> float:
    return (seen[-1] - seen[0]) / (len(seen) - 1) * 1e6


def turns(ours: Ours, step: gpu_baseline.Step, rounds: int) -> tuple[list[float], list[float]]:
    """Microseconds per token of us and of the baseline, in turns."""
    mine: list[float] = []
    plain: list[float] = []
    for _ in range(rounds):
        mine.append(per_token_us(ours.write(PROMPT_TOKENS, ANSWER_TOKENS)))
        with torch.inference_mode():
            plain.append(per_token_us(gpu_baseline.run(step, PROMPT_TOKENS, ANSWER_TOKENS)))
    return mine, plain


def decode_rows(ours: Ours, ceiling: float, rounds: int) -> list[Row]:
    name, floor_us = ours.name, ours.model.decode_bytes / ceiling * 1e6
    ours.write(PROMPT_TOKENS, 8)
    with torch.inference_mode():
        step, compile_s = gpu_baseline.compiled(ours.model.weights, 1024)
    mine, plain = turns(ours, step, rounds)
    gaps = [(b - a) * 1e6 for a, b in pairwise(ours.write(PROMPT_TOKENS, LONG_RUN_TOKENS))]
    p50, p99 = median(gaps), quantiles(gaps, n=100)[98]
    return [
        measured(f"{name}: decode 32 + 128", mine, "us/token", GOALS_US[name], "lower"),
        Row(f"{name}: bytes a step", ours.model.decode_bytes / 1e6, "MB", None, "lower"),
        Row(f"{name}: share of the read ceiling", floor_us / median(mine), "", None, "higher"),
        measured(f"{name}: torch.compile loop 32 + 128", plain, "us/token", None, "lower"),
        Row(f"{name}: torch.compile takes", compile_s, "s", None, "lower"),
        Row(f"{name}: torch.compile over ours", median(plain) / median(mine), "x", None, "higher"),
        Row(f"{name}: p50 between 1,000 tokens", p50, "us", None, "lower"),
        Row(f"{name}: p99 between 1,000 tokens", p99, "us", None, "lower"),
        Row(f"{name}: p99 / p50", p99 / p50, "x", 1.05, "lower"),
    ]


def context_rows(ours: Ours, rounds: int) -> list[Row]:
    """Longer contexts, and the prefill of 1,024 tokens."""
    rows: list[Row] = []
    for start in (1024, 8192):
        times = [per_token_us(ours.write(start, ANSWER_TOKENS)) for _ in range(rounds)]
        rows.append(
            measured(f"{ours.name}: decode behind {start}", times, "us/token", None, "lower")
        )
    prefills: list[float] = []
    for _ in range(rounds + 2):
        begin = time.perf_counter()
        ours.read(1024)
        prefills.append((time.perf_counter() - begin) * 1000)
    rows.append(measured(f"{ours.name}: prefill 1,024", prefills[2:], "ms", 6.0, "lower"))
    return rows


def sampling_rows(ours: Ours, rounds: int) -> list[Row]:
    return [
        measured(
            f"{ours.name}: decode 32 + 128, {name}",
            [per_token_us(ours.write(PROMPT_TOKENS, ANSWER_TOKENS, p)) for _ in range(rounds)],
            "us/token",
            None,
            "lower",
        )
        for name, p in SAMPLINGS.items()
    ]


def stop_row(ours: Ours) -> Row:
    """How long the device is busy with steps that nobody wants after the host has turned away."""
    waits: list[float] = []
    for _ in range(9):
        tokens = ours.model.write(ours.read(PROMPT_TOKENS), ours.cache, GREEDY, ANSWER_TOKENS)
        for _, _ in zip(range(20), tokens, strict=False):
            pass
        begin = time.perf_counter()
        torch.cuda.synchronize()
        waits.append((time.perf_counter() - begin) * 1000)
    return measured(f"{ours.name}: device free after a stop", waits, "ms", 20.0, "lower")


def same_text(engine: Engine, prompt: Sequence[int], expected: Sequence[int]) -> int:
    """How many tokens of a greedy answer agree with the reference before the first other one."""
    engine.forget()
    request = GenerateRequest(tuple(prompt), len(expected), GREEDY)
    events = engine.generate(request, threading.Event())
    answer = [token for event in events if isinstance(event, Step) for token in event.token_ids]
    agreed = 0
    for mine, theirs in zip(answer, expected, strict=False):
        if mine != theirs:
            break
        agreed += 1
    return agreed


PROMPTS = {
    "counting": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,",
    "code": "def fibonacci(n):\n",
    "prose": "The capital of France is",
}


def text_rows(engine: Engine) -> list[Row]:
    """Greedy texts of the demo model on the GPU against the CPU's float32 level."""
    reference = Engine.load(demo_model_path(), device="cpu", level="fp32")
    tokenizer, rows = Tokenizer.from_card(engine.card), []
    for name, text in PROMPTS.items():
        prompt = tokenizer.encode(text)
        request = GenerateRequest(tuple(prompt), 40, GREEDY)
        events = reference.generate(request, threading.Event())
        expected = [t for e in events if isinstance(e, Step) for t in e.token_ids]
        agreed = same_text(engine, prompt, expected)
        label = f"SmolLM2-135M: greedy {name}, tokens as in float32"
        rows.append(Row(label, agreed, f"of {len(expected)}", float(len(expected)), "higher"))
    return rows


def model_rows(ours: Ours, ceiling: float, rounds: int) -> list[Row]:
    rows = decode_rows(ours, ceiling, rounds) + [stop_row(ours)]
    if ours.name == "Llama-3.2-1B":
        rows += context_rows(ours, rounds)
    return rows + sampling_rows(ours, rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="SmolLM2-135M,Llama-3.2-1B,Qwen3-0.6B")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args(arguments)
    ceiling = read_bytes_per_second()
    rows = [Row("memory read", ceiling / 1e12, "TB/s", None, "higher")]
    rows += text_rows(Engine.load(demo_model_path(), device="cuda"))
    hardware = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {machine()}"
    for name in options.models.split(","):
        rows += model_rows(Ours(name, load(name)), ceiling, options.rounds)
        print(table(rows), flush=True)
        if options.json:
            options.json.write_text(json_line("gpu", rows, hardware, commit()) + "\n")
        torch.compiler.reset()
        gc.collect()
        torch.cuda.empty_cache()
    print()
    print(json_line("gpu", rows, hardware, commit()))


def load(name: str) -> CudaLlama:
    if name == "SmolLM2-135M":
        with torch.inference_mode():
            return CudaLlama.load(GgufCheckpoint.open(demo_model_path()))
    config = {"Llama-3.2-1B": LLAMA_1B, "Qwen3-0.6B": QWEN3_600M}[name]
    with torch.inference_mode():
        return CudaLlama(random_weights(config, CONTEXT_TOKENS))


if __name__ == "__main__":
    main()
