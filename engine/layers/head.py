"""The two ends of a language model that share a table: embedding and output head.

The packed products give their results in bfloat16, where logits near 25 lie 0.125 apart: too
coarse to choose a token by. So the head is read twice: all rows by the packed product, then those
within RESCORE_BELOW of the largest once more from the file's own values in float32. What is
chosen greedily, and what sampling mostly chooses from, is as fine as the hidden state allows.
The native step's results are float32 and need that only where it had to round the table.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels import KERNELS
from engine.weights.checkpoint import Checkpoint
from engine.weights.rows import Rows

RESCORE_BELOW = 2.0
# At most so many; a flatter distribution than that has no use for fine logits.
MOST_RESCORED = 256
# What the head is packed as: 4 bits lose too much where every logit counts.
HEAD_LEVELS = {"fp32": "fp32", "bf16": "bf16", "fp8": "bf16", "int8": "int8", "int4": "int8"}


class Tables:
    """Token ids to hidden states, and the exact logits of few tokens; holds no weights itself."""

    def __init__(self, checkpoint: Checkpoint, embedding: str, head: str, width: int) -> None:
        """Raises ModelFileError when a table is missing or not [V, width]."""
        vocabulary = (*checkpoint.shape(embedding), 0)[0]
        Rows(checkpoint, [embedding], (vocabulary, width))
        self.head_rows = Rows(checkpoint, [head], (vocabulary, width))
        self.embed = checkpoint.rows(embedding)
        self._exact_rows = checkpoint.rows(head)

    def rescore(self, logits: Tensor, hidden: Tensor) -> None:
        """Make each row's best of logits [T, V] exact, in place. hidden [T, D] float32, normed."""
        for row, state in zip(logits, hidden, strict=True):
            best = _near_the_top(row.numpy())
            row[best] = self._exact_rows(best) @ state


class Head:
    """Hidden states to logits by a packed product."""

    def __init__(self, tables: Tables, level: str) -> None:
        self._tables = tables
        self._product = KERNELS[HEAD_LEVELS[level]](tables.head_rows)
        self._rescore = level != "fp32"

    @property
    def size_bytes(self) -> int:
        return self._product.size_bytes

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [T, D] float32, already normed -> [T, V] float32."""
        logits = self._product(hidden).to(torch.float32)
        if self._rescore:
            self._tables.rescore(logits, hidden)
        return logits


def _near_the_top(logits: NDArray[np.float32]) -> NDArray[np.intp]:
    near = np.flatnonzero(logits >= logits.max() - RESCORE_BELOW)
    if len(near) > MOST_RESCORED:
        near = near[np.argsort(-logits[near], kind="stable")[:MOST_RESCORED]]
    return near
