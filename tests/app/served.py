"""`baton serve` as a process, and what it printed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from tests.waiting import until

ROOT = Path(__file__).parents[2]
FAST_STOP = {"BATON_SHUTDOWN_GRACE_SECONDS": "1", "BATON_LOG_JSON": "true"}


class Served:
    """A running `baton serve` and what it printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    @property
    def url(self) -> str | None:
        found = re.search(r"Baton is ready: (\S+)", "\n".join(self.lines))
        return found.group(1) if found else None

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    def children(self) -> dict[str, psutil.Process]:
        """By role: web, node, store."""
        living = running(self.supervisor.children(recursive=True))
        return {role: child for child in living if (role := _role(child))}

    async def ended(self) -> int:
        async with asyncio.timeout(30):
            code = await self.process.wait()
            await self._reading
        return code


def _role(process: psutil.Process) -> str | None:
    """None: it has just ended, or has not become itself yet."""
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None
    if any("valkey-server" in word for word in words):
        return "store"
    return next((role for role in ("web", "node") if role in words), None)


@asynccontextmanager
async def serving(folder: Path, *arguments: str, **variables: str) -> AsyncGenerator[Served]:
    environment = {**os.environ, **FAST_STOP, "BATON_DATA_FOLDER": str(folder), **variables}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.cli", "serve", "--kind", "scripted", "--port", "0", *arguments,
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    served = Served(process)
    try:
        yield served
    finally:
        if process.returncode is None:
            process.terminate()
        await served.ended()


async def ready(served: Served) -> dict[str, psutil.Process]:
    await until(lambda: served.url or served.process.returncode, within_seconds=60, what="ready")
    assert served.url, "\n".join(served.lines)
    return served.children()


def running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
