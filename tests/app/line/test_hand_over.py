"""From a release to the next holder's grant nothing is polled: one script, one bell, one inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from app.line import board as boards
from app.line.board import Board
from app.store import keys
from app.store.bell import Bell
from tests.app.line.hall import POOL, Hall

Release = Callable[[Hall], Awaitable[None]]


async def _finish(hall: Hall) -> None:
    """An API answer ends."""
    await hall.nodes["n1"].finish()


async def _leave(hall: Hall) -> None:
    """Somebody at rest gives the node back."""
    await hall.nodes["n1"].finish()
    await hall.line.leave("holder")


async def _until(wake: asyncio.Event, holds: Callable[[], bool]) -> None:
    """Look when woken, and only then."""
    while not holds():
        wake.clear()
        await wake.wait()


@pytest.mark.parametrize(("release", "hold"), [(_finish, False), (_leave, True)])
async def test_the_next_in_line_and_its_node_hear_of_a_release_by_a_bell(
    hall: Hall, bell: Bell, monkeypatch: pytest.MonkeyPatch, release: Release, hold: bool
) -> None:
    # nobody pumps, nobody reports, and the board looks again only when it is rung
    monkeypatch.setattr(boards, "_MOST_SECONDS", 3600.0)
    node = await hall.node()
    await hall.ask("holder", generation="h", hold=hold)
    await node.take()
    await hall.ask("ann", generation="a1")
    await hall.store.command("DEL", keys.inbox(POOL, "n1"))
    wake = asyncio.Event()
    async with AsyncExitStack() as stack:
        board = await stack.enter_async_context(Board(hall.line, bell))
        watched = await stack.enter_async_context(board.watch(POOL, "a1", wake))
        await _until(wake, lambda: watched.place is not None)
        assert watched.place is not None
        assert watched.place.state == "queued"
        waiting = asyncio.create_task(hall.nodes["n1"].desk.wait("n1", 60))
        await hall.write_end("h")
        await release(hall)
        # both come of themselves; a lost bell would let these wait for ever
        async with asyncio.timeout(30):
            await _until(wake, lambda: watched.place is not None and watched.place.node is not None)
            assert await waiting == "job"
    taken = await node.take()
    assert taken is not None
    assert taken.generation == "a1"
