from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from redis.exceptions import DataError, ResponseError

from app.errors import StoreUnavailableError
from app.store import client as client_module
from app.store.client import Store
from app.store.scripts import Script, load_script
from tests.app.store.servers import OwnServer
from tests.waiting import until

CLOCK = load_script("app.relay", "end", preludes=(("app.store", "generation"),))


@asynccontextmanager
async def delayed(url: str, folder: Path) -> AsyncIterator[str]:
    """A proxy before the store that holds each answer back for a moment."""
    target = url.removeprefix("unix://")
    open_ends: set[asyncio.StreamWriter] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slow: bool) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(65536):
                if slow:
                    await asyncio.sleep(random.uniform(0, 0.01))
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(target)
        open_ends.update((writer, far_writer))
        await asyncio.gather(
            copy(reader, far_writer, slow=False), copy(far_reader, writer, slow=True)
        )
        open_ends.difference_update((writer, far_writer))

    path = folder / "p"
    proxy = await asyncio.start_unix_server(serve, str(path))
    try:
        yield f"unix://{path}"
    finally:
        proxy.close()
        for end in list(open_ends):
            end.close()
        await until(lambda: not open_ends, what="the proxy's connections are closed")


async def test_cancelled_calls_never_mix_up_answers(valkey_url: str, short_folder: Path) -> None:
    async with (
        delayed(valkey_url, short_folder) as slow_url,
        Store.connect(slow_url, connections=4) as store,
    ):
        answers = 0

        async def ask(number: int) -> None:
            nonlocal answers
            assert await store.command("ECHO", str(number)) == str(number).encode()
            answers += 1

        for turn in range(20):
            tasks = [asyncio.create_task(ask(turn * 100 + i)) for i in range(20)]
            for task in tasks:
                if random.random() < 0.5:
                    await asyncio.sleep(random.uniform(0, 0.003))
                    task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert outcome is None or isinstance(outcome, asyncio.CancelledError)
        assert answers


async def test_a_cancellation_is_never_swallowed(store: Store) -> None:
    for turns in range(12):
        task = asyncio.create_task(store.pop("empty", 2))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_store_that_is_not_there_is_unavailable_at_once(short_folder: Path) -> None:
    async with Store.connect(f"unix://{short_folder}/nothing") as store, asyncio.timeout(1):
        with pytest.raises(StoreUnavailableError):
            await store.ping()


async def test_a_closed_port_is_unavailable_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with Store.connect(f"redis://127.0.0.1:{port}") as store, asyncio.timeout(1):
        with pytest.raises(StoreUnavailableError):
            await store.ping()


async def test_a_store_that_hangs_is_unavailable_soon_and_usable_afterwards(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CALL_SECONDS", 0.2)
    async with Store.connect(server.url) as store:
        await asyncio.gather(*(store.ping() for _ in range(5)))
        server.freeze()
        with pytest.raises(StoreUnavailableError):
            await store.ping()
        with pytest.raises(StoreUnavailableError):
            await store.pop("inbox", 0.01)
        server.thaw()
        await store.ping()
        assert await store.pop("inbox", 0.01) is None


async def test_the_same_store_works_after_a_restart(server: OwnServer) -> None:
    async with Store.connect(server.url) as store:
        await asyncio.gather(*(store.ping() for _ in range(5)))
        waiting = asyncio.create_task(store.pop("inbox", 30))
        server.kill()
        with pytest.raises(StoreUnavailableError):
            await store.ping()
        with pytest.raises(StoreUnavailableError):
            await waiting
        server.start()
        for _ in range(5):
            await store.ping()
        await store.command("RPUSH", "inbox", "job")
        assert await store.pop("inbox", 1) == b"job"


@pytest.mark.parametrize(
    "fault",
    [
        "LOADING the dataset is read into memory",
        "OOM command not allowed when used memory > 'maxmemory'",
        "READONLY You can't write against a read only replica.",
        "MASTERDOWN Link with MASTER is down",
        "CLUSTERDOWN The cluster is down",
        "MISCONF Valkey is configured to save RDB snapshots, but cannot write them",
        "NOREPLICAS Not enough good replicas to write.",
        "BUSY Valkey is busy running a script.",
    ],
)
async def test_a_store_that_cannot_serve_is_unavailable(store: Store, fault: str) -> None:
    with pytest.raises(StoreUnavailableError):
        await store.command("EVAL", "return redis.error_reply(ARGV[1])", 0, fault)
    await store.ping()


async def test_a_mistake_of_ours_stays_a_mistake(store: Store) -> None:
    with pytest.raises(ResponseError):
        await store.command("GET")
    await store.command("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    with pytest.raises(ResponseError, match="BUSYGROUP"):
        await store.command("XGROUP", "CREATE", "s", "g", "$")


async def test_a_refused_password_says_what_to_set(server: OwnServer) -> None:
    async with Store.connect(server.url) as store:
        await store.command("CONFIG", "SET", "requirepass", "secret")
    for query in ("", "?password=wrong"):
        async with Store.connect(server.url + query) as store:
            with pytest.raises(StoreUnavailableError) as refused:
                await store.ping()
        assert "BATON_REDIS_URL" in str(refused.value.__cause__)
        assert "wrong" not in str(refused.value.__cause__)


async def test_a_cancelled_first_call_leaves_the_connection_to_others(valkey_url: str) -> None:
    async with Store.connect(valkey_url) as store:
        first = asyncio.create_task(store.command("ECHO", "1"))
        second = asyncio.create_task(store.command("ECHO", "2"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == b"2"


async def test_a_lost_connection_fails_all_who_wait_on_it_at_once(server: OwnServer) -> None:
    async with Store.connect(server.url) as store:
        await store.ping()
        server.freeze()
        waiting = [asyncio.create_task(store.ping()) for _ in range(10)]
        await asyncio.sleep(0)
        server.kill()
        async with asyncio.timeout(2):
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, StoreUnavailableError) for outcome in outcomes)


async def test_a_fault_of_one_caller_is_not_told_to_others(store: Store) -> None:
    wrong, right = await asyncio.gather(
        store.command("GET"), store.command("ECHO", "x"), return_exceptions=True
    )
    assert isinstance(wrong, ResponseError)
    assert right == b"x"


async def test_a_part_that_cannot_be_sent_disturbs_nobody(store: Store) -> None:
    wrong, right = await asyncio.gather(
        store.command("ECHO", object()),  # pyright: ignore[reportArgumentType] on purpose
        store.command("ECHO", "x"),
        return_exceptions=True,
    )
    assert isinstance(wrong, DataError)
    assert right == b"x"


async def test_a_script_the_store_forgot_is_sent_again(store: Store) -> None:
    async def run(script: Script) -> object:
        return await store.run(script, ["p:"], ["g", "1", "done", "{}"])

    assert await run(CLOCK) == b"fenced"
    await store.command("SCRIPT", "FLUSH")
    assert await run(CLOCK) == b"fenced"


async def test_many_callers_share_one_connection_in_order(valkey_url: str) -> None:
    async with Store.connect(valkey_url) as store:
        numbers = await asyncio.gather(*(store.command("INCR", "n") for _ in range(200)))
        assert numbers == list(range(1, 201))
        assert (await store.command("INFO", "clients"))["connected_clients"] == 1


async def test_waiting_nodes_keep_no_short_call_from_its_connection(valkey_url: str) -> None:
    async with Store.connect(valkey_url, connections=1) as store:
        waiting = asyncio.create_task(store.pop("inbox", 30))

        async def blocked() -> bool:
            return (await store.command("INFO", "clients"))["blocked_clients"] == 1

        await until(blocked, what="the pop waits")
        await store.command("RPUSH", "inbox", "job")
        assert await waiting == b"job"
