"""Speed of the engine itself, beside llama.cpp on the same file: `python -m engine.bench.offline`.

Contenders take turns within a round (ours, llama.cpp, ours, ...), so what else the machine does
hits them alike; quoted is the median over the rounds. Everyone reads the same prompt and writes
the same number of tokens, greedily. Rates are tokens after the first per second after the first.
Everyone is measured with one thread and with all, and the better figure of each is compared.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median

import torch

from engine.bench.report import Row, measured, print_report
from engine.demo_model import demo_model_path
from engine.engine import Engine
from engine.machine import core_count
from engine.tokenizer import Tokenizer
from engine.types import Finished, GenerateRequest, SamplingParams

SHORT_PROMPT_TOKENS, LONG_PROMPT_TOKENS = 37, 512
# ours over llama.cpp, both at the better of their thread counts; what the CPU path is to reach
RATIO_GOAL = 2.3
BANDWIDTH_SAMPLE_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Run:
    """One answer's figures."""

    ttft_ms: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    threads: int
    # (prompt, tokens to write) -> figures, always from a cold cache
    answer: Callable[[Sequence[int], int], Run]


def ours(level: str, engine: Engine, threads: int) -> Contender:
    def answer(prompt_ids: Sequence[int], tokens: int) -> Run:
        torch.set_num_threads(threads)
        engine.model.use_threads(threads)
        engine.forget()
        request = GenerateRequest(tuple(prompt_ids), tokens, SamplingParams(temperature=0))
        last = list(engine.generate(request, threading.Event()))[-1]
        if not isinstance(last, Finished) or last.usage.completion_tokens != tokens:
            raise RuntimeError("The answer ended early, so the figures would not compare.")
        return Run(last.timing.prefill_ms, last.speed.average)

    return Contender(level, threads, answer)


def llama_cpp(path: Path, threads: int) -> Contender:
    peer = importlib.import_module("llama_cpp")  # optional, so nothing here may import it by name
    context = LONG_PROMPT_TOKENS + 512
    model = peer.Llama(
        str(path), n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def answer(prompt_ids: Sequence[int], tokens: int) -> Run:
        model.reset()
        start = time.perf_counter()
        written = model.generate(list(prompt_ids), temp=0.0)
        next(written)
        first = time.perf_counter()
        for _ in islice(written, tokens - 1):
            pass
        last = time.perf_counter()
        rate = (tokens - 1) / (last - first) if tokens > 1 else 0.0
        return Run((first - start) * 1000, rate)

    return Contender("llama.cpp", threads, answer)


def read_bandwidth_bytes_per_second(threads: int) -> float:
    """How fast so many cores read memory that no cache holds; the best of five passes."""
    torch.set_num_threads(threads)
    data = torch.ones(BANDWIDTH_SAMPLE_BYTES // 8, dtype=torch.int64)
    fastest = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        fastest = min(fastest, time.perf_counter() - start)
    return BANDWIDTH_SAMPLE_BYTES / fastest


def counting_prompt(tokenizer: Tokenizer, tokens: int) -> list[int]:
    """A text that small models continue for long: 1, 2, 3, ..."""
    return tokenizer.encode(", ".join(str(n) for n in range(1, tokens)))[:tokens]


def decode_rounds(
    contenders: Sequence[Contender], prompt: Sequence[int], tokens: int, rounds: int
) -> dict[tuple[str, int], list[float]]:
    """Tokens per second of each contender in each round."""
    rates: dict[tuple[str, int], list[float]] = {(c.name, c.threads): [] for c in contenders}
    for contender in contenders:
        contender.answer(prompt, 4)
    for _ in range(rounds):
        for contender in contenders:
            rate = contender.answer(prompt, tokens).tokens_per_second
            rates[contender.name, contender.threads].append(rate)
    return rates


def ttft_rounds(
    contenders: Sequence[Contender], prompt: Sequence[int], rounds: int
) -> dict[tuple[str, int], list[float]]:
    """Milliseconds to the first token of each contender in each round."""
    times: dict[tuple[str, int], list[float]] = {(c.name, c.threads): [] for c in contenders}
    for _ in range(rounds):
        for contender in contenders:
            times[contender.name, contender.threads].append(contender.answer(prompt, 1).ttft_ms)
    return times


def best(
    samples: dict[tuple[str, int], list[float]], name: str, *, largest: bool
) -> tuple[int, list[float]]:
    """The thread count of `name` whose median is best, and its samples."""
    of_name = {threads: values for (found, threads), values in samples.items() if found == name}
    pick = max if largest else min
    threads = pick(of_name, key=lambda count: median(of_name[count]))
    return threads, of_name[threads]


def plural(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def decode_rows(
    rates: dict[tuple[str, int], list[float]], engines: dict[str, Engine], default: str
) -> list[Row]:
    rows = [
        measured(f"decode {name}, {plural(threads)}", values, "tok/s", None, "higher")
        for (name, threads), values in rates.items()
    ]
    bandwidth = read_bandwidth_bytes_per_second(max(threads for _, threads in rates))
    rows.append(Row("memory read", bandwidth / 1e9, "GB/s", None, "higher"))
    for level, engine in engines.items():
        _, values = best(rates, level, largest=True)
        share = engine.model.decode_bytes * median(values) / bandwidth
        rows.append(Row(f"decode {level}, share of memory read", share, "", None, "higher"))
    if any(name == "llama.cpp" for name, _ in rates):
        mine, theirs = (
            median(best(rates, name, largest=True)[1]) for name in (default, "llama.cpp")
        )
        name = f"decode {default} over llama.cpp, best threads each"
        rows.append(Row(name, mine / theirs, "x", RATIO_GOAL, "higher"))
    return rows


def ttft_rows(samples: dict[tuple[str, int], list[float]], prompt_tokens: int) -> list[Row]:
    rows = []
    for name in dict.fromkeys(found for found, _ in samples):
        threads, values = best(samples, name, largest=False)
        label = f"TTFT {prompt_tokens} tokens, {name}, {plural(threads)}"
        rows.append(measured(label, values, "ms", None, "lower"))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file; the demo model by default")
    parser.add_argument(
        "--levels", default="native,int4,int8,bf16,fp32", help="of ours, the first beside llama.cpp"
    )
    parser.add_argument("--tokens", type=int, default=64, help="tokens to write per run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", help="thread counts to try; by default 1 and all cores")
    options = parser.parse_args(arguments)
    path = options.model or demo_model_path()
    thread_counts = sorted({1, core_count()})
    if options.threads:
        thread_counts = [int(count) for count in options.threads.split(",")]
    engines = {
        # plain decode on both sides: the counting prompt is one long repetition
        level: Engine.load(path, level=level, device="cpu", speculation=False)
        for level in options.levels.split(",")
    }
    default = next(iter(engines))
    contenders = [ours(lv, e, threads) for lv, e in engines.items() for threads in thread_counts]
    if importlib.util.find_spec("llama_cpp"):
        # behind each of ours in turn, so that both sides are spread over the whole round
        contenders[len(thread_counts) : len(thread_counts)] = [
            llama_cpp(path, threads) for threads in thread_counts
        ]
    else:
        print("llama.cpp: not installed (pip install llama-cpp-python==0.3.36), so no ratio.\n")
    tokenizer = Tokenizer.from_card(engines[default].card)
    short, long = (
        counting_prompt(tokenizer, count) for count in (SHORT_PROMPT_TOKENS, LONG_PROMPT_TOKENS)
    )
    rows = decode_rows(
        decode_rounds(contenders, short, options.tokens, options.rounds), engines, default
    )
    first = [c for c in contenders if c.name in (default, "llama.cpp")]
    for prompt in (short, long):
        rows += ttft_rows(ttft_rounds(first, prompt, options.rounds), len(prompt))
    print_report("offline", rows)


if __name__ == "__main__":
    main()
