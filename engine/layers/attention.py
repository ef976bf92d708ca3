"""Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) against the cache of one text.

The H / K query heads that share a key head stand as rows of one small matrix, so keys and values
are read once and never repeated.

`attend_rows` is the decode path: each row is its own call with a shape that depends on its
position alone, so its sum runs in the same order whatever shares the pass. `attend_chunk` is the
prefill path: one call for all rows, faster, and exact only up to the order of its sums.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def attend_rows(q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """q [T, H, E] at positions start..start + T - 1; keys, values [K, >= start + T, E].

    Returns [T, H * E].
    """
    rows = [
        _attend(row.unflatten(0, (keys.shape[0], -1)), keys, values, start + t + 1, None)
        for t, row in enumerate(q)
    ]
    return rows[0].view(1, -1) if len(rows) == 1 else torch.stack(rows).flatten(1)


def attend_chunk(q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """The same as `attend_rows` in one call with a causal mask. Returns [T, H * E]."""
    positions, heads, width = q.shape
    kv_heads = keys.shape[0]
    mask = causal_mask(positions, start).repeat(heads // kv_heads, 1)  # [H / K * T, S]
    grouped = q.view(positions, kv_heads, -1, width).permute(1, 2, 0, 3).flatten(1, 2)
    out = _attend(grouped, keys, values, start + positions, mask)  # [K, H / K * T, E]
    return out.view(heads, positions, width).transpose(0, 1).flatten(1)


def causal_mask(positions: int, start: int) -> Tensor:
    """[T, start + T] bool: row t may look at positions 0..start + t."""
    return torch.ones(positions, start + positions, dtype=torch.bool).tril_(start)


def _attend(q: Tensor, keys: Tensor, values: Tensor, length: int, mask: Tensor | None) -> Tensor:
    """q [K, rows, E] -> [K, rows, E] float32 over the first `length` positions."""
    out = F.scaled_dot_product_attention(
        q.to(keys.dtype).unsqueeze(0),
        keys[:, :length].unsqueeze(0),
        values[:, :length].unsqueeze(0),
        attn_mask=mask,
    )
    return out.squeeze(0).to(torch.float32)
