from __future__ import annotations

from app.store import keys
from tests.app.line.hall import POOL, FakeNode, Hall


async def next_fence(hall: Hall, node: FakeNode) -> int:
    """Run one question through the node; the fence it got."""
    await hall.ask("ann", hold=False)
    taken = await node.take()
    assert taken is not None
    await node.finish()
    return taken.fence


async def test_fences_only_grow(hall: Hall) -> None:
    node = await hall.node()
    fences = [await next_fence(hall, node) for _ in range(5)]
    assert fences == sorted(set(fences))


async def test_a_clock_set_back_does_not_lower_a_fence(hall: Hall) -> None:
    node = await hall.node()
    before = await next_fence(hall, node)
    await hall.shift_clock(-86_400)
    assert await next_fence(hall, node) == before + 1


async def test_a_store_that_lost_its_memory_does_not_lower_a_fence(hall: Hall) -> None:
    node = await hall.node()
    before = await next_fence(hall, node)
    await hall.store.command("FLUSHALL")
    await node.come()
    assert await next_fence(hall, node) > before


async def test_when_store_and_nodes_have_forgotten_the_clock_keeps_fences_growing(
    hall: Hall,
) -> None:
    node = await hall.node()
    before = await next_fence(hall, node)
    await hall.store.command("FLUSHALL")
    node.boot, node.highest_fence = "boot-2", 0
    await node.come()
    assert await next_fence(hall, node) > before


async def test_lost_memory_and_a_clock_set_back_do_not_lower_a_fence(hall: Hall) -> None:
    node = await hall.node()
    before = await next_fence(hall, node)
    await hall.store.command("FLUSHALL")
    await hall.shift_clock(-86_400)
    # what the node reports is the memory that is left
    await node.come()
    assert await next_fence(hall, node) == before + 1


async def test_another_nodes_higher_fence_counts_for_all(hall: Hall) -> None:
    await hall.node("n1")
    await hall.node("n2")
    hall.nodes["n2"].highest_fence = 2**51
    await hall.nodes["n2"].beat()
    await hall.ask("ann", generation="a1")
    fence = await hall.store.command("HGET", keys.generation_hash(POOL, "a1"), "fence")
    assert int(fence) == 2**51 + 1


async def test_an_impossible_fence_is_not_believed(hall: Hall) -> None:
    node = await hall.node()
    node.highest_fence = 2**60
    await node.beat()
    node.highest_fence = 0
    assert await next_fence(hall, node) < 2**52
