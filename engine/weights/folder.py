"""A folder with config.json and safetensors, whole or in shards: how Hugging Face keeps models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.block_fp8 import (
    SCALE_SUFFIX,
    block_grid,
    dequantise_block_rows,
    dequantise_blocks,
    read_block,
)
from engine.weights.checkpoint import RowReader
from engine.weights.fp8 import FP8, BlockFp8
from engine.weights.safetensors import SafetensorsFile, StoredTensor

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_JSON_BYTES = 64 * 1024 * 1024
_FLOATS = ("F64", "F32", "F16", "BF16", FP8)
# Up to here every byte counts for the label; of more, the head of every tensor does.
_HASHED_WHOLE_BYTES = 2 << 30
_HASHED_HEAD_BYTES = 64 * 1024


class FolderCheckpoint:
    """A `Checkpoint`."""

    def __init__(self, path: Path, config: dict[str, Any], files: list[SafetensorsFile]) -> None:
        self.path = path
        self.config: Mapping[str, Any] = config
        self.architecture = str(config.get("model_type") or "none")
        self._files = files
        self._places = {name: file for file in files for name in file.tensors}
        quantised: Any = config.get("quantization_config") or {}
        self._block_size = quantised.get("weight_block_size") if quantised else None

    @classmethod
    def open(cls, path: str | Path) -> FolderCheckpoint:
        """Read the config and all headers. Raises ModelFileError."""
        path = Path(path)
        config = read_json(path / "config.json")
        names = _shards(path)
        return cls(path, config, [SafetensorsFile.open(path / name) for name in names])

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def names(self) -> Collection[str]:
        return [name for name in self._places if not name.endswith(SCALE_SUFFIX)]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._info(name).shape

    def stored_as(self, name: str) -> str:
        return self._info(name).type_name

    def stored(self, name: str) -> Tensor:
        """The tensor as it lies in the file, in its own type; not to be written to.

        Also the scales of block FP8, at X_scale_inv. Raises ModelFileError.
        """
        self._info(name)
        return self._places[name].stored(name)

    def files_by_tensor(self) -> dict[str, SafetensorsFile]:
        """Every stored tensor, scales too, and the file it lies in."""
        return dict(self._places)

    def block_fp8(self, name: str) -> BlockFp8 | None:
        """Codes and scales as they lie in the file; None for a weight stored otherwise."""
        if self.stored_as(name) != FP8:
            return None
        return BlockFp8(self.stored(name), self._scales(name).to(torch.float32), self._block)

    def tensor(self, name: str) -> Tensor:
        stored = self._weight(name)
        if stored.dtype == torch.float8_e4m3fn:
            return dequantise_blocks(stored, self._scales(name), self._block)
        return stored.to(torch.float32, copy=True)

    def packed(self, name: str) -> NDArray[np.uint8]:
        """There are no block formats in such a folder: ValueError."""
        raise ValueError(f"{name} is stored as {self.stored_as(name)}, not in blocks")

    def rows(self, name: str) -> RowReader:
        stored = self._weight(name)
        if stored.dtype == torch.float8_e4m3fn:
            return _BlockFp8Rows(stored, self._scales(name), self._block)
        return _TensorRows(stored)

    def sha256(self) -> str:
        """Of config and all weights; of folders above 2 GiB, of every tensor's first 64 KiB."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        whole = sum(f.path.stat().st_size for f in self._files) <= _HASHED_WHOLE_BYTES
        for file in self._files:
            digest.update(file.header_bytes())
            for name in sorted(file.tensors):
                raw = file.raw(name)
                digest.update(raw if whole else raw[:_HASHED_HEAD_BYTES])
        return digest.hexdigest()

    @cached_property
    def _block(self) -> tuple[int, int]:
        return read_block(self._block_size, f"The model in {self.path}")

    def _info(self, name: str) -> StoredTensor:
        file = self._places.get(name)
        if file is None:
            raise ModelFileError(
                f"The model in {self.path} has no tensor {name!r}. A part of it may be missing, or "
                "it is of another architecture. Download it again."
            )
        return file.tensors[name]

    def _weight(self, name: str) -> Tensor:
        kind = self.stored_as(name)
        if kind not in _FLOATS:
            raise ModelFileError(
                f"{name!r} in {self.path} is stored as {kind[:40]!r}, and weights are read in these "
                f"formats: {', '.join(_FLOATS)}. Choose another version of the model."
            )
        return self.stored(name)

    def _scales(self, name: str) -> Tensor:
        found = self.shape(name + SCALE_SUFFIX)
        expected = block_grid(self.shape(name), self._block)
        if found != expected:
            raise ModelFileError(
                f"{name + SCALE_SUFFIX!r} in {self.path} has the shape {found} instead of {expected}. "
                "Download the model again."
            )
        return self._weight(name + SCALE_SUFFIX)


class _TensorRows:
    """A `RowReader` of plain numbers."""

    def __init__(self, stored: Tensor) -> None:
        self._stored = stored

    def __call__(self, row_ids: Sequence[int] | NDArray[np.intp]) -> Tensor:
        return self._stored[torch.as_tensor(row_ids)].to(torch.float32)


class _BlockFp8Rows:
    """A `RowReader` of block FP8."""

    def __init__(self, stored: Tensor, scales: Tensor, block: tuple[int, int]) -> None:
        self._stored, self._scales, self._block = stored, scales, block

    def __call__(self, row_ids: Sequence[int] | NDArray[np.intp]) -> Tensor:
        ids = torch.as_tensor(row_ids)
        scales = self._scales[ids // self._block[0]]
        return dequantise_block_rows(self._stored[ids], scales, self._block[1])


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file of a model's folder. Raises ModelFileError."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelFileError(f"{path} is too large for what it is. Download the model again.")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelFileError(
            f"There is no {path.name} in {path.parent}. A model's folder holds config.json, "
            "tokenizer.json and *.safetensors: check the path, or download the model again."
        ) from None
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read ({error.strerror}). Check who may read it."
        ) from None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path} is not JSON: it is damaged. Download it again.") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object: it is damaged. Download it again.")
    return cast("dict[str, Any]", value)


def _shards(folder: Path) -> list[str]:
    """File names of the weights; plain ones only, so nothing outside the folder is opened."""
    if not (folder / INDEX).is_file():
        if (folder / WHOLE).is_file():
            return [WHOLE]
        raise ModelFileError(
            f"There are no weights in {folder}: neither {WHOLE} nor {INDEX}. "
            "Download the model in the safetensors format."
        )
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{folder / INDEX} lists no weights. Download it again.")
    names = sorted({str(name) for name in cast("dict[str, Any]", weight_map).values()})
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {len(names)} parts of the model in {folder} are missing, the first "
            f"is {missing[0][:120]}. Download the model again; what is there is kept."
        )
    return names
