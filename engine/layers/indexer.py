"""The lightning indexer of DeepSeek sparse attention: which positions a row looks at.

DeepSeek-V3.2-Exp report, 2025: score_s = sum over heads h of w_h relu(q_h . k_s), with one small key
per position that has its own cache. The constants heads^-0.5 and width^-0.5 of the reference
cannot change an order and are left out. Rotary positions stand on the first dimensions of queries
and keys; DeepSeek rotates the first half of them with the second, GLM neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import Product
from engine.layers.rope import turn
from engine.layers.rows import each_row, linear

# For each row of a pass the positions it looks at, ascending; None: all that it may.
Selection = Sequence[Tensor | None]

# of the keys' layer norm; the reference has it as a constant
_KEY_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class IndexerSizes:
    heads: int
    width: int
    # positions a row may look at
    chosen: int
    # pairs of neighbours are rotated (GLM), not the halves of the rotary part (DeepSeek)
    neighbours: bool


@dataclass(frozen=True, slots=True)
class Indexer:
    sizes: IndexerSizes
    queries: Product  # [heads * width, query rank]
    keys: Product  # [width, D]
    key_norm: Tensor  # [width] float32
    key_bias: Tensor  # [width] float32
    head_weights: Tensor  # [heads, D] float32

    @property
    def size_bytes(self) -> int:
        return self.queries.size_bytes + self.keys.size_bytes + self.head_weights.nbytes

    def write_keys(self, x: Tensor, rotations: Tensor, slots: Tensor) -> None:
        """Keys of x [T, D] into slots [T, width]."""
        made = self.keys(x).float()
        width = (self.sizes.width,)
        normed = each_row(
            lambda rows: F.layer_norm(rows, width, self.key_norm, self.key_bias, _KEY_NORM_EPS),
            made,
        )
        slots.copy_(self._turned(normed.unsqueeze(1), rotations).squeeze(1))

    def select(
        self, x: Tensor, query_latent: Tensor, rotations: Tensor, keys: Tensor, start: int
    ) -> Selection:
        """x [T, D], query_latent [T, rank], keys [start + T, width] with the rows' own at the end.

        A row's scores have a shape that depends on its position alone.
        """
        if start + len(x) <= self.sizes.chosen:
            return [None] * len(x)
        queries = self.queries(query_latent).float().unflatten(1, (self.sizes.heads, -1))
        queries = self._turned(queries, rotations)  # [T, heads, width]
        weights = linear(x, self.head_weights)  # [T, heads]
        return [
            self._best(query, weight, keys[: start + t + 1].float())
            for t, (query, weight) in enumerate(zip(queries, weights, strict=True))
        ]

    def _best(self, query: Tensor, weight: Tensor, keys: Tensor) -> Tensor | None:
        """query [heads, width], weight [heads], keys [S, width] -> positions, or None for all."""
        if len(keys) <= self.sizes.chosen:
            return None
        scores = weight @ (query @ keys.T).relu_()  # [S]
        return scores.topk(self.sizes.chosen).indices.sort().values

    def _turned(self, x: Tensor, rotations: Tensor) -> Tensor:
        """x [T, heads, width] with its first dimensions rotated, as pairs of neighbours."""
        rotary = 2 * rotations.shape[-1]
        turning, rest = x[..., :rotary], x[..., rotary:]
        if not self.sizes.neighbours:
            turning = turning.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
        return torch.cat([turn(turning, rotations), rest], dim=-1)
