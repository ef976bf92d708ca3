"""Writing one device's weights: a safetensors file, tensor by tensor, so that it can be resumed.

The header comes first and follows from the source and the layout alone. A file that begins with
the same header was begun by the same conversion, and goes on behind its last whole tensor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from engine.weights.device_layout import Part
from engine.weights.safetensors import SafetensorsFile, StoredTensor

# of what is copied at once
_PIECE_BYTES = 16 * 1024 * 1024
_PARTIAL = ".partial"
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Source:
    """The tensors of a checkpoint and the files they lie in."""

    files: Mapping[str, SafetensorsFile]  # tensor -> its file

    def info(self, name: str) -> StoredTensor:
        return self.files[name].tensors[name]

    def size_bytes(self, part: Part) -> int:
        info = self.info(part.name)
        return info.size_bytes // (math.prod(info.shape) or 1) * math.prod(part.shape(info.shape))

    def pieces(self, part: Part) -> Iterator[bytes | memoryview]:
        """The part's bytes in order, a few MiB at a time."""
        info = self.info(part.name)
        raw = self.files[part.name].raw(part.name)
        if part.axis is None or not info.size_bytes:
            yield from _cut(raw)
            return
        rows = np.frombuffer(raw, np.uint8).reshape(info.shape[0], -1)
        if part.axis == 0:
            row_bytes = rows.shape[1]
            yield from _cut(raw[part.begin * row_bytes : part.end * row_bytes])
            return
        width = rows.shape[1] // info.shape[1]
        yield from _columns(rows[:, part.begin * width : part.end * width])


class DeviceFile:
    """One file to be written."""

    def __init__(self, path: Path, source: Source, parts: list[Part]) -> None:
        self.path = path
        self._partial = path.with_name(path.name + _PARTIAL)
        self._source = source
        self._parts = parts
        self._header = _header(source, parts)

    @property
    def size_bytes(self) -> int:
        return len(self._header) + sum(map(self._source.size_bytes, self._parts))

    def begun_bytes(self) -> int:
        """What stands on the disk already and will not be written again."""
        if self._complete(self.path):
            return self.size_bytes
        return self._resumable()[0]

    def write(self, wrote: Callable[[int], None]) -> None:
        """Write what is missing; `wrote` hears of every piece's bytes. Raises OSError."""
        if self._complete(self.path):
            return
        position, left = self._resumable()
        with self._partial.open("r+b" if position else "wb") as file:
            file.truncate(position)
            file.seek(position)
            if not position:
                file.write(self._header)
                wrote(len(self._header))
            for part in left:
                _write(file, self._source.pieces(part), wrote)
            file.flush()
            os.fsync(file.fileno())
        self._partial.replace(self.path)

    def wrong_tensor(self, checked: Callable[[int], None]) -> str | None:
        """The first tensor whose bytes are not the source's; None if all are. Raises OSError."""
        with self.path.open("rb") as file:
            if file.read(len(self._header)) != self._header:
                return "the header"
            for part in self._parts:
                for piece in self._source.pieces(part):
                    if file.read(len(piece)) != piece:
                        return part.name
                    checked(len(piece))
            return "the end" if file.read(1) else None

    def _complete(self, path: Path) -> bool:
        return path.is_file() and path.stat().st_size == self.size_bytes and self._ours(path)

    def _ours(self, path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(len(self._header)) == self._header

    def _resumable(self) -> tuple[int, list[Part]]:
        """Where to go on in the partial file, and with what."""
        if not self._partial.is_file() or not self._ours(self._partial):
            return 0, self._parts
        there = self._partial.stat().st_size
        position = len(self._header)
        for done, part in enumerate(self._parts):
            end = position + self._source.size_bytes(part)
            if end > there:
                return position, self._parts[done:]
            position = end
        return position, []


def _header(source: Source, parts: list[Part]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for part in parts:
        info, size = source.info(part.name), source.size_bytes(part)
        entries[part.name] = {
            "dtype": info.type_name,
            "shape": part.shape(info.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write(
    file: BinaryIO, pieces: Iterator[bytes | memoryview], wrote: Callable[[int], None]
) -> None:
    for piece in pieces:
        file.write(piece)
        wrote(len(piece))


def _cut(raw: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(raw), _PIECE_BYTES):
        yield raw[start : start + _PIECE_BYTES]


def _columns(rows: NDArray[np.uint8]) -> Iterator[bytes]:
    step = max(1, _PIECE_BYTES // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        yield rows[start : start + step].tobytes()
