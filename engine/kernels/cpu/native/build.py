"""Compile the native step with the machine's own C++ compiler, once per source, compiler and processor.

The result lies in `$XDG_CACHE_HOME/baton/native` (`~/.cache/baton/native`). Code is loaded from
there, so the folder must belong to this user and nobody else may write to it. Two processes that
start at once wait for each other; a reader never sees half a file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
from pathlib import Path

from engine.types import EngineError

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", "-w")
COMPILE_TIMEOUT_SECONDS = 120


class NativeUnavailableError(EngineError):
    """The native level cannot run on this machine; says why and what to do."""


def build() -> Path:
    """Path of the library, compiled if it is not there yet. Raises NativeUnavailableError."""
    compiler = find_compiler()
    folder = cache_folder()
    path = folder / f"baton-{_key(compiler)}.so"
    try:
        if not path.exists():
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    _compile(compiler, path)
    except OSError as error:
        raise _unusable(folder, str(error)) from None
    return path


def find_compiler() -> str:
    """`$CXX`, or the first of c++, g++, clang++ on the path. Raises NativeUnavailableError."""
    names = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    found = next(filter(None, (shutil.which(name) for name in names if name)), None)
    if found is None:
        raise NativeUnavailableError(
            "There is no C++ compiler on this machine, which the native level is built with. "
            "Install one (Debian: apt-get install g++), or choose another level."
        )
    return found


def cache_folder() -> Path:
    """This user's own folder for built code, made if needed. Raises NativeUnavailableError."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "baton" / "native"
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        raise _unusable(folder, str(error)) from None
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NativeUnavailableError(
            f"The folder {folder} holds code that is run, but others may write to it. Make it "
            "yours alone (chmod 700), or choose another level."
        )
    return folder


def _unusable(folder: Path, why: str) -> NativeUnavailableError:
    return NativeUnavailableError(
        f"The folder {folder} for built code cannot be used ({why}). "
        "Name another one by XDG_CACHE_HOME, or choose another level."
    )


def _key(compiler: str) -> str:
    """Everything that the machine code depends on."""
    digest = hashlib.sha256()
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    for part in (" ".join(FLAGS), _version(compiler), _processor_flags()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _version(compiler: str) -> str:
    try:
        asked = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailableError(
            f"The compiler {compiler} does not answer ({error}). Name another one by CXX, "
            "or choose another level."
        ) from None
    return asked.stdout


def _processor_flags() -> str:
    """What -march=native looks at: model and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    telling = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(telling)}))


def _compile(compiler: str, path: Path) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}")
    command = [compiler, *FLAGS, str(SOURCES / "baton.cpp"), "-o", str(unfinished)]
    try:
        subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS, check=True
        )
        unfinished.replace(path)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise NativeUnavailableError(
            f"The native level cannot be compiled by {compiler}: {said[0] if said else error}. "
            "Choose another level."
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)
