from __future__ import annotations

from collections import Counter

from app.line import eta
from app.line.types import Tier
from app.store.client import Store
from tests.app.line.hall import FakeNode, Hall, limits

TIERS: tuple[Tier, ...] = ("priority", "browser", "api")


async def serve(hall: Hall, node: FakeNode, count: int) -> list[str]:
    """Serve `count` questions, one each; the generations in the order of service."""
    served: list[str] = []
    for _ in range(count):
        await node.beat()
        taken = await node.take()
        assert taken is not None
        served.append(taken.generation)
        await hall.write_end(taken.generation)
        await node.finish()
    return served


async def test_within_a_lane_first_come_is_first_served(hall: Hall) -> None:
    node = await hall.node()
    names = [f"x{number}" for number in range(12)]
    for name in names:
        await hall.ask(name, generation=name, hold=False)
    assert await serve(hall, node, 12) == names


async def test_the_tiers_share_the_node_by_their_weights(store: Store) -> None:
    hall = Hall(store, limits(max_waiting=1000))
    node = await hall.node()
    await hall.ask("holder", generation="browser-holder", hold=False)
    for number in range(30):
        for tier in TIERS:
            name = f"{tier}-{number}"
            await hall.ask(name, generation=name, tier=tier, hold=False)
    served = Counter(name.partition("-")[0] for name in await serve(hall, node, 44))
    # 4 rounds of 11 grants; the estimates use the same weights
    assert served == {tier: 4 * weight for tier, weight in eta.WEIGHTS.items()}


async def test_a_tier_that_was_empty_has_saved_up_no_credit(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("holder", generation="holder", hold=False)
    for number in range(40):
        await hall.ask(f"b{number}", generation=f"b{number}", hold=False)
    await serve(hall, node, 21)
    for number in range(10):
        name = f"api-{number}"
        await hall.ask(name, generation=name, tier="api", hold=False)
    served = Counter(name.startswith("api") for name in await serve(hall, node, 10))
    assert served == {True: 4, False: 6}


async def test_a_busy_higher_tier_starves_nobody(hall: Hall) -> None:
    node = await hall.node()
    await hall.ask("holder", generation="holder", hold=False)
    await hall.ask("program", generation="program", tier="api", hold=False)
    served: list[str] = []
    for number in range(12):
        for pair in range(2):
            await hall.ask(f"p{number}-{pair}", tier="priority", hold=False)
        served += await serve(hall, node, 1)
    assert "program" in served
