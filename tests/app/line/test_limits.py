"""Whose settings rule the line: those of the web side, whoever runs a script."""

from __future__ import annotations

from app.line.nodes import NodeDesk
from app.line.operations import limits_of
from app.store import keys
from app.store.client import Store
from tests.app.line.hall import POOL, Hall, limits


async def test_a_lease_that_a_nodes_call_begins_has_the_sites_slice(store: Store) -> None:
    hall = Hall(store, limits(slice_seconds=20))
    node = await hall.node()
    await hall.ask_at_node("ann", "a1", node)
    await hall.ask("bob", hold=False, generation="b1")
    node.desk = NodeDesk(store, POOL, limits(slice_seconds=7200, idle_limit_seconds=7200))
    await hall.line.leave("ann")
    await hall.ask("cid", generation="c1")
    await hall.write_end("a1")
    await node.finish()  # this call gives the node to bob
    left = (await hall.place("b1")).slice_left_seconds
    assert left is not None
    assert left <= 20


async def test_the_settings_of_a_restarted_web_process_take_effect(store: Store) -> None:
    await Hall(store, limits(slice_seconds=20)).line.pump(POOL)
    changed = limits(slice_seconds=40)
    await Hall(store, changed).line.pump(POOL)
    assert await store.command("GET", keys.line_limits(POOL)) == limits_of(changed)
