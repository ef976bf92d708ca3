"""GGUF files, memory-mapped: metadata, the list of tensors, and their bytes.

Layout (ggml's docs/gguf.md): magic, version, number of tensors, number of metadata entries; the
entries (key, type, value); the tensor list (name, dimensions, type, offset); padding; the data.
All little-endian. A file may come from anywhere, so every length is checked against what is left
of the file before anything is read or allocated: whatever the bytes say, the outcome is a
`GgufFile` or a `ModelFileError`.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.types import ModelFileError
from engine.weights.dequantise import QUANT_TYPES, QuantType, dequantise, quant_type
from engine.weights.mapped import map_file

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# Metadata of real files stays under 20 MB; these limits bound what a crafted header may cost.
_MAX_HEADER_BYTES = 256 * 1024 * 1024
_MAX_ARRAY_LENGTH = 1 << 22
_MAX_KEY_BYTES = 1024
_MAX_DIMENSIONS = 4
_MAX_WEIGHTS = 1 << 40

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    # rows first, so a matrix is (out, in); a vector has one entry
    shape: tuple[int, ...]
    # the file may hold types that we cannot read; only using such a tensor is an error
    quant_type: QuantType
    # absolute, from the start of the file
    offset_bytes: int
    size_bytes: int


class _DamagedError(Exception):
    """What is wrong with the bytes; `GgufFile.open` adds the file's name and what to do."""


class _Cursor:
    """Reads forward through the header and refuses to leave it."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0
        self.end = min(len(data), _MAX_HEADER_BYTES)

    def need(self, n_bytes: int) -> None:
        if n_bytes > self.end - self.position:
            raise _DamagedError("it ends in the middle of its header, or a length in it is absurd")

    def scalar(self, kind: struct.Struct) -> Any:
        self.need(kind.size)
        (value,) = kind.unpack_from(self.data, self.position)
        self.position += kind.size
        return value

    def text(self) -> str:
        n_bytes = self.scalar(_U64)
        self.need(n_bytes)
        start, self.position = self.position, self.position + n_bytes
        return self.data[start : self.position].decode("utf-8", "replace")

    def name(self) -> str:
        text = self.text()
        if not text or len(text) > _MAX_KEY_BYTES:
            raise _DamagedError("a name in its header is empty or longer than the format allows")
        return text

    def texts(self, count: int) -> list[str]:
        # The hot loop: a vocabulary has some 100,000 strings, so no method call per string.
        data, position, end = self.data, self.position, self.end
        unpack = _U64.unpack_from
        found: list[str] = []
        for _ in range(count):
            if end - position < 8:
                raise _DamagedError("it ends in the middle of a list of strings")
            (n_bytes,) = unpack(data, position)
            position += 8
            if n_bytes > end - position:
                raise _DamagedError("a string in its header is longer than the file")
            found.append(data[position : position + n_bytes].decode("utf-8", "replace"))
            position += n_bytes
        self.position = position
        return found

    def array(self) -> list[Any]:
        item_type = self.scalar(_U32)
        count = self.scalar(_U64)
        if count > _MAX_ARRAY_LENGTH:
            raise _DamagedError(f"a list in its header claims {count} entries")
        if item_type == _STRING:
            return self.texts(count)
        kind = _SCALARS.get(item_type)
        if kind is None:
            raise _DamagedError(f"its header has a list of the unknown type {item_type}")
        self.need(count * kind.size)
        values = np.frombuffer(self.data, np.dtype(kind.format), count, self.position)
        self.position += count * kind.size
        return values.tolist()

    def value(self) -> object:
        value_type = self.scalar(_U32)
        if value_type == _STRING:
            return self.text()
        if value_type == _ARRAY:
            return self.array()
        kind = _SCALARS.get(value_type)
        if kind is None:
            raise _DamagedError(f"its header has a value of the unknown type {value_type}")
        return self.scalar(kind)


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; return the numbers of tensors and of metadata entries."""
    cursor.need(24)
    if cursor.data[:4] != _MAGIC:
        raise _DamagedError("it is not a GGUF file (it does not begin with GGUF)")
    cursor.position = 4
    version = cursor.scalar(_U32)
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        what = "big-endian" if swapped else f"version {version}"
        raise _DamagedError(f"it is {what} GGUF, and only little-endian versions 2 and 3 are read")
    n_tensors, n_entries = cursor.scalar(_U64), cursor.scalar(_U64)
    # the shortest tensor entry takes 8+1+4+8+4+8 bytes, the shortest metadata entry 8+1+4+1
    cursor.need(n_tensors * 33 + n_entries * 14)
    return n_tensors, n_entries


def _metadata(cursor: _Cursor, n_entries: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(n_entries):
        key = cursor.name()
        if key in found:
            raise _DamagedError(f"its header says {key[:80]!r} twice")
        found[key] = cursor.value()
    return found


def _size_bytes(dimensions: list[int], kind: QuantType, name: str) -> int:
    n_weights = math.prod(dimensions)
    if not 0 < n_weights <= _MAX_WEIGHTS:
        raise _DamagedError(f"the shape of its tensor {name[:80]!r} is impossible")
    if not kind.readable:
        return 0
    if dimensions[0] % kind.block_weights:
        raise _DamagedError(f"rows of its tensor {name[:80]!r} are no whole {kind.name} blocks")
    return n_weights // kind.block_weights * kind.block_bytes


def _tensors(cursor: _Cursor, n_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    entries: list[tuple[str, list[int], QuantType, int]] = []
    for _ in range(n_tensors):
        name = cursor.name()
        n_dimensions = cursor.scalar(_U32)
        if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
            raise _DamagedError(f"its tensor {name[:80]!r} has {n_dimensions} dimensions")
        dimensions = [cursor.scalar(_U64) for _ in range(n_dimensions)]
        kind = quant_type(cursor.scalar(_U32))
        entries.append((name, dimensions, kind, cursor.scalar(_U64)))
    data_start = -(-cursor.position // alignment) * alignment
    found: dict[str, TensorInfo] = {}
    for name, dimensions, kind, offset in entries:
        if name in found:
            raise _DamagedError(f"it has two tensors named {name[:80]!r}")
        size_bytes = _size_bytes(dimensions, kind, name)
        if offset % alignment:
            raise _DamagedError(
                f"its tensor {name[:80]!r} does not begin at a multiple of {alignment}"
            )
        if data_start + offset + size_bytes > len(cursor.data):
            raise _DamagedError(f"its tensor {name[:80]!r} lies outside the file: it is cut short")
        shape = tuple(reversed(dimensions))
        found[name] = TensorInfo(name, shape, kind, data_start + offset, size_bytes)
    return found


def _alignment(metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or not 1 <= value <= 1 << 20 or value & (value - 1):
        raise _DamagedError(f"its alignment {str(value)[:40]} is not a power of two")
    return value


class GgufFile:
    """An open GGUF file. Tensor bytes are pages of the file, read when first touched."""

    def __init__(
        self,
        path: Path,
        data: mmap.mmap,
        metadata: dict[str, object],
        tensors: dict[str, TensorInfo],
    ) -> None:
        self.path = path
        self._data = data
        # numbers, booleans, strings, and lists of these
        self.metadata = metadata
        self.tensors = MappingProxyType(tensors)

    @classmethod
    def open(cls, path: str | Path) -> GgufFile:
        """Read the header and map the data. Raises ModelFileError."""
        path = Path(path)
        data = map_file(path)
        cursor = _Cursor(data)
        try:
            n_tensors, n_entries = _counts(cursor)
            metadata = _metadata(cursor, n_entries)
            tensors = _tensors(cursor, n_tensors, _alignment(metadata))
        except _DamagedError as error:
            raise ModelFileError(
                f"The model file {path} is damaged or not usable: {error}. "
                "Download it again, or convert it again."
            ) from None
        return cls(path, data, metadata, tensors)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The tensor's bytes, flat, memory-mapped; not to be written to. Raises ModelFileError."""
        info = self._known(name)
        return np.frombuffer(self._data, np.uint8, info.size_bytes, info.offset_bytes)

    def dequantised(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32 in its `shape` (out, in), a fresh array. Raises ModelFileError."""
        info = self._known(name)
        return dequantise(self.raw(name), info.quant_type).reshape(info.shape)

    def sha256(self) -> str:
        """Hash of the whole file in hex: a stable label of weights and tokenizer together."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _known(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(
                f"The model file {self.path} has no tensor {name!r}. It may be of another "
                "architecture, or one part of a model that was split."
            )
        if not info.quant_type.readable:
            known = ", ".join(kind.name for kind in QUANT_TYPES.values())
            raise ModelFileError(
                f"The tensor {name!r} in {self.path} is stored as {info.quant_type.name}, which is not "
                f"supported. Choose a file in one of these formats: {known}."
            )
        return info
