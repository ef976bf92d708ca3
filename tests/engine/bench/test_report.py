"""A benchmark's output: a table for people, one JSON line for machines."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from engine.bench.report import Row, commit, json_line, machine, measured, print_report, table


def test_the_median_stands_with_its_range():
    row = measured("decode", [3.0, 1.0, 2.0, 10.0, 2.5], "tok/s", 2.0, "higher")
    assert (row.value, row.low, row.high) == (2.5, 1.0, 10.0)


@pytest.mark.parametrize(
    ("value", "goal", "better", "reached"),
    [
        (2.0, 2.0, "higher", True),
        (1.9, 2.0, "higher", False),
        (2.0, 2.0, "lower", True),
        (2.1, 2.0, "lower", False),
        (2.0, None, "lower", None),
    ],
)
def test_a_goal_is_reached_from_the_better_side(
    value: float, goal: float | None, better: Literal["higher", "lower"], reached: bool | None
):
    assert Row("x", value, "ms", goal, better).reached is reached


def test_the_table_says_goal_and_range_where_there_are_any():
    rows = [
        Row("decode", 123.456, "tok/s", 100.0, "higher", 99.0, 131.4),
        Row("a|b", 0.123456, "", None, "lower"),
    ]
    assert table(rows).splitlines()[2:] == [
        "| decode | 123 | tok/s | 99 - 131 | >= 100 | yes |",
        "| a\\|b | 0.123 |  |  |  |  |",
    ]


def test_the_json_line_has_the_agreed_fields():
    rows = [Row("decode", 1.5, "tok/s", None, "higher"), measured("t", [1, 2], "ms", 3, "lower")]
    document = json.loads(json_line("offline", rows, "a machine", "abc"))
    assert (document["bench"], document["machine"], document["commit"]) == (
        "offline",
        "a machine",
        "abc",
    )
    assert document["rows"] == [
        {"name": "decode", "value": 1.5, "unit": "tok/s", "goal": None, "better": "higher"},
        {
            "name": "t",
            "value": 1.5,
            "unit": "ms",
            "goal": 3,
            "better": "lower",
            "low": 1,
            "high": 2,
        },
    ]


def test_the_json_is_the_last_line_printed(capsys: pytest.CaptureFixture[str]):
    print_report("offline", [Row("decode", 1.0, "tok/s", None, "higher")])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["machine"] == machine()
    assert document["commit"] == commit()
    assert "cores" in document["machine"]
