"""How many may wait from one address."""

from __future__ import annotations

import pytest

from app.errors import AddressFullError
from app.store import keys
from app.store.client import Store
from tests.app.line.hall import POOL, Hall, limits


@pytest.fixture
async def hall(store: Store) -> Hall:
    """Two may wait from one address; somebody has the only node."""
    hall = Hall(store, limits(max_waiting_per_address=2))
    await hall.node()
    await hall.ask("holder", generation="h", address="home")
    return hall


async def test_one_address_fills_only_its_share_of_the_line(hall: Hall) -> None:
    for seat in ("ann", "bob"):
        await hall.ask(seat, address="home")
    with pytest.raises(AddressFullError) as refused:
        await hall.ask("cid", address="home")
    assert refused.value.retry_after_seconds == 30
    assert (await hall.line.seat("cid")).state == "none"
    await hall.ask("dan", address="elsewhere")
    # who stands there already may ask more
    await hall.ask("ann", address="home")


async def test_whoever_leaves_or_gets_a_node_makes_room(hall: Hall) -> None:
    for seat in ("ann", "bob"):
        await hall.ask(seat, generation=seat, address="home")
    await hall.line.leave("bob")
    await hall.ask("cid", address="home")
    await hall.node("n2")
    assert (await hall.place("ann")).state == "assigned"
    await hall.ask("dan", address="home")
    with pytest.raises(AddressFullError):
        await hall.ask("eve", address="home")


async def test_nothing_stays_of_an_address_from_which_nobody_waits(hall: Hall) -> None:
    await hall.ask("ann", address="203.0.113.7")
    found = await hall.store.command("KEYS", keys.pool_prefix(POOL) + "from:*")
    assert len(found) == 1
    assert b"203.0.113.7" not in found[0]
    await hall.line.leave("ann")
    assert await hall.store.command("KEYS", keys.pool_prefix(POOL) + "from:*") == []


def test_the_share_is_a_quarter_unless_it_is_set() -> None:
    assert limits(max_waiting=200).most_waiting_per_address() == 50
    assert limits(max_waiting=4).most_waiting_per_address() == 10
    assert limits(max_waiting_per_address=3).most_waiting_per_address() == 3
