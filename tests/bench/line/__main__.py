"""`make bench-line`: the line under load, as a table and one line of JSON.

Store, web process, nodes and clients are processes of their own, all on this machine. Names of
sections as arguments run only those: steps requests crowd handover relay.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop

from app.web import raise_file_limit
from engine.bench.report import Row, print_report
from tests.bench.line import crowd, handover, relay, requests, steps

SECTIONS: dict[str, Callable[[], Awaitable[list[Row]]]] = {
    "steps": steps.rows,
    "requests": requests.rows,
    "crowd": crowd.rows,
    "handover": handover.rows,
    "relay": relay.rows,
}


async def main(names: list[str]) -> None:
    raise_file_limit()
    rows: list[Row] = []
    for name in names or list(SECTIONS):
        began_s = time.perf_counter()
        rows += await SECTIONS[name]()
        print(f"{name}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
    print_report("line", rows)


if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in SECTIONS]
    if unknown:
        sys.exit(f"There are these sections: {', '.join(SECTIONS)}. Not: {', '.join(unknown)}")
    # EmbeddedStore starts from the main thread, which this is
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1:]))
