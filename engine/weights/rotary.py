"""The two orders of a head's rows under rotary positions, and a checkpoint in the other one.

Hugging Face checkpoints rotate row i with row i + E / 2 of a head's E. Our layers rotate
neighbours, 2 i with 2 i + 1, as one complex number. Scores do not see the order, because queries
and keys share it, so loading brings both (and their biases and norms) into neighbours once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.checkpoint import Checkpoint, RowReader

_ROTATED = tuple(
    f".{projection}.{kind}"
    for projection in ("q_proj", "k_proj", "q_norm", "k_norm")
    for kind in ("weight", "bias")
)


def neighbours_order(rows: int, head_width: int) -> NDArray[np.intp]:
    """Rows of heads in halves: which of them stands at each place among neighbours."""
    return _places(rows, head_width).reshape(-1, 2, head_width // 2).swapaxes(1, 2).ravel()


def halves_order(rows: int, head_width: int) -> NDArray[np.intp]:
    """The way back."""
    return _places(rows, head_width).reshape(-1, head_width // 2, 2).swapaxes(1, 2).ravel()


def _places(rows: int, head_width: int) -> NDArray[np.intp]:
    if head_width <= 0 or head_width % 2 or rows % head_width:
        raise ModelFileError(
            f"The model's projections have {rows} rows, which are no whole heads of {head_width}. "
            "Download or convert it again."
        )
    return np.arange(rows, dtype=np.intp)


class Neighbours:
    """A `Checkpoint` whose queries and keys stand in neighbouring pairs."""

    def __init__(self, checkpoint: Checkpoint, head_width: int) -> None:
        self._inner = checkpoint
        self._head_width = head_width

    @property
    def path(self) -> Path:
        return self._inner.path

    @property
    def architecture(self) -> str:
        return self._inner.architecture

    @property
    def config(self) -> Mapping[str, Any]:
        return self._inner.config

    def __contains__(self, name: object) -> bool:
        return name in self._inner

    def names(self) -> Collection[str]:
        return self._inner.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._inner.shape(name)

    def stored_as(self, name: str) -> str:
        return self._inner.stored_as(name)

    def tensor(self, name: str) -> Tensor:
        weight = self._inner.tensor(name)
        return weight[torch.from_numpy(self._order(name))] if self._turned(name) else weight

    def packed(self, name: str) -> NDArray[np.uint8]:
        packed = self._inner.packed(name)
        return packed[self._order(name)] if self._turned(name) else packed

    def rows(self, name: str) -> RowReader:
        if self._turned(name):
            raise ValueError("rows of queries and keys are not read one by one")
        return self._inner.rows(name)

    def sha256(self) -> str:
        return self._inner.sha256()

    def _turned(self, name: str) -> bool:
        return name.endswith(_ROTATED)

    def _order(self, name: str) -> NDArray[np.intp]:
        return neighbours_order(self.shape(name)[0], self._head_width)
