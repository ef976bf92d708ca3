"""Node processes as `baton node` starts them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.app.node.desk import POOL

ROOT = Path(__file__).parents[3]
_WRONG_CLOCK = str(ROOT / "tests" / "wrong_clock")


def wrong_clock(seconds: int) -> dict[str, str]:
    """Variables of a Python process whose wall clock is to be wrong by so much."""
    path = os.pathsep.join(filter(None, (_WRONG_CLOCK, os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "WRONG_CLOCK_SECONDS": str(seconds)}


@asynccontextmanager
async def process(
    url: str,
    name: str,
    *options: str,
    kind: str = "scripted",
    pool: str = POOL,
    clock_wrong_seconds: int = 0,
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """`baton node`, killed at the end if it still runs."""
    environment = {**os.environ, "BATON_REDIS_URL": url, "BATON_SHUTDOWN_GRACE_SECONDS": "0.2"}
    if clock_wrong_seconds:
        environment |= wrong_clock(clock_wrong_seconds)
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.cli", "node", "--kind", kind, "--pool", pool,
        "--name", name, *options,
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()
