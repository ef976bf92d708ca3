"""A store's append-only file as a list of steps: what each script wrote, whole and in order.

The file is the store's own account of a run: it costs the run nothing, nobody has to be asked, and
it survives kill -9 of anything, the store included. Format: https://valkey.io/topics/persistence/
(a manifest names the files; commands lie in them in the wire's own form).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

Command = list[bytes]
# the commands of one script, or one command that came alone
Step = list[Command]


def steps_of(folder: Path) -> Iterator[Step]:
    """The steps in a server's working folder, oldest first. A torn end is left out, as the server
    itself does. The file must never have been rewritten: a rewrite forgets the history."""
    for file in _files(folder / "appendonlydir"):
        with file.open("rb") as stream:
            yield from _steps(stream)


def _files(folder: Path) -> list[Path]:
    """The increments that the manifest names, in order."""
    manifest = folder / "appendonly.aof.manifest"
    lines = [line.split() for line in manifest.read_text().splitlines()]
    named = [(int(words[3]), words[1]) for words in lines if words[5] == "i"]
    if not named or min(named)[0] != 1:
        raise ValueError(f"{manifest} does not begin at the beginning: the file was rewritten")
    return [folder / name for _, name in sorted(named)]


def _steps(stream: BinaryIO) -> Iterator[Step]:
    group: Step | None = None
    while (command := _command(stream)) is not None:
        word = command[0].upper()
        if word == b"MULTI":
            group = []
        elif word == b"EXEC":
            yield group or []
            group = None
        elif group is not None:
            group.append(command)
        elif word != b"SELECT":
            yield [command]


def _command(stream: BinaryIO) -> Command | None:
    head = stream.readline()
    while head.startswith(b"#"):  # a time stamp
        head = stream.readline()
    if not head.endswith(b"\r\n"):
        return None
    words: Command = []
    for _ in range(int(head[1:])):
        size = stream.readline()
        if not size.endswith(b"\r\n"):
            return None
        word = stream.read(int(size[1:]) + 2)
        if len(word) < int(size[1:]) + 2:
            return None
        words.append(word[:-2])
    return words
