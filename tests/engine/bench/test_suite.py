"""The offline suite: which lengths it takes, and that table and JSON tell the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.bench.suite import MODES, WORKLOADS, input_lengths, run


@pytest.mark.parametrize(
    ("context", "most", "lengths"),
    [
        (8192, 4096, [1024, 2048, 4096]),
        (4096, 9999, [1024, 2048]),
        (1024, 9999, []),
        (8192, 0, []),
    ],
)
def test_lengths_leave_room_for_the_answer(context: int, most: int, lengths: list[int]):
    assert input_lengths(context, most, answer_tokens=8) == lengths


def test_every_workload_is_measured_in_every_mode(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str]
):
    run(smollm2_path, tokens=8, max_input=0)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("| greedy", "| top-p")) for line in lines) == 9
    rows = {row["name"]: row for row in json.loads(lines[-1])["rows"]}
    for workload in WORKLOADS:
        for mode in MODES:
            assert rows[f"{workload}, {mode}: decode"]["value"] > 0
    assert rows["short, greedy: accepted"]["value"] == 1
