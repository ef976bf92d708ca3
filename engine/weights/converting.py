"""From a downloaded checkpoint to one file of weights per device, with an index.

Nothing is computed: bytes are copied, in pieces of a few MiB from the mapped source, so the memory
it takes does not depend on the model. An interrupted conversion goes on where it stopped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.types import EngineError, ModelFileError
from engine.weights.device_files import DeviceFile, Source
from engine.weights.device_layout import Layout
from engine.weights.folder import INDEX, FolderCheckpoint

# --model_type -> model_type of the config
MODEL_TYPES = {"deepseek-v32": "deepseek_v32", "glm-5": "glm_moe_dsa"}
AUTO = "auto"
MOST_SHARDS = 64
_COPIED = ("*.json", "*.jinja", "*.model", "tokenizer*", "LICENSE*", "README*")
_MOST_COPIED_BYTES = 256 * 1024 * 1024

# done and all bytes
Progress = Callable[[int, int], None]


class ConversionError(EngineError):
    """The conversion cannot be made, or what was made is not right."""


@dataclass(frozen=True, slots=True)
class Converted:
    files: tuple[Path, ...]
    size_bytes: int
    # of these, what an earlier run had written
    resumed_bytes: int


class Conversion:
    """One checkpoint, divided among devices into `save_dir`."""

    def __init__(
        self, model_dir: Path, save_dir: Path, shards: int, model_type: str = AUTO
    ) -> None:
        """Raises ModelFileError for a source that cannot be read, ConversionError for one that is
        of another type or a target that cannot be."""
        if not 1 <= shards <= MOST_SHARDS:
            raise ConversionError(f"--shards is from 1 to {MOST_SHARDS}, not {shards}.")
        if model_dir.resolve() == save_dir.resolve():
            raise ConversionError(
                "The converted model needs a folder of its own. Change --save_dir."
            )
        checkpoint = FolderCheckpoint.open(model_dir)
        _check_type(checkpoint, model_type)
        self._model_dir, self._save_dir = model_dir, save_dir
        source = Source(checkpoint.files_by_tensor())
        tensors = {name: source.info(name) for name in source.files}
        self._layout = Layout(tensors, checkpoint.config, shards)
        self._files = [
            DeviceFile(
                save_dir / f"model-{device + 1:05}-of-{shards:05}.safetensors",
                source,
                self._layout.parts(device),
            )
            for device in range(shards)
        ]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files)

    def run(self, progress: Progress) -> Converted:
        """Write what is missing. Raises ConversionError for a disk that is full or refuses."""
        try:
            self._save_dir.mkdir(parents=True, exist_ok=True)
            # without it the folder is no model: whoever loads it in between hears so
            (self._save_dir / INDEX).unlink(missing_ok=True)
            begun = sum(file.begun_bytes() for file in self._files)
            self._check_room(begun)
            count = _Count(begun, self.size_bytes, progress)
            for file in self._files:
                file.write(count.add)
            self._copy_texts()
            self._write_index()
        except OSError as error:
            raise ConversionError(
                f"{self._save_dir} cannot be written ({error.strerror}). Check the disk, and start "
                "the same command again: it goes on where it stopped."
            ) from error
        return Converted(tuple(file.path for file in self._files), self.size_bytes, begun)

    def verify(self, progress: Progress) -> None:
        """Compare every byte with the source. Raises ConversionError for the first that differs."""
        count = _Count(0, self.size_bytes, progress)
        for file in self._files:
            try:
                wrong = file.wrong_tensor(count.add)
            except OSError as error:
                wrong = error.strerror
            if wrong is not None:
                raise ConversionError(
                    f"{file.path} is not what the source says: {wrong} differs. Remove that file "
                    "and convert again."
                )

    def _check_room(self, begun_bytes: int) -> None:
        free, needed = shutil.disk_usage(self._save_dir).free, self.size_bytes - begun_bytes
        if needed > free:
            raise ConversionError(
                f"The converted model needs {needed / 1e9:.1f} GB more and the disk of "
                f"{self._save_dir} has {free / 1e9:.1f} GB left. Make room or choose another folder."
            )

    def _copy_texts(self) -> None:
        """Config, tokenizer, templates and licence; not the source's index of weights."""
        for path in sorted({path for kind in _COPIED for path in self._model_dir.glob(kind)}):
            small = path.is_file() and path.stat().st_size <= _MOST_COPIED_BYTES
            if small and path.name != INDEX and path.suffix != ".safetensors":
                shutil.copyfile(path, self._save_dir / path.name)

    def _write_index(self) -> None:
        """Last of all, and at once: with it the folder is complete."""
        names = [file.path.name for file in self._files]
        axes = {name: self._layout.axis(name) for name in self._layout.names()}
        index = {
            "metadata": {"total_size": self.size_bytes},
            # where a reader that knows no parts finds a tensor, or its first part
            "weight_map": dict.fromkeys(axes, names[0]),
            "device_files": names,
            "divided": {name: axis for name, axis in axes.items() if axis is not None},
        }
        partial = self._save_dir / f"{INDEX}.partial"
        partial.write_text(json.dumps(index, indent=1))
        partial.replace(self._save_dir / INDEX)


class _Count:
    def __init__(self, done: int, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = done, total, progress
        progress(done, total)

    def add(self, more: int) -> None:
        self._done += more
        self._progress(self._done, self._total)


def _check_type(checkpoint: FolderCheckpoint, model_type: str) -> None:
    if model_type == AUTO:
        return
    if model_type not in MODEL_TYPES:
        known = ", ".join([*MODEL_TYPES, AUTO])
        raise ConversionError(f"There is no model type {model_type!r}. Choose one of {known}.")
    if checkpoint.architecture != MODEL_TYPES[model_type]:
        raise ModelFileError(
            f"The model in {checkpoint.path} is of the type {checkpoint.architecture!r}, not "
            f"{model_type}. Leave --model_type out to take it as it is."
        )
