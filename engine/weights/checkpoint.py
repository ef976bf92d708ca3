"""What a model is built from, wherever it came from: its settings and its weights.

The terms are those of Hugging Face checkpoints, whatever the file: `config` has the keys of
config.json, weights have the names that transformers saves (`model.layers.0.self_attn.q_proj.weight`,
`lm_head.weight`), in its shapes and its order of rows. `folder.py` reads safetensors folders,
`gguf_checkpoint.py` GGUF files, `opening.py` chooses between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import ModelFileError


class RowReader(Protocol):
    """Single rows of a stored matrix, dequantised when asked for; the file stays mapped."""

    def __call__(self, row_ids: Sequence[int] | NDArray[np.intp]) -> Tensor:
        """[n] -> [n, K] float32, the file's exact values."""
        ...


class Checkpoint(Protocol):
    """Weights are read when asked for and held by nobody here."""

    @property
    def path(self) -> Path:
        """The file or folder, for messages."""
        ...

    @property
    def architecture(self) -> str:
        """config.json's `model_type`, such as qwen3; "none" where nothing says it."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """As config.json has it; read it through `engine.weights.fields.Fields`."""
        ...

    def __contains__(self, name: object) -> bool: ...

    def names(self) -> Collection[str]:
        """Every weight. Scales that belong to a quantised weight are not weights."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Rows first. Raises ModelFileError for a weight that is not there."""
        ...

    def stored_as(self, name: str) -> str:
        """The format of the stored weight: F32, F16, BF16, F8_E4M3 or a GGUF type such as Q4_K.

        Raises ModelFileError.
        """
        ...

    def tensor(self, name: str) -> Tensor:
        """The whole weight, float32, fresh memory. Raises ModelFileError."""
        ...

    def packed(self, name: str) -> NDArray[np.uint8]:
        """A matrix's blocks as they are stored, [N, bytes of a row]; for GGUF's block formats.

        Not to be written to. Raises ModelFileError.
        """
        ...

    def rows(self, name: str) -> RowReader:
        """A matrix row by row. Raises ModelFileError."""
        ...

    def sha256(self) -> str:
        """A stable label of weights and settings in hex."""
        ...


def vector(checkpoint: Checkpoint, name: str, length: int) -> Tensor:
    """[length] float32. Raises ModelFileError for another shape."""
    found = checkpoint.shape(name)
    if found != (length,):
        raise ModelFileError(
            f"{name} in {checkpoint.path} has the shape {found} instead of ({length},). "
            "Download or convert the model again."
        )
    weight = checkpoint.tensor(name)
    check_finite(weight, name, checkpoint.path)
    return weight


def check_finite(weight: Tensor, name: str, path: Path) -> None:
    """Raises ModelFileError where a value is no number or infinite: every answer would be noise."""
    if weight.numel() and not torch.isfinite(torch.stack(weight.aminmax())).all():
        raise no_numbers(name, path)


def no_numbers(name: str, path: Path) -> ModelFileError:
    return ModelFileError(
        f"{name} in {path} has values that are no numbers (NaN or infinite), so the model cannot "
        "answer. Download or convert it again."
    )
