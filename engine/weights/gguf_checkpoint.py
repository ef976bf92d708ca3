"""A GGUF file in the terms of a Hugging Face checkpoint.

Three things differ besides names. Files of architecture `llama` keep the rows of queries and keys
for neighbouring rotary pairs; here they stand in halves again, as transformers has them. Files of
`gemma3` keep their norms' weights plus one. Experts are one tensor each kind in the file and one
weight each here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.checkpoint import RowReader
from engine.weights.dequantise import QuantType, dequantise
from engine.weights.gguf import GgufFile
from engine.weights.gguf_names import ARCHITECTURES, hf_config, hf_names
from engine.weights.rotary import halves_order


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight is in the file."""

    name: str
    # of a tensor that stacks experts [X, N, K]: which one
    expert: int | None = None


class GgufCheckpoint:
    """A `Checkpoint`. Tensors whose names are not known keep them."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        stated = str(file.metadata.get("general.architecture", "none"))
        self.architecture = ARCHITECTURES.get(stated, stated)
        self.config: Mapping[str, Any] = hf_config(file, self.architecture)
        self._sources = {
            name: Source(*source) for name, source in hf_names(file, self.architecture).items()
        }

    @classmethod
    def open(cls, path: str | Path) -> GgufCheckpoint:
        """Raises ModelFileError."""
        return cls(GgufFile.open(path))

    @property
    def path(self) -> Path:
        return self.file.path

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def names(self) -> Collection[str]:
        return self._sources.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        source = self._source(name)
        shape = self.file.tensors[source.name].shape
        return shape if source.expert is None else shape[1:]

    def stored_as(self, name: str) -> str:
        return self._type(name).name

    def tensor(self, name: str) -> Tensor:
        source = self._source(name)
        if source.expert is None:
            weight = self.file.dequantised(source.name)
        else:
            weight = dequantise(self._raw(name), self._type(name)).reshape(self.shape(name))
        order = self._order(name)
        if order is not None:
            weight = weight[order]
        if self.architecture == "gemma3_text" and name.endswith("norm.weight"):
            weight -= 1
        return torch.from_numpy(weight)

    def packed(self, name: str) -> NDArray[np.uint8]:
        raw = self._raw(name).reshape(self.shape(name)[0], -1)
        order = self._order(name)
        return raw if order is None else raw[order]

    def rows(self, name: str) -> RowReader:
        return PackedRows(self.packed(name), self._type(name))

    def sha256(self) -> str:
        return self.file.sha256()

    def _source(self, name: str) -> Source:
        source = self._sources.get(name)
        if source is None:
            raise ModelFileError(
                f"The model file {self.path} has no tensor for {name!r}. It may be of another "
                "architecture, or one part of a model that was split."
            )
        return source

    def _type(self, name: str) -> QuantType:
        return self.file.tensors[self._source(name).name].quant_type

    def _raw(self, name: str) -> NDArray[np.uint8]:
        """The weight's own bytes, flat."""
        source = self._source(name)
        raw = self.file.raw(source.name)
        if source.expert is None:
            return raw
        experts = self.file.tensors[source.name].shape[0]
        return raw.reshape(experts, -1)[source.expert]

    def _order(self, name: str) -> NDArray[np.intp] | None:
        """Which stored row stands at each place; None where the order is the same."""
        if self.architecture != "llama" or not name.endswith(("q_proj.weight", "k_proj.weight")):
            return None
        return halves_order(self.shape(name)[0], int(self.config["head_dim"]))


class PackedRows:
    """A `RowReader` of block formats."""

    def __init__(self, packed: NDArray[np.uint8], kind: QuantType) -> None:
        self._packed = packed  # [N, bytes of a row]
        self._kind = kind

    def __call__(self, row_ids: Sequence[int] | NDArray[np.intp]) -> Tensor:
        raw = self._packed[np.asarray(row_ids)]
        return torch.from_numpy(dequantise(raw, self._kind)).view(len(raw), -1)
