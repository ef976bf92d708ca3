"""The CPU path against its goals: plain and speculative decode, TTFT, second turn, cold start.

Contenders take turns within a round, and every figure is a median over the rounds. All write
greedily and the same number of tokens, the end token not ending the answer. Each side runs with
the number of threads that gave its best plain decode in this very run. `tests/bench/cpu.py` is the
command; it adds what needs the web process.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from engine.bench import cold_start
from engine.bench.offline import (
    LONG_PROMPT_TOKENS,
    SHORT_PROMPT_TOKENS,
    Contender,
    Run,
    best,
    counting_prompt,
    decode_rounds,
    plural,
    ttft_rounds,
    ttft_rows,
)
from engine.bench.report import Row, measured
from engine.chat_template import prompt_ids
from engine.engine import Engine
from engine.tokenizer import Tokenizer
from engine.types import Event, Finished, GenerateRequest, SamplingParams, Step

PLAIN, SPECULATIVE, PEER = "plain", "speculative", "llama.cpp"
HISTORY_TOKENS = 1000
FOLLOW_UP = "\nThank you. And which number comes after those? Answer in one short sentence."
COPY_PROMPT = (
    "Repeat this text word for word, only write 'harbour' instead of 'port':\n\n"
    "The old port wakes before the sun. Boats leave the port while the streets are dark, and the "
    "women who sell fish set up their tables along the wall. At seven the school opens, at eight "
    "the bank, at nine the small museum that tells how the port was built, burnt down and built "
    "again. Visitors come by the coast road. They drink coffee under the arches, walk once around "
    "the port and ask where the lighthouse went. It fell in a storm, people say, and nobody has "
    "missed it, because every house on the hill leaves a lamp in the window for the boats."
)
OPEN_PROMPTS = (
    "Explain to a child why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "What should I think about before I buy a used bicycle?",
)


@dataclass(frozen=True, slots=True)
class Sizes:
    tokens: int
    rounds: int


def written(engine: Engine, prompt: Sequence[int], tokens: int) -> tuple[list[int], Finished]:
    """A greedy answer of exactly so many tokens, and its last event. The cache stays."""
    request = GenerateRequest(tuple(prompt), tokens, SamplingParams(temperature=0, ignore_eos=True))
    events: list[Event] = list(engine.generate(request, threading.Event()))
    ids = [token_id for event in events if isinstance(event, Step) for token_id in event.token_ids]
    last = events[-1]
    if not isinstance(last, Finished) or len(ids) != tokens:
        raise RuntimeError("The answer ended early, so the figures would not compare.")
    return ids, last


def ours(name: str, engine: Engine, threads: int) -> Contender:
    def answer(prompt: Sequence[int], tokens: int) -> Run:
        torch.set_num_threads(threads)
        engine.model.use_threads(threads)
        engine.forget()
        last = written(engine, prompt, tokens)[1]
        return Run(last.timing.prefill_ms, last.speed.average)

    return Contender(name, threads, answer)


def ratio(
    name: str, values: Mapping[str, float], over: str, goal: float, *, of: str = SPECULATIVE
) -> list[Row]:
    """`values[of]` as a multiple of `values[over]`; no row where that one was not measured."""
    if over not in values:
        return []
    return [Row(name, values[of] / values[over], "x", goal, "higher")]


def fastest(
    contenders: Sequence[Contender], rates: Mapping[tuple[str, int], list[float]]
) -> list[Contender]:
    """Of each name the contender with its best thread count."""
    chosen: list[Contender] = []
    for name in dict.fromkeys(one.name for one in contenders):
        threads, _ = best(dict(rates), name, largest=True)
        chosen += [one for one in contenders if (one.name, one.threads) == (name, threads)]
    return chosen


def plain_rows(
    contenders: Sequence[Contender], tokenizer: Tokenizer, sizes: Sizes
) -> tuple[list[Row], list[Contender]]:
    """Plain decode with every thread count, TTFT, and of each side the best contender."""
    short, long = (
        counting_prompt(tokenizer, count) for count in (SHORT_PROMPT_TOKENS, LONG_PROMPT_TOKENS)
    )
    rates = decode_rounds(contenders, short, sizes.tokens, sizes.rounds)
    rows = [
        measured(f"decode, {name}, {plural(threads)}", values, "tok/s", None, "higher")
        for (name, threads), values in rates.items()
    ]
    medians = {name: median(best(rates, name, largest=True)[1]) for name, _ in rates}
    rows += ratio("decode, plain over llama.cpp", medians, PEER, 2.3, of=PLAIN)
    times = ttft_rounds(contenders, long, sizes.rounds)
    rows += ttft_rows(times, len(long))
    if any(name == PEER for name, _ in times):
        mine, theirs = (median(best(times, name, largest=False)[1]) for name in (PLAIN, PEER))
        rows.append(Row("TTFT 512 tokens, ours over llama.cpp", mine / theirs, "x", 0.4, "lower"))
    return rows, fastest(contenders, rates)


def speculation_rows(
    contenders: Sequence[Contender],
    engines: Mapping[str, Engine],
    tokenizer: Tokenizer,
    sizes: Sizes,
) -> list[Row]:
    """A copy-heavy and open chat prompts: plain, speculative, llama.cpp; and that both of ours
    write the same tokens."""
    card = engines[PLAIN].card
    copy, *chats = (
        prompt_ids(tokenizer, card, [{"role": "user", "content": text}])
        for text in (COPY_PROMPT, *OPEN_PROMPTS)
    )
    rows: list[Row] = []
    copied = _medians("copy-heavy prompt", contenders, [copy], sizes, rows)
    rows += ratio("copy-heavy prompt, speculative over llama.cpp", copied, PEER, 4)
    rows += ratio("copy-heavy prompt, speculative over plain", copied, PLAIN, 1)
    opened = _medians("open chat prompts", contenders, chats, sizes, rows)
    rows += ratio("open chat prompts, speculative over plain", opened, PLAIN, 1.2)
    rows += ratio("open chat prompts, speculative over llama.cpp", opened, PEER, 2.3)
    alike = 0
    for prompt in (copy, *chats):
        for engine in engines.values():
            engine.forget()
        plain, guessed = (written(engine, prompt, sizes.tokens)[0] for engine in engines.values())
        alike += plain == guessed
    total = 1 + len(chats)
    rows.append(
        Row("answers the same with and without speculation", alike, f"of {total}", total, "higher")
    )
    return rows


def _medians(
    what: str,
    contenders: Sequence[Contender],
    prompts: Sequence[Sequence[int]],
    sizes: Sizes,
    rows: list[Row],
) -> dict[str, float]:
    """Decode rate of each contender, its row added: the median over the rounds of each prompt, and
    of these the mean, so that no kind of prompt decides alone."""
    rates = [decode_rounds(contenders, prompt, sizes.tokens, sizes.rounds) for prompt in prompts]
    medians: dict[str, float] = {}
    for one in contenders:
        values = [found[one.name, one.threads] for found in rates]
        medians[one.name] = sum(median(of_prompt) for of_prompt in values) / len(values)
        every = [value for of_prompt in values for value in of_prompt]
        name = f"{what}, {one.name}, {plural(one.threads)}"
        rows.append(Row(name, medians[one.name], "tok/s", None, "higher", min(every), max(every)))
    return medians


def second_turn_row(engine: Engine, tokenizer: Tokenizer, rounds: int) -> Row:
    """TTFT of a follow-up question behind 1,000 tokens of which the cache holds all."""
    history = counting_prompt(tokenizer, HISTORY_TOKENS)
    question = tokenizer.encode(FOLLOW_UP)
    times: list[float] = []
    for _ in range(rounds):
        engine.forget()
        answer = written(engine, history, 8)[0]
        last = written(engine, [*history, *answer, *question], 1)[1]
        if last.usage.cached_tokens < HISTORY_TOKENS:
            raise RuntimeError("The history was read again; its place in the cache was lost.")
        times.append(last.timing.prefill_ms)
    name = f"second turn, {HISTORY_TOKENS:,} tokens of history, {len(question)} new: TTFT"
    return measured(name, times, "ms", 40, "lower")


def cold_start_rows(path: Path, rounds: int) -> list[Row]:
    """Load time, and peak memory against the file alone: stricter than file + KV."""
    starts = [cold_start.measure(path) for _ in range(rounds)]
    bare, file_bytes = cold_start.bare_torch_bytes(), path.stat().st_size
    beyond = [start.peak_bytes - bare for start in starts]
    shares = [value / file_bytes for value in beyond]
    loads = [start.load_seconds for start in starts]
    return [
        measured("load after imports, to ready", loads, "s", 0.5, "lower"),
        measured("peak memory beyond import torch", [b / 2**20 for b in beyond], "MiB", None, "lower"),
        measured("peak memory beyond import torch, over the file", shares, "x", 1.5, "lower"),
    ]  # fmt: skip
