"""Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) against the cache of one text.

The H / K query heads that share a key head stand as rows of one small matrix, so keys and values
are read once and never repeated. Queries come scaled by E^-0.5.

`attend_rows` is the decode path: each row is its own call, with a shape that depends on its
position alone, so its sums run in the same order whatever shares the pass. `attend_chunk` is the
prefill path: one call for all rows, faster, and equal only up to the order of its sums.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Attend(Protocol):
    """With a `window`, a row sees that many positions, its own the last of them."""

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None = None
    ) -> Tensor: ...


def attend_rows(
    q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None = None
) -> Tensor:
    """q [T, H, E] at positions start..start + T - 1; keys, values [K, start + T, E].

    Returns [T, H * E] float32.
    """
    rows: list[Tensor] = []
    for end, row in enumerate(q, start + 1):
        first = 0 if window is None else max(0, end - window)
        rows.append(_attend_row(row, keys[:, first:end], values[:, first:end]))
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def _attend_row(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q [H, E]; keys, values [K, S, E] -> [1, H * E]. A third of the time of torch's own."""
    grouped = q.view(keys.shape[0], -1, q.shape[1])  # [K, H / K, E]
    weights = torch.bmm(grouped, keys.transpose(1, 2)).softmax(-1)  # [K, H / K, S]
    return torch.bmm(weights, values).view(1, -1)


def attend_chunk(
    q: Tensor, keys: Tensor, values: Tensor, start: int, window: int | None = None
) -> Tensor:
    """The same as `attend_rows` in one call with a mask."""
    positions, heads, width = q.shape
    kv_heads = keys.shape[0]
    first = 0 if window is None else max(0, start + 1 - window)
    grouped = q.view(positions, kv_heads, -1, width).permute(1, 2, 0, 3).flatten(1, 2)
    out = F.scaled_dot_product_attention(
        grouped.unsqueeze(0),  # [1, K, H / K * T, E]
        keys[:, first:].unsqueeze(0),
        values[:, first:].unsqueeze(0),
        attn_mask=causal_mask(positions, start - first, window).repeat(heads // kv_heads, 1),
        scale=1.0,
    )
    return out.view(heads, positions, width).transpose(0, 1).flatten(1)


def causal_mask(positions: int, start: int, window: int | None = None) -> Tensor:
    """[T, start + T] bool: row t may look at positions 0..start + t, the last `window` of them."""
    mask = torch.ones(positions, start + positions, dtype=torch.bool).tril_(start)
    return mask if window is None else mask.triu_(start + 1 - window)
