"""The offline suite, `baton bench`: workloads x modes, then input lengths up to the model's limit.

Every answer starts from a cold cache and goes on behind the model's end token, so that all have the
same length. Rates are those of `engine/metrics.py`. A Markdown table, then one line of JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.bench.cold_start import peak_bytes
from engine.bench.generator import Generator
from engine.bench.offline import counting_prompt, read_bandwidth_bytes_per_second
from engine.bench.report import Row, commit, json_line, machine
from engine.machine import core_count
from engine.tokenizer import Tokenizer
from engine.types import Finished

FIRST_LENGTH = 1024
# name -> (prompt, its answer's share of the longest)
WORKLOADS = {
    "short": ("Name the seasons, and one thing that people like about each of them.", 0.25),
    "coding": ("Write a Python function that merges two sorted lists, with its tests.", 0.5),
    "long": ("Write a long story about a family that runs a mountain railway.", 1.0),
}
# name -> (speculation, top-p 0.95 at temperature 1 instead of greedy)
MODES = {
    "greedy": (False, False),
    "greedy, speculation": (True, False),
    "top-p 0.95, speculation": (True, True),
}
HEAD = (
    "| mode | workload | prompt | decode tok/s | end to end | peak | TTFT ms | steps/s | accepted "
    "| of read bandwidth |\n|---|---|---:|---:|---:|---:|---:|---:|---|---:|"
)


@dataclass(frozen=True, slots=True)
class Result:
    mode: str
    workload: str
    steps_per_second: float
    finished: Finished
    # of the measured read bandwidth; None where it was not measured, as on a GPU
    share: float | None

    def line(self) -> str:
        speed, accepted = self.finished.speed, self.finished.accepted
        share = "" if self.share is None else f"{self.share:.0%}"
        cells = (
            self.mode, self.workload, str(self.finished.usage.prompt_tokens),
            f"{speed.average:.1f}", f"{speed.e2e:.1f}", f"{speed.peak:.1f}",
            f"{self.finished.timing.prefill_ms:.0f}", f"{self.steps_per_second:.1f}",
            f"{accepted.mean:.2f}/{accepted.min}/{accepted.max}", share,
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"

    def rows(self) -> Iterator[Row]:
        name, speed = f"{self.workload}, {self.mode}: ", self.finished.speed
        yield Row(name + "decode", speed.average, "tok/s", None, "higher")
        yield Row(name + "end to end", speed.e2e, "tok/s", None, "higher")
        yield Row(name + "peak", speed.peak, "tok/s", None, "higher")
        yield Row(name + "TTFT", self.finished.timing.prefill_ms, "ms", None, "lower")
        yield Row(name + "steps", self.steps_per_second, "1/s", None, "higher")
        yield Row(name + "accepted", self.finished.accepted.mean, "tokens", None, "higher")
        if self.share is not None:
            yield Row(name + "share of read bandwidth", self.share, "", None, "higher")


def input_lengths(context_tokens: int, most: int, answer_tokens: int) -> list[int]:
    """1,024 and its doubles, as far as context and `most` go, the answer fitting behind it."""
    lengths: list[int] = []
    length = FIRST_LENGTH
    while length <= min(most, context_tokens - answer_tokens):
        lengths.append(length)
        length *= 2
    return lengths


def measure(
    generator: Generator, mode: str, workload: str, prompt: str | list[int], bandwidth: float | None
) -> Result:
    """One answer. `bandwidth` in bytes per second."""
    speculative, use_topp = MODES[mode]
    generator.update_sampling_params(top_p=0.95, top_k=0, use_topp=use_topp)
    text, ids = (prompt, None) if isinstance(prompt, str) else ("", prompt)
    times = generator.generate(text, False, with_mtp=speculative, prompt_tokens=ids)[1]
    if generator.last is None:
        raise RuntimeError("The answer has no end, so it has no figures.")
    steps = len(times) / sum(times)
    share = None if bandwidth is None else generator.engine.model.decode_bytes * steps / bandwidth
    return Result(mode, workload, steps, generator.last, share)


def run(model: str | Path = "", tokens: int = 256, max_input: int = 4096) -> None:
    """Print the suite's results. Raises what `Engine.load` raises."""
    generator = Generator(model_weights_dir=model, with_mtp=True)
    generator.ignore_eos = True
    generator.from_pretrained()
    gpu = torch.cuda.is_available()
    bandwidth = None if gpu else read_bandwidth_bytes_per_second(core_count())
    results: list[Result] = []
    for workload, (prompt, part) in WORKLOADS.items():
        generator.max_new_tokens = max(8, round(tokens * part))
        results += [measure(generator, mode, workload, prompt, bandwidth) for mode in MODES]
    generator.max_new_tokens = max(8, tokens // 4)
    card = generator.engine.card
    tokenizer = Tokenizer.from_card(card)
    for length in input_lengths(card.context_tokens, max_input, generator.max_new_tokens):
        prompt_ids = counting_prompt(tokenizer, length)
        results.append(measure(generator, "greedy", f"input {length}", prompt_ids, bandwidth))
    memory = Row("peak memory", peak_bytes() / 2**20, "MiB", None, "lower")
    print(f"## {card.name}\n\n{HEAD}", *(result.line() for result in results), sep="\n")
    print(f"\nPeak memory of the process: {memory.value:.0f} MiB\n")
    rows = [row for result in results for row in result.rows()]
    print(json_line("suite", [*rows, memory], machine(), commit()))
