"""From a real store's append-only file to a history: everything is in it, and an honest line is silent."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.errors import StoreUnavailableError
from app.store import keys
from app.store.client import Store
from tests.app.line.hall import POOL, Hall
from tests.app.store.servers import OwnServer
from tests.history import events as e
from tests.history.aof import steps_of
from tests.history.chronicle import chronicle
from tests.history.promises import breaches
from tests.waiting import until


@pytest.fixture
async def hall(recorder: OwnServer) -> AsyncIterator[Hall]:
    async with Store.connect(recorder.url) as store:
        yield Hall(store)


def history_of(recorder: OwnServer, *, is_whole: bool = True) -> e.History:
    recorder.stop()
    lives = [steps_of(folder) for folder in recorder.lives()]
    return e.History(list(chronicle(lives)), is_whole=is_whole)


async def is_back(hall: Hall) -> bool:
    """The connections that broke have been noticed."""
    try:
        await hall.store.ping()
    except StoreUnavailableError:
        return False
    return True


async def busy_day(hall: Hall) -> None:
    """Ann is answered and leaves, bob's node dies and no other comes, cid goes away."""
    await hall.node("n1")
    await hall.ask_at_node("ann", "a1", hall.nodes["n1"])
    await hall.ask("bob", generation="b1")
    await hall.ask("cid", generation="c1")
    hall.watched = {"a1", "b1"}
    await hall.begin_writing("a1")
    await hall.write_end("a1")
    await hall.nodes["n1"].finish()
    await hall.line.leave("ann")
    await hall.nodes["n1"].take()
    await hall.begin_writing("b1")
    await hall.crash()
    await hall.pass_time(130)
    await hall.node("n2")
    await hall.line.leave("bob")


async def test_the_history_of_an_honest_line_is_silent(recorder: OwnServer, hall: Hall) -> None:
    await busy_day(hall)
    history = history_of(recorder)
    assert breaches(history) == []
    told = [event for pool, event in history.events if pool == POOL]
    assert [(g.generation, g.node) for g in told if isinstance(g, e.Given)] == [
        ("a1", "n1"), ("b1", "n1"),
    ]  # fmt: skip
    assert [one.reason for one in told if isinstance(one, e.Closed)] == [
        "left",
        "node_lost",
        "away",
    ]
    written = [one for one in told if isinstance(one, e.Written) and one.generation == "a1"]
    assert [one.kind for one in written] == ["delta", "done"]
    assert written[0].fence == next(g.fence for g in told if isinstance(g, e.Given))
    assert e.TakenBack("b1") in told


async def test_what_happens_in_the_store_against_the_rules_is_found(
    recorder: OwnServer, hall: Hall
) -> None:
    await hall.node("n1")
    await hall.ask_at_node("ann", "a1", hall.nodes["n1"])
    await hall.ask("bob", generation="b1")
    ticket = (await hall.place("b1")).ticket
    # a grant by hand: of a node that ann holds, under an old fence
    await hall.store.command(
        "HSET", f"{keys.pool_prefix(POOL)}t:{ticket}", "state", "granted", "node", "n1"
    )
    await hall.store.command(
        "HSET", keys.generation_hash(POOL, "b1"),
        "state", "assigned", "node", "n1", "fence", 5, "length", 0,
    )  # fmt: skip
    found = {breach.promise for breach in breaches(history_of(recorder, is_whole=False))}
    assert {1, 2} <= found


async def test_a_history_goes_over_kills_and_lost_memories(recorder: OwnServer, hall: Hall) -> None:
    await hall.node("n1")
    await hall.ask("ann", generation="a1")
    # a slow disk makes the server keep writes back for a moment, and a kill costs those
    await hall.store.command("WAITAOF", 1, 0, 2500)
    recorder.kill()
    recorder.start()
    await until(lambda: is_back(hall))
    assert (await hall.place("a1")).state == "assigned"
    recorder.kill()
    recorder.forget()
    recorder.start()
    await until(lambda: is_back(hall))
    assert await hall.line.pools() == []
    await hall.nodes["n1"].come()
    await hall.ask("ann", generation="a2")
    history = history_of(recorder, is_whole=False)
    assert breaches(history) == []
    kinds = [type(event) for _, event in history.events]
    assert kinds.count(e.Forgot) == 1
    assert kinds.count(e.Given) == 2


async def test_a_file_that_was_rewritten_is_no_history(recorder: OwnServer, hall: Hall) -> None:
    await hall.node("n1")
    await hall.store.command("BGREWRITEAOF")

    def is_rewritten() -> bool:
        folder = recorder.lives()[-1] / "appendonlydir"
        return b".2.incr." in (folder / "appendonly.aof.manifest").read_bytes() and not list(
            folder.glob("*.1.incr.aof")
        )

    await until(is_rewritten)
    with pytest.raises(ValueError, match="beginning"):
        list(steps_of(recorder.lives()[-1]))
