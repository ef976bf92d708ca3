"""The CPU benchmark's arithmetic: who is compared with whom, and what a process held at most."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.bench import cold_start
from engine.bench.cpu import PEER, PLAIN, SPECULATIVE, fastest, ratio, second_turn_row, written
from engine.bench.offline import Contender, Run
from engine.engine import Engine
from engine.tokenizer import Tokenizer
from engine.types import ModelCard


def contender(name: str, threads: int) -> Contender:
    def answer(prompt: Sequence[int], tokens: int) -> Run:
        return Run(0.0, 0.0)

    return Contender(name, threads, answer)


def test_each_side_goes_on_with_its_best_thread_count():
    contenders = [contender(name, threads) for threads in (1, 2) for name in (PLAIN, PEER)]
    rates = {(PLAIN, 1): [9.0], (PLAIN, 2): [5.0], (PEER, 1): [1.0, 9.0, 1.0], (PEER, 2): [2.0]}
    chosen = [(one.name, one.threads) for one in fastest(contenders, rates)]
    assert chosen == [(PLAIN, 1), (PEER, 2)]


def test_a_ratio_without_its_peer_is_no_row():
    assert ratio("over", {SPECULATIVE: 3.0}, PEER, 4) == []
    (row,) = ratio("over", {SPECULATIVE: 3.0, PEER: 2.0}, PEER, 4)
    assert (row.value, row.reached) == (1.5, False)


def test_the_second_turn_reads_only_what_is_new(smollm2_path: Path, smollm2_card: ModelCard):
    engine = Engine.load(smollm2_path, device="cpu", context_tokens=1280)
    row = second_turn_row(engine, Tokenizer.from_card(smollm2_card), rounds=1)
    assert row.name.startswith("second turn, 1,000 tokens of history")
    assert row.value > 0
    with pytest.raises(RuntimeError, match="ended early"):
        written(engine, [5] * 1275, 16)


def test_a_process_knows_the_most_it_ever_held():
    before = cold_start.peak_bytes()
    held = bytearray(before + 64 * 2**20)
    held[:] = b"\1" * len(held)
    del held
    assert cold_start.peak_bytes() >= before + 32 * 2**20


def test_a_start_that_fails_says_why(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"A measured start failed: .*absent\.gguf"):
        cold_start.measure(tmp_path / "absent.gguf")
