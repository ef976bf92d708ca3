"""One safetensors file, memory-mapped.

Layout: the length of the header in 8 bytes, the header as JSON (name -> type, shape, begin and end
of its bytes), the bytes. A file may come from anywhere, so everything the header says is checked
against the file before it is used: the outcome is a `SafetensorsFile` or a `ModelFileError`.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.mapped import map_file

_MAX_HEADER_BYTES = 256 * 1024 * 1024
_MAX_DIMENSIONS = 8
_MAX_NUMBERS = 1 << 40

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    # as the file names it: F32, BF16, F8_E4M3, ...
    type_name: str
    shape: tuple[int, ...]
    # absolute, from the start of the file
    offset_bytes: int
    size_bytes: int


class _DamagedError(Exception):
    """What is wrong with the bytes; `SafetensorsFile.open` adds the file's name and what to do."""


class SafetensorsFile:
    """An open file. Tensors are pages of it, read when first touched."""

    def __init__(self, path: Path, data: mmap.mmap, tensors: dict[str, StoredTensor]) -> None:
        self.path = path
        self.tensors = tensors
        self._data = data

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Read the header and map the data. Raises ModelFileError."""
        data = map_file(path)
        try:
            return cls(path, data, _tensors(data))
        except _DamagedError as error:
            raise ModelFileError(
                f"The model file {path} is damaged or not usable: {error}. Download it again."
            ) from None

    def stored(self, name: str) -> Tensor:
        """The tensor in its own type, memory-mapped; not to be written to."""
        info = self.tensors[name]
        dtype = _DTYPES.get(info.type_name)
        if dtype is None:
            raise ModelFileError(
                f"The tensor {name!r} in {self.path} is stored as {info.type_name[:40]!r}, which is "
                f"not supported. Choose a model in one of these formats: {', '.join(_DTYPES)}."
            )
        count = math.prod(info.shape)
        if not count:
            return torch.empty(info.shape, dtype=dtype)
        if info.offset_bytes % dtype.itemsize:
            # torch wants aligned numbers; old writers did not care
            raw = bytearray(self._data[info.offset_bytes : info.offset_bytes + info.size_bytes])
            return torch.frombuffer(raw, dtype=dtype).view(info.shape)
        flat = torch.frombuffer(self._data, dtype=dtype, count=count, offset=info.offset_bytes)
        return flat.view(info.shape)

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes, memory-mapped."""
        info = self.tensors[name]
        return memoryview(self._data)[info.offset_bytes : info.offset_bytes + info.size_bytes]

    def header_bytes(self) -> bytes:
        return self._data[: 8 + int.from_bytes(self._data[:8], "little")]


def _tensors(data: mmap.mmap) -> dict[str, StoredTensor]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise _DamagedError("it ends in the middle of its header, or is no safetensors file")
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        raise _DamagedError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise _DamagedError("its header is no list of tensors")
    entries = cast("dict[str, Any]", header)
    entries.pop("__metadata__", None)
    room = len(data) - 8 - length
    return {name: _tensor(name, entry, 8 + length, room) for name, entry in entries.items()}


def _tensor(name: str, entry: Any, start: int, room: int) -> StoredTensor:
    wrong = _DamagedError(f"its entry of tensor {name[:80]!r} is wrong")
    try:
        type_name, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (TypeError, KeyError, ValueError):
        raise wrong from None
    if not isinstance(type_name, str) or len(numbers) > _MAX_DIMENSIONS + 2:
        raise wrong
    if any(type(number) is not int or number < 0 for number in numbers):
        raise wrong
    if not begin <= end <= room:
        raise _DamagedError(f"its tensor {name[:80]!r} lies outside the file: it is cut short")
    dtype = _DTYPES.get(type_name)
    count = math.prod(shape)
    if count > _MAX_NUMBERS or (dtype and count * dtype.itemsize != end - begin):
        raise _DamagedError(f"the shape of its tensor {name[:80]!r} does not match its bytes")
    return StoredTensor(type_name, tuple(shape), start + begin, end - begin)
