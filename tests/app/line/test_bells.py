"""Who is told to look again, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from app.store import keys
from app.store.bell import Bell
from tests.app.line.hall import POOL, Hall


@asynccontextmanager
async def expect_ring(bell: Bell, channel: str) -> AsyncGenerator[None]:
    """What happens inside must ring."""
    wake = asyncio.Event()
    async with bell.listen(channel, wake):
        wake.clear()
        yield
        await asyncio.wait_for(wake.wait(), 5)


async def test_every_change_of_the_line_rings_once_for_all(hall: Hall, bell: Bell) -> None:
    line = keys.line_bell(POOL)
    async with expect_ring(bell, line):
        node = await hall.node()
    async with expect_ring(bell, line):
        await hall.ask("holder", generation="h", hold=False)
    for name in ("ann", "bob", "cid"):
        async with expect_ring(bell, line):
            await hall.ask(name, generation=name)
    await hall.ask("bob", generation="bob2")
    async with expect_ring(bell, line):
        await hall.line.cancel(POOL, "bob2", "stopped")
    async with expect_ring(bell, line):
        await hall.line.leave("ann")
    await node.take()
    await hall.write_end("h")
    async with expect_ring(bell, line):
        await node.finish()
    hall.watched = {"bob"}
    async with expect_ring(bell, line):
        await hall.pass_time(132)  # cid's grace
    assert (await hall.place("cid")).state == "ended"


async def test_a_generation_rings_when_its_state_changes(hall: Hall, bell: Bell) -> None:
    node = await hall.node()
    await hall.ask("holder", generation="h", hold=False)
    await hall.ask("ann", generation="a1")
    channel = keys.generation_bell(POOL, "a1")
    await node.take()
    async with expect_ring(bell, channel):
        await node.finish()
    assert (await hall.place("a1")).state == "assigned"
    await node.take()
    async with expect_ring(bell, channel):
        await hall.line.cancel(POOL, "a1", "stopped")
    async with expect_ring(bell, channel):
        await node.finish()
    assert (await hall.place("a1")).state == "ended"


async def test_a_question_taken_back_from_a_dead_node_rings(hall: Hall, bell: Bell) -> None:
    node = await hall.node()
    await hall.ask("ann", generation="a1")
    await node.take()
    hall.silent = {"n1"}
    async with expect_ring(bell, keys.generation_bell(POOL, "a1")):
        await hall.pass_time(8)


async def test_nothing_rings_while_nothing_happens(hall: Hall, bell: Bell) -> None:
    await hall.node()
    await hall.ask("holder")
    await hall.ask("ann", generation="a1")
    wake = asyncio.Event()
    async with bell.listen(keys.line_bell(POOL), wake):
        wake.clear()
        for _ in range(5):
            await hall.pass_time(1)
            await hall.line.places(POOL, ["a1"], watched=True)
        # the bell is ordered: a ring from above would have come before this one
        await hall.store.command("PUBLISH", keys.generation_bell(POOL, "a1"), "")
        async with bell.listen(keys.generation_bell(POOL, "other"), asyncio.Event()):
            assert not wake.is_set()
