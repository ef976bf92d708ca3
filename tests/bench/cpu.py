"""The CPU path beside llama.cpp, against its goals: python -m tests.bench.cpu  (make bench-cpu)

All rows of `engine/bench/cpu.py`, and the engine's rate while a web process streams on the same
cores. About five minutes on two quiet cores with 7 rounds. Last line: JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from engine.bench.cpu import (
    PEER,
    PLAIN,
    SPECULATIVE,
    Sizes,
    cold_start_rows,
    ours,
    plain_rows,
    second_turn_row,
    speculation_rows,
)
from engine.bench.offline import Contender, counting_prompt, llama_cpp
from engine.bench.report import Row, measured, print_report
from engine.demo_model import demo_model_path
from engine.engine import Engine
from engine.machine import core_count
from engine.tokenizer import Tokenizer
from tests.bench.product import make_key, nodes_ready, product, running, stamped_node

STREAM_TOKENS_PER_SECOND = 300.0
# longer than elsewhere: the stream's bursts are to spread evenly over the answer
SHARED_TOKENS = 256


async def shared_rows(contender: Contender, prompt: Sequence[int], rounds: int) -> list[Row]:
    """The engine alone and beside a web process that streams another node's answer, in turns.

    Store, scripted node and reader run on the same cores too, so this is the harder case.
    """
    rates: dict[str, list[float]] = {"alone": [], "beside a stream": []}
    async with product() as made:
        with stamped_node(made.store_url, STREAM_TOKENS_PER_SECOND, "n1"):
            await nodes_ready(made.store_url, 1)
            key = await make_key(made)
            command = (sys.executable, "-m", "tests.bench.listener", made.url)
            for _ in range(rounds):
                rates["alone"].append(contender.answer(prompt, SHARED_TOKENS).tokens_per_second)
                environment = {"BENCH_KEY": key}
                with running(*command, stdout=subprocess.PIPE, environment=environment) as reader:
                    assert reader.stdout is not None
                    if not reader.stdout.readline():
                        raise RuntimeError("The reader of the stream ended before a token came.")
                    rate = contender.answer(prompt, SHARED_TOKENS).tokens_per_second
                    rates["beside a stream"].append(rate)
                # the node finishes its step and is free again before the next round
                await nodes_ready(made.store_url, 1)
    alone, beside = (median(values) for values in rates.values())
    rows = [
        measured(f"decode {name}", values, "tok/s", None, "higher")
        for name, values in rates.items()
    ]
    return [*rows, Row("decode beside a stream over alone", beside / alone, "x", 0.9, "higher")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file; the demo model by default")
    parser.add_argument("--tokens", type=int, default=96, help="tokens to write per run")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    path, sizes = options.model or demo_model_path(), Sizes(options.tokens, options.rounds)
    rows = cold_start_rows(path, sizes.rounds)
    engines = {
        name: Engine.load(path, device="cpu", speculation=name == SPECULATIVE)
        for name in (PLAIN, SPECULATIVE)
    }
    tokenizer = Tokenizer.from_card(engines[PLAIN].card)
    contenders: list[Contender] = []
    for threads in sorted({1, core_count()}):
        contenders.append(ours(PLAIN, engines[PLAIN], threads))
        if importlib.util.find_spec("llama_cpp"):
            contenders.append(llama_cpp(path, threads))
    if contenders[-1].name != PEER:
        print("llama.cpp is not installed (pip install '.[bench]'), so its rows are missing.\n")
    plain, chosen = plain_rows(contenders, tokenizer, sizes)
    fastest_plain = chosen[0]
    chosen.insert(1, ours(SPECULATIVE, engines[SPECULATIVE], fastest_plain.threads))
    rows = [*plain, *speculation_rows(chosen, engines, tokenizer, sizes), *rows]
    rows.append(second_turn_row(engines[SPECULATIVE], tokenizer, sizes.rounds))
    prompt = counting_prompt(tokenizer, 37)
    rows += asyncio.run(shared_rows(fastest_plain, prompt, sizes.rounds))
    print_report("cpu", rows)


if __name__ == "__main__":
    main()
