"""Child processes of the supervisor: started in their own process group, restarted, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from app.process import EXIT_CONFIGURATION, PARENT_VARIABLE

log = structlog.get_logger(__name__)

# where this very package lies, installed or not
ROOT = str(Path(__file__).parents[1])

FIRST_RESTART_SECONDS = 0.5
LONGEST_RESTART_SECONDS = 30.0
# whoever ran this long has not broken at its start
HEALTHY_SECONDS = 60.0


class ChildRefusedError(Exception):
    """A child found its configuration wrong and said so: restarting it would not help."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """`baton <arguments>` with these variables on top of the supervisor's own."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    # file descriptors that it inherits
    descriptors: tuple[int, ...] = ()
    # from SIGTERM until SIGKILL
    grace_seconds: float = 10.0


class Child:
    """One child and its successors. Start it from the main thread: the kernel ties a child's
    parent-death signal to the thread that made it."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def keep(self) -> None:
        """Run it until `stop`, restarting it with back-off. Raises ChildRefusedError."""
        wait_seconds = FIRST_RESTART_SECONDS
        while not self._stopping.is_set():
            started_s = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            if code == EXIT_CONFIGURATION:
                raise ChildRefusedError(self.spec.name)
            if time.monotonic() - started_s > HEALTHY_SECONDS:
                wait_seconds = FIRST_RESTART_SECONDS
            log.warning(
                "child ended; starting it again",
                child=self.spec.name,
                code=code,
                in_seconds=wait_seconds,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._stopping.wait()
            wait_seconds = min(wait_seconds * 2, LONGEST_RESTART_SECONDS)

    async def _run_once(self) -> int:
        """Its exit code; negative: ended by that signal."""
        environment = {
            **os.environ,
            **self.spec.environment,
            "PYTHONPATH": os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH")))),
            PARENT_VARIABLE: str(os.getpid()),
        }
        self._process = await asyncio.create_subprocess_exec(
            # -P: a folder named "app" where Baton was started is not taken for this one
            sys.executable, "-P", "-m", "app.cli", *self.spec.arguments,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=self.spec.descriptors,
            # Ctrl-C reaches the supervisor alone, which then stops its children in order
            process_group=0,
        )  # fmt: skip
        log.info("child started", child=self.spec.name, pid=self._process.pid)
        if self._stopping.is_set():
            # told to stop while it was being made
            self._signal(self._process, signal.SIGTERM)
        try:
            return await self._process.wait()
        finally:
            if self._process.returncode is not None:
                self._process = None

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after the grace; returns when it is gone."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        self._signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(self.spec.grace_seconds):
                await process.wait()
        except TimeoutError:
            log.warning("child did not stop in time", child=self.spec.name)
            self._signal(process, signal.SIGKILL)
            await process.wait()
        log.info("child stopped", child=self.spec.name)

    def kill(self) -> None:
        """End it at once."""
        self._stopping.set()
        if self._process is not None:
            self._signal(self._process, signal.SIGKILL)

    @staticmethod
    def _signal(process: asyncio.subprocess.Process, which: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(which)
