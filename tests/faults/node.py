"""`baton node --kind scripted` that also writes down what it runs: the nodes' side of a history.

python -m tests.faults.node RUNS_FILE NAME POOL TOKENS_PER_SECOND
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import orjson

from app.node import agent
from app.node.answer import Answer
from app.node.kinds import KindOptions
from app.node.kinds.scripted import Script
from app.node.run import NodeOptions, run_node
from app.settings import Settings
from tests.history.events import Run

# the kind's pace is even: a pass of one token, so that a kill falls between any two of them
ANSWER_TOKENS = 400


class _NotedAnswer(Answer):
    runs_file: Path
    node: str

    async def run(self) -> None:
        self._note("began")
        try:
            await super().run()
        finally:
            self._note("over")

    def _note(self, what: str) -> None:
        noted = {
            "what": what, "node": self.node, "generation": self.generation, "fence": self.fence,
            "at_us": time.time_ns() // 1000,
        }  # fmt: skip
        with self.runs_file.open("ab") as file:
            file.write(orjson.dumps(noted) + b"\n")


def runs_of(runs_file: Path) -> list[Run]:
    """What all starts of the nodes that write into this file ran."""
    if not runs_file.exists():
        return []
    notes = [orjson.loads(line) for line in runs_file.read_bytes().splitlines()]
    over = {(n["node"], n["fence"]): n["at_us"] for n in notes if n["what"] == "over"}
    return [
        Run(
            node=n["node"],
            generation=n["generation"],
            fence=n["fence"],
            began_us=n["at_us"],
            over_us=over.get((n["node"], n["fence"])),
        )
        for n in notes
        if n["what"] == "began"
    ]


def main(runs_file: str, name: str, pool: str, tokens_per_second: str) -> int:
    _NotedAnswer.runs_file, _NotedAnswer.node = Path(runs_file), name
    agent.Answer = _NotedAnswer
    script = Script(
        tokens_per_second=float(tokens_per_second), tokens_per_step=1, prefill_ms_per_token=1,
        answer_tokens=ANSWER_TOKENS,
    )  # fmt: skip
    options = NodeOptions("scripted", pool, name, kinds=KindOptions(script=script))
    return run_node(options, Settings())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
