from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis
from redis.exceptions import RedisError

from app.store import valkey
from app.store.client import Store
from app.store.embedded import (
    DataFolderError,
    EmbeddedStore,
    ListenAddressError,
    SocketTakenError,
    find_embedded,
)
from app.store.valkey import (
    BinaryMissingError,
    EmbeddedStoreError,
    PortTakenError,
    StoreDamagedError,
)
from tests.waiting import until


@contextlib.contextmanager
def running(folder: Path, *, listen: str | None = None) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore.start(folder, listen=listen)
    try:
        yield store
    finally:
        store.stop()


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def pid_of(store: EmbeddedStore) -> int:
    assert store.process is not None
    return store.process.pid


async def test_it_serves_a_store_and_opens_no_port(short_folder: Path) -> None:
    with running(short_folder) as embedded:
        async with Store.connect(embedded.url) as store:
            await store.command("SET", "k", "v")
            assert await store.command("GET", "k") == b"v"
        connections = psutil.Process(pid_of(embedded)).net_connections("inet")
        assert not connections
        assert embedded.join_url("m") is None


def test_others_on_this_machine_cannot_reach_its_files(short_folder: Path) -> None:
    with running(short_folder) as embedded:
        assert mode(short_folder / "store") == 0o700
        assert mode(embedded.url.removeprefix("unix://")) == 0o700
        assert mode(short_folder / "store" / "valkey.conf") == 0o600


def test_an_acknowledged_write_survives_kill_and_restart(short_folder: Path) -> None:
    with running(short_folder) as embedded, Redis.from_url(embedded.url) as client:
        for number in range(500):
            client.set(f"k{number}", number)
        # a disk whose fsync is slow just now makes the server keep back what it acknowledged, by its
        # own rule for no more than two seconds; without an append-only file there is no such length
        deadline = time.monotonic() + 10
        while client.info("persistence")["aof_buffer_length"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
        os.kill(pid_of(embedded), signal.SIGKILL)
        assert embedded.process
        embedded.process.wait()
    with running(short_folder) as embedded, Redis.from_url(embedded.url) as client:
        assert client.dbsize() == 500
        assert client.get("k499") == b"499"


def test_stop_is_orderly_and_lets_the_next_start(short_folder: Path) -> None:
    with running(short_folder) as embedded:
        pass
    assert embedded.process
    assert embedded.process.returncode == 0
    assert find_embedded(short_folder) is None
    with running(short_folder):
        assert find_embedded(short_folder)


def test_another_process_finds_it(short_folder: Path) -> None:
    assert find_embedded(short_folder) is None
    with running(short_folder) as embedded:
        assert find_embedded(short_folder) == embedded.url
    (short_folder / "store" / "store.json").write_text("[1")
    assert find_embedded(short_folder) is None


def test_a_second_start_adopts_the_living_server(short_folder: Path) -> None:
    with running(short_folder) as embedded:
        second = EmbeddedStore.start(short_folder)
        assert (second.url, second.process) == (embedded.url, None)
        second.stop()
        with Redis.from_url(embedded.url) as client:
            assert client.ping()


STARTER = """
import sys, time
from pathlib import Path
from app.store.embedded import EmbeddedStore
store = EmbeddedStore.start(Path(sys.argv[1]))
print(store.process.pid if store.process else 0, flush=True)
sys.stdin.read()
store.stop()
"""


def starter(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def test_two_starters_at_once_make_one_server(short_folder: Path) -> None:
    with starter(short_folder) as first, starter(short_folder) as second:
        assert first.stdout
        assert second.stdout
        pids = [int(first.stdout.readline()), int(second.stdout.readline())]
        first.communicate()
        second.communicate()
    assert sorted(pid == 0 for pid in pids) == [False, True]


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
async def test_a_killed_parent_leaves_no_server(short_folder: Path) -> None:
    with starter(short_folder) as parent:
        assert parent.stdout
        server = psutil.Process(int(parent.stdout.readline()))
        with Redis.from_url(find_embedded(short_folder) or "") as client:
            client.set("k", "v")
        parent.kill()
        await until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
    with running(short_folder) as embedded, Redis.from_url(embedded.url) as client:
        assert client.get("k") == b"v"


def test_a_long_data_folder_gets_a_short_socket_that_stays(tmp_path: Path) -> None:
    folder = tmp_path / ("long name with spaces and ünïcode " * 4)
    with running(folder) as embedded:
        first = embedded.url
        assert find_embedded(folder) == first
        with Redis.from_url(first) as client:
            client.set("k", "v")
        recorded = Path(json.loads((folder / "store" / "store.json").read_text())["socket"])
        assert mode(recorded.parent) == 0o700
        assert len(str(recorded)) < 100
        os.kill(pid_of(embedded), signal.SIGKILL)
        assert embedded.process
        embedded.process.wait()
        # after a crash the recorded folder is used again
        with running(folder) as again, Redis.from_url(again.url) as client:
            assert again.url == first
            assert client.get("k") == b"v"
    assert not recorded.parent.exists()


def test_a_folder_name_cannot_slip_into_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / 'a"b\\c'
    with running(folder) as embedded, Redis.from_url(embedded.url) as client:
        assert client.config_get("dir") == {"dir": str(folder / "store")}


def test_listening_for_nodes_elsewhere_needs_the_password(short_folder: Path) -> None:
    port = free_port()
    with running(short_folder, listen=f"127.0.0.1:{port}") as embedded:
        join_url = embedded.join_url("m")
        assert join_url
        for url in (join_url, embedded.url, find_embedded(short_folder) or ""):
            with Redis.from_url(url) as client:
                assert client.ping()
        with Redis(port=port) as stranger, pytest.raises(RedisError, match="authenticate"):
            stranger.ping()
        assert mode(short_folder / "store" / "password") == 0o600
        assert embedded.process
        secret = (short_folder / "store" / "password").read_text()
        assert len(secret) >= 32
        assert secret not in " ".join(psutil.Process(pid_of(embedded)).cmdline())
    # the join command stays valid over a restart
    with running(short_folder, listen=f"127.0.0.1:{port}") as embedded:
        assert embedded.join_url("m") == join_url
        with Redis.from_url(join_url) as client:
            assert client.ping()


def test_adopting_a_store_without_the_wanted_port_is_refused(short_folder: Path) -> None:
    with running(short_folder), pytest.raises(ListenAddressError, match="Stop it first"):
        EmbeddedStore.start(short_folder, listen="127.0.0.1:6399")


@pytest.mark.parametrize(
    "listen", ["6380", ":6380", "host", "host:", "host:0", "host:70000", "a b:1", "h:1\nport 2"]
)
def test_a_wrong_address_is_refused(short_folder: Path, listen: str) -> None:
    with pytest.raises(ListenAddressError):
        EmbeddedStore.start(short_folder, listen=listen)


def test_a_taken_port_is_named(short_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTakenError):
            EmbeddedStore.start(short_folder, listen=f"127.0.0.1:{port}")
    with running(short_folder):
        pass


def test_a_damaged_file_is_named_with_what_to_do(short_folder: Path) -> None:
    with running(short_folder) as embedded, Redis.from_url(embedded.url) as client:
        client.set("k", "v" * 1000)
    [log] = (short_folder / "store" / "appendonlydir").glob("*.incr.aof")
    content = bytearray(log.read_bytes())
    content[: len(content) // 2] = b"x" * (len(content) // 2)
    log.write_bytes(bytes(content))
    with pytest.raises(StoreDamagedError, match="appendonlydir"):
        EmbeddedStore.start(short_folder)


def test_a_torn_end_heals_by_itself(short_folder: Path) -> None:
    with running(short_folder) as embedded, Redis.from_url(embedded.url) as client:
        client.set("whole", "v")
        client.set("torn", "v" * 1000)
    [log] = (short_folder / "store" / "appendonlydir").glob("*.incr.aof")
    log.write_bytes(log.read_bytes()[:-500])
    with running(short_folder) as embedded, Redis.from_url(embedded.url) as client:
        assert client.get("whole") == b"v"


def test_a_folder_that_cannot_be_written_is_named(short_folder: Path) -> None:
    (short_folder / "file").write_text("")
    with pytest.raises(DataFolderError, match="BATON_DATA_FOLDER"):
        EmbeddedStore.start(short_folder / "file" / "data")


def test_a_socket_of_another_live_server_is_named(short_folder: Path) -> None:
    (short_folder / "store").mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(short_folder / "store" / "s"))
        other.listen()
        with pytest.raises(SocketTakenError):
            EmbeddedStore.start(short_folder)


def test_a_platform_without_a_binary_is_named(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(BinaryMissingError, match="BATON_REDIS_URL"):
        EmbeddedStore.start(short_folder)


def test_another_thread_may_not_start_it(short_folder: Path) -> None:
    faults: list[EmbeddedStoreError] = []

    def start() -> None:
        try:
            EmbeddedStore.start(short_folder)
        except EmbeddedStoreError as fault:
            faults.append(fault)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(faults[0])


def test_an_unknown_end_quotes_the_log(short_folder: Path) -> None:
    (short_folder / "valkey.log").write_text("1:M * fine\n1:M # Out of luck\n")
    assert "Out of luck" in str(valkey.fault_from_log(short_folder))
    (short_folder / "valkey.log").unlink()
    assert "ended at its start" in str(valkey.fault_from_log(short_folder))
