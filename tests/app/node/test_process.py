"""Node processes as `baton node` starts them: killed, told to stop, without a store."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from app.node.kinds import scripted_model
from app.store.client import Store
from tests.app.node.desk import POOL, Place, tokens_of, work
from tests.app.node.processes import process
from tests.waiting import until

EXPECTED = list(scripted_model.answer_ids((1, 2, 3), None, 600))


async def test_the_question_of_a_killed_node_is_answered_by_another(store: Store, valkey_url: str):
    place = Place.on(store)
    async with process(valkey_url, "doomed", "--stall-at", "0") as doomed:
        await until(place.has_nodes, within_seconds=30, what="registered")
        generation = await place.ask(work())
        await until(lambda: place.entries(generation), what="it has begun to read")
        async with process(valkey_url, "other", "--tokens-per-second", "5000"):
            doomed.kill()
            entries = await place.ended(generation, within_seconds=60)
    assert entries[-1].kind == "done"
    assert tokens_of(entries) == EXPECTED[:50]


async def test_the_answer_of_a_killed_node_is_continued_by_another(store: Store, valkey_url: str):
    place = Place.on(store)
    async with process(valkey_url, "doomed", "--stall-at", "5") as doomed:
        await until(place.has_nodes, within_seconds=30, what="registered")
        generation = await place.ask(work())
        await until(lambda: _written(place, generation, 5), what="five tokens")
        async with process(valkey_url, "other", "--tokens-per-second", "5000"):
            doomed.kill()
            entries = await place.ended(generation, within_seconds=60)
    assert entries[-1].kind == "done"
    assert entries[-1].data["usage"]["completion_tokens"] == 50
    assert entries[-1].data["usage"]["resumed_tokens"] == 5
    assert tokens_of(entries) == EXPECTED[:50]
    assert [entry.data["exact"] for entry in entries if "exact" in entry.data] == [True]


async def test_a_node_that_was_stopped_and_wakes_up_adds_nothing(store: Store, valkey_url: str):
    place = Place.on(store)
    slow = ("--tokens-per-second", "60")
    async with process(valkey_url, "sleeper", *slow) as sleeper:
        await until(place.has_nodes, within_seconds=30, what="registered")
        generation = await place.ask(work(max_tokens=300))
        await place.writing(generation)
        async with process(valkey_url, "other", *slow):
            await until(place.has_nodes, within_seconds=30, what="registered")
            sleeper.send_signal(signal.SIGSTOP)

            async def moved() -> bool:
                await place.line.pump(POOL)
                kinds = [entry.kind for entry in await place.entries(generation)]
                return kinds[-1] == "delta" and "reading" in kinds[kinds.index("delta") :]

            await until(moved, within_seconds=60, what="the other one writes")
            sleeper.send_signal(signal.SIGCONT)
            entries = await place.ended(generation, within_seconds=60)
            # it has noticed, and serves on
            await until(lambda: _nodes(place, 2), within_seconds=30, what="both are there")
    assert tokens_of(entries) == EXPECTED[:300]
    assert [entry.kind for entry in entries if entry.is_last] == ["done"]


async def _nodes(place: Place, count: int) -> bool:
    return [pool.idle_nodes for pool in await place.line.pools()] == [count]


async def test_what_a_killed_node_wrote_is_kept_if_no_other_comes(store: Store, valkey_url: str):
    place = Place.on(store, rescue_seconds=1)
    async with process(valkey_url, "doomed", "--stall-at", "5") as doomed:
        await until(place.has_nodes, within_seconds=30, what="registered")
        generation = await place.ask(work())
        await until(lambda: _written(place, generation, 5), what="five tokens")
        doomed.kill()
        entries = await place.ended(generation, within_seconds=60)
    assert entries[-1].kind == "failed"
    assert (entries[-1].data["code"], entries[-1].data["retry"]) == ("node_lost", True)
    assert len(tokens_of(entries)) == 5


async def _written(place: Place, generation: str, tokens: int) -> bool:
    return len(tokens_of(await place.entries(generation))) == tokens


async def test_a_restarted_node_takes_its_place_at_once(store: Store, valkey_url: str):
    place = Place.on(store)
    async with process(valkey_url, "phoenix", "--stall-at", "0") as first:
        await until(place.has_nodes, within_seconds=30, what="registered")
        generation = await place.ask(work())
        await until(lambda: place.entries(generation), what="it has begun to read")
        first.kill()
        await first.wait()
        async with process(valkey_url, "phoenix", "--tokens-per-second", "5000"):
            entries = await place.ended(generation, within_seconds=60)
            pools = await place.line.pools()
    assert entries[-1].kind == "done"
    assert pools[0].nodes == 1


async def test_sigterm_ends_it_with_0_and_it_leaves_the_line(store: Store, valkey_url: str):
    place = Place.on(store)
    async with process(valkey_url, "polite") as node:
        await until(place.has_nodes, within_seconds=30, what="registered")
        node.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await node.wait() == 0
        assert not await place.has_nodes()
        assert node.stderr
        log = (await node.stderr.read()).decode()
    assert log.count("numerics=") == 1
    assert "Traceback" not in log


async def test_without_a_store_it_says_so_once_keeps_trying_and_still_stops(tmp_path: Path):
    async with process(f"unix://{tmp_path}/nobody", "alone") as node:
        assert node.stderr
        said: list[bytes] = []
        while b"out of reach" not in b"".join(said):
            said.append(await node.stderr.readline())
        node.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await node.wait() == 0
        said.append(await node.stderr.read())
    assert b"".join(said).count(b"out of reach") == 1
    assert b"Traceback" not in b"".join(said)


async def test_a_node_with_two_slots_answers_two_at_once(store: Store, valkey_url: str):
    place = Place.on(store)
    async with process(valkey_url, "wide", "--slots", "2", "--stall-at", "5") as node:
        await until(lambda: _nodes(place, 2), within_seconds=30, what="both slots")
        asked = [await place.ask(work(), seat=f"u:{number}") for number in (1, 2)]

        async def both_write() -> bool:
            return all([await _written(place, generation, 5) for generation in asked])

        await until(both_write, what="five tokens of each")
        views = await place.line.nodes(POOL)
        assert [(view.id, view.slots, view.busy_slots) for view in views] == [("wide", 2, 2)]
        # both answers move, and both slots say goodbye
        node.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await node.wait() == 0
    assert await place.line.nodes(POOL) == []
    async with process(valkey_url, "other", "--slots", "2", "--tokens-per-second", "5000"):
        for generation in asked:
            entries = await place.ended(generation, within_seconds=60)
            assert tokens_of(entries) == EXPECTED[:50]
