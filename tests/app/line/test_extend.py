"""More time for a holder: as often as one likes while nobody waits, else as often as the setting says."""

from __future__ import annotations

import pytest

from app.errors import NoLeaseError, OthersWaitError
from app.store import keys
from app.store.client import Store
from tests.app.line.hall import FakeNode, Hall, limits


async def hold(hall: Hall) -> FakeNode:
    """Ann has the only node and is in the middle of an answer."""
    node = await hall.node()
    await hall.ask_at_node("ann", "a1", node)
    hall.watched = {"a1"}
    return node


async def certain(hall: Hall) -> float:
    seconds = (await hall.line.seat("ann")).certain_seconds
    assert seconds is not None
    return seconds


async def test_while_nobody_waits_a_slice_begins_anew_as_often_as_asked(store: Store) -> None:
    hall = Hall(store, limits(slice_seconds=40))
    await hold(hall)
    for _ in range(3):
        await hall.pass_time(30)
        assert await certain(hall) == pytest.approx(10, abs=2)
        await hall.line.extend("ann")
        assert await certain(hall) == pytest.approx(40, abs=2)
    # whoever comes now waits for the whole of it
    await hall.ask("bob", generation="b1")
    hall.watched |= {"b1"}
    await hall.pass_time(36)
    assert not (await hall.place("a1")).ending
    await hall.pass_time(8)
    assert (await hall.place("a1")).ending


async def test_it_begins_now_and_adds_nothing_up(store: Store) -> None:
    hall = Hall(store, limits(slice_seconds=40))
    await hold(hall)
    for _ in range(5):
        await hall.line.extend("ann")
    assert await certain(hall) == pytest.approx(40, abs=2)


async def test_while_others_wait_it_is_refused_with_their_number(hall: Hall) -> None:
    await hold(hall)
    await hall.ask("bob", generation="b1")
    assert not (await hall.line.seat("ann")).may_extend
    with pytest.raises(OthersWaitError, match="Somebody is waiting"):
        await hall.line.extend("ann")
    await hall.ask("cid", generation="c1")
    with pytest.raises(OthersWaitError, match="2 people are waiting"):
        await hall.line.extend("ann")
    await hall.line.leave("bob")
    await hall.line.leave("cid")
    assert (await hall.line.seat("ann")).may_extend
    await hall.line.extend("ann")


async def test_a_setting_allows_some_extensions_while_others_wait(store: Store) -> None:
    hall = Hall(store, limits(slice_seconds=40, slice_extensions=1))
    node = await hold(hall)
    await hall.ask("bob", generation="b1")
    hall.watched |= {"b1"}
    await hall.pass_time(30)
    await hall.line.extend("ann")
    with pytest.raises(OthersWaitError):
        await hall.line.extend("ann")
    await hall.pass_time(20)
    assert not (await hall.place("a1")).ending
    # each lease has its own
    await hall.line.leave("ann")
    await node.beat()
    await node.finish()
    await node.take()
    await hall.ask("ann", generation="a2")
    await hall.line.extend("bob")


async def test_a_rest_begins_anew_too(hall: Hall) -> None:
    node = await hold(hall)
    await hall.write_end("a1")
    await node.finish()
    await hall.pass_time(40)
    await hall.line.extend("ann")
    await hall.pass_time(40)
    assert (await hall.line.seat("ann")).state == "holding"
    await hall.pass_time(24)
    assert (await hall.line.seat("ann")).state == "none"


async def test_what_is_over_or_never_was_is_not_extended(store: Store) -> None:
    hall = Hall(store, limits(slice_seconds=10, slice_extensions=5))
    with pytest.raises(NoLeaseError):
        await hall.line.extend("ann")
    await hold(hall)
    await hall.ask("bob", generation="b1")
    with pytest.raises(NoLeaseError):
        await hall.line.extend("bob")
    hall.watched |= {"b1"}
    await hall.pass_time(12)
    assert (await hall.place("a1")).ending
    with pytest.raises(NoLeaseError):
        await hall.line.extend("ann")


async def test_the_claim_lives_as_long_as_the_lease_that_is_extended(hall: Hall) -> None:
    node = await hold(hall)
    await hall.write_end("a1")
    await node.finish()
    await hall.store.command("PEXPIRE", keys.seat_claim("ann"), 60_000)
    await hall.line.extend("ann")
    # else another pool could take the seat in while it still has this node
    assert await hall.store.command("PTTL", keys.seat_claim("ann")) > 60_000
