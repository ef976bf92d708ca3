"""A folder that `baton convert` made: reads the parts of all devices as one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.folder import INDEX, FolderCheckpoint, read_json
from engine.weights.safetensors import SafetensorsFile, StoredTensor


class DeviceShards(FolderCheckpoint):
    """A `Checkpoint`. What is divided is put together when it is read, in fresh memory."""

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        files: list[SafetensorsFile],
        divided: dict[str, int],
    ) -> None:
        """`divided`: tensor -> the axis along which each file has its part."""
        # whole tensors are read from the first file that has them
        super().__init__(path, config, files[::-1])
        self._divided = divided
        self._devices = files

    def stored(self, name: str) -> Tensor:
        axis = self._divided.get(name)
        if axis is None:
            return super().stored(name)
        return torch.cat([file.stored(name) for file in self._devices], dim=axis)

    def _info(self, name: str) -> StoredTensor:
        axis = self._divided.get(name)
        if axis is None:
            return super()._info(name)
        parts = [file.tensors.get(name) for file in self._devices]
        found = [part for part in parts if part is not None and len(part.shape) > axis]
        rest = {(part.type_name, *_without(part.shape, axis)) for part in found}
        if len(found) != len(parts) or len(rest) != 1:
            raise ModelFileError(
                f"The parts of {name!r} in {self.path} do not belong together. Convert it again."
            )
        shape = list(found[0].shape)
        shape[axis] = sum(part.shape[axis] for part in found)
        size_bytes = sum(part.size_bytes for part in found)
        return StoredTensor(found[0].type_name, tuple(shape), found[0].offset_bytes, size_bytes)


def open_folder(path: Path) -> FolderCheckpoint:
    """A folder of safetensors, converted or as it was downloaded. Raises ModelFileError."""
    index = read_json(path / INDEX) if (path / INDEX).is_file() else {}
    if "device_files" not in index:
        return FolderCheckpoint.open(path)
    names, divided = index["device_files"], index.get("divided")
    if not _plain_names(names) or not _axes(divided):
        raise ModelFileError(f"{path / INDEX} is damaged. Convert the model again.")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {len(names)} parts of the model in {path} are missing, the first is "
            f"{missing[0][:120]}. Convert it again; what is there is kept."
        )
    config = read_json(path / "config.json")
    files = [SafetensorsFile.open(path / name) for name in names]
    return DeviceShards(path, config, files, cast("dict[str, int]", divided))


def _plain_names(names: Any) -> bool:
    """File names within the folder, so nothing outside of it is opened."""
    return (
        isinstance(names, list)
        and bool(names)
        and all(isinstance(name, str) and Path(name).name == name for name in names)
    )


def _axes(divided: Any) -> bool:
    return isinstance(divided, dict) and all(
        isinstance(name, str) and axis in (0, 1) for name, axis in divided.items()
    )


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
