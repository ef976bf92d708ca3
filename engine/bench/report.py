"""What every benchmark prints: a Markdown table for people, then one JSON line for machines.

    {"bench", "machine", "commit", "rows": [{"name", "value", "unit", "goal", "better"}]}

A row that was measured several times also says its least and largest value. Names stay stable, so
that results can be laid beside each other.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from engine.machine import core_count, memory_bytes, processor


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    # None where the row is there to be read and nothing is asked of it
    goal: float | None
    better: Literal["higher", "lower"]
    low: float | None = None
    high: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal


def measured(
    name: str,
    values: Sequence[float],
    unit: str,
    goal: float | None,
    better: Literal["higher", "lower"],
) -> Row:
    """The median of several measurements, with their range."""
    return Row(name, median(values), unit, goal, better, min(values), max(values))


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | value | unit | min - max | goal | reached |", "|---|---:|---|---|---:|---|"]
    for row in rows:
        spread = "" if row.low is None or row.high is None else f"{_n(row.low)} - {_n(row.high)}"
        goal = (
            "" if row.goal is None else f"{'>=' if row.better == 'higher' else '<='} {_n(row.goal)}"
        )
        reached = {None: "", True: "yes", False: "no"}[row.reached]
        cells = (row.name, _n(row.value), row.unit, spread, goal, reached)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def json_line(bench: str, rows: Sequence[Row], machine: str, commit: str) -> str:
    """The same as one line of JSON; a range only where there is one."""
    listed = [
        {key: value for key, value in asdict(row).items() if value is not None or key == "goal"}
        for row in rows
    ]
    return json.dumps({"bench": bench, "machine": machine, "commit": commit, "rows": listed})


def print_report(bench: str, rows: Sequence[Row]) -> None:
    """Print the table and then, as the last line of all, the JSON."""
    print(table(rows))
    print()
    print(json_line(bench, rows, machine(), commit()))


def machine() -> str:
    """Processor, cores this process may use, and memory."""
    return f"{processor()}, {core_count()} cores, {memory_bytes() / 2**30:.0f} GiB"


def commit() -> str:
    """Short hash of the checkout, with a + when files differ from it; "unknown" outside of one."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def _n(value: float) -> str:
    """Three significant digits, and whole numbers from a hundred on."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
