"""Background loops of a process: started together, restarted when they break, ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import structlog

log = structlog.get_logger(__name__)

RESTART_SECONDS = 1.0


async def keep_running(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run `loop` until cancelled; a loop that breaks is logged with its traceback and run again."""
    while True:
        try:
            await loop()
        except Exception:
            log.exception("background loop broke", loop=name)
        await asyncio.sleep(RESTART_SECONDS)


@asynccontextmanager
async def running(loops: Mapping[str, Callable[[], Awaitable[None]]]) -> AsyncGenerator[None]:
    """Hold the loops for the length of the block; at its end they are cancelled and awaited."""
    tasks = [
        asyncio.create_task(keep_running(name, loop), name=name) for name, loop in loops.items()
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
