from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from app.store import bell as bell_module
from app.store.bell import Bell
from app.store.client import Store
from tests.app.store.servers import OwnServer
from tests.waiting import until


@pytest.fixture
async def bell(valkey_url: str) -> AsyncIterator[Bell]:
    async with Bell.open(valkey_url) as opened:
        yield opened


async def rung(wake: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await wake.wait()
    wake.clear()


async def channels(store: Store) -> list[bytes]:
    return await store.command("PUBSUB", "CHANNELS")


async def connections(store: Store) -> int:
    listed: bytes = await store.command("CLIENT", "LIST", "TYPE", "pubsub")
    return len(listed.splitlines())


async def test_a_message_wakes_the_listener_of_its_channel_only(store: Store, bell: Bell) -> None:
    mine, other = asyncio.Event(), asyncio.Event()
    async with bell.listen("mine", mine), bell.listen("other", other):
        assert not mine.is_set()
        # listening is subscribed: no message after this point is lost
        assert await store.command("PUBLISH", "mine", "x") == 1
        await rung(mine)
        assert not other.is_set()


async def test_all_listeners_of_a_channel_share_one_subscription(store: Store, bell: Bell) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    async with bell.listen("c", first):
        async with bell.listen("c", second):
            assert await store.command("PUBLISH", "c", "x") == 1
            await rung(first)
            await rung(second)
        await store.command("PUBLISH", "c", "x")
        await rung(first)
        assert not second.is_set()

    async def silent() -> bool:
        return not await channels(store)

    await until(silent, what="unsubscribed with the last listener")


async def test_listening_again_after_leaving_is_subscribed(store: Store, bell: Bell) -> None:
    wake = asyncio.Event()
    for _ in range(50):
        async with bell.listen("again", wake):
            assert await store.command("PUBLISH", "again", "x") == 1
            await rung(wake)


async def test_a_thousand_channels_on_one_connection(store: Store, bell: Bell) -> None:
    wakes = [asyncio.Event() for _ in range(1000)]
    async with AsyncExitStack() as stack:
        await asyncio.gather(
            *(stack.enter_async_context(bell.listen(f"c{i}", w)) for i, w in enumerate(wakes))
        )
        assert len(await channels(store)) == 1000
        assert await connections(store) == 1
        for i in range(1000):
            await store.command("PUBLISH", f"c{i}", "x")
        await asyncio.gather(*(rung(wake) for wake in wakes))


async def test_listeners_wake_after_the_store_came_back(server: OwnServer) -> None:
    async with Bell.open(server.url) as bell, Store.connect(server.url) as store:
        first, second = asyncio.Event(), asyncio.Event()
        async with bell.listen("c", first), bell.listen("d", second):
            server.kill()
            server.start()
            await rung(first)
            await rung(second)
            # woken means subscribed
            assert await store.command("PUBLISH", "c", "x") == 1
            await rung(first)


async def test_listening_begins_while_the_store_is_away(server: OwnServer) -> None:
    server.kill()
    wake = asyncio.Event()
    async with Bell.open(server.url) as bell, bell.listen("c", wake):
        assert not wake.is_set()
        server.start()
        await rung(wake)
        async with Store.connect(server.url) as store:
            assert await store.command("PUBLISH", "c", "x") == 1
        await rung(wake)


async def test_a_store_that_hangs_is_noticed(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell_module, "SILENCE_SECONDS", 0.1)
    wake = asyncio.Event()
    async with Bell.open(server.url) as bell, bell.listen("c", wake):
        server.freeze()
        await until(lambda: not bell.connected, what="the silent connection is given up")
        server.thaw()
        await rung(wake)


async def test_a_quiet_connection_is_asked_and_kept(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell_module, "SILENCE_SECONDS", 0.5)
    wake = asyncio.Event()
    async with Bell.open(server.url) as bell, Store.connect(server.url) as store:

        async def asked_often() -> bool:
            info = await store.command("INFO", "commandstats")
            return info.get("cmdstat_ping", {}).get("calls", 0) >= 2

        async with bell.listen("c", wake):
            await until(asked_often, what="two pings")
            assert not wake.is_set()


async def test_cancelled_listeners_leave_nothing_behind(store: Store, bell: Bell) -> None:
    await store.ping()  # the store's own tasks start with its first call
    before = asyncio.all_tasks()

    async def listen(name: str) -> None:
        async with bell.listen(name, asyncio.Event()):
            await asyncio.Event().wait()

    tasks = [asyncio.create_task(listen(f"c{i % 7}")) for i in range(100)]
    for turn, task in enumerate(tasks):
        if turn % 3 == 0:
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    async def silent() -> bool:
        return not await channels(store)

    await until(silent, what="nothing subscribed")
    assert asyncio.all_tasks() == before
    # the one connection survived all of it
    wake = asyncio.Event()
    async with bell.listen("c", wake):
        await store.command("PUBLISH", "c", "x")
        await rung(wake)


async def test_closing_leaves_no_connection(valkey_url: str, store: Store) -> None:
    async with Bell.open(valkey_url) as bell, bell.listen("c", asyncio.Event()):
        assert await connections(store) == 1

    async def gone() -> bool:
        return await connections(store) == 0

    await until(gone, what="the connection is closed")
