"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): one small latent per position.

Cached are the normed latent and the rotated key part that all heads share: rank + rotary numbers a
position. Every head's keys and values are linear in the latent, so there are two ways:

    expanded   keys and values of every head are made again from the latents: prefill, where one
               expansion serves all rows of a chunk
    absorbed   a query goes through its head's key matrix into the latent's space, scores and sums
               are taken there, and the result goes through the value matrix: decode, which then
               reads the latents once and nothing wider
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import Product, WeightProduct
from engine.layers.attention import causal_mask
from engine.layers.indexer import Indexer, Selection
from engine.layers.norm import short_rms_norm
from engine.layers.rope import turn

# Prefill expands so many heads at once that keys, values and scores stay below this.
_EXPANDED_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LatentSizes:
    heads: int
    rank: int  # of the latent
    plain: int  # width of a head's key part without positions
    rotary: int  # width of the key part with positions, shared by all heads
    value: int  # width of a head's value

    @property
    def query(self) -> int:
        return self.plain + self.rotary

    @property
    def cached(self) -> int:
        """Numbers per position."""
        return self.rank + self.rotary


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer's rows stand and what is cached of the text up to them."""

    start: int
    rotations: Tensor  # [T, rotary / 2] complex64
    latents: Tensor  # [start + T, rank + rotary]; the rows' own are written by the layer
    index_keys: Tensor | None  # [start + T, index width], in layers with an indexer
    # rows share sums (prefill) instead of coming out as if alone
    expanded: bool


@dataclass(frozen=True, slots=True)
class LatentAttention:
    sizes: LatentSizes
    scale: float
    eps: float
    query_in: Product | None  # [query rank, D]; None: `query` takes x itself
    query_norm: Tensor | None  # [query rank]
    query: Product  # [heads * (plain + rotary), query rank]
    latent: Product  # [rank + rotary, D]
    latent_norm: Tensor  # [rank]
    expand: WeightProduct  # [heads * (plain + value), rank], each head's keys before its values
    out: Product  # [D, heads * value]
    indexer: Indexer | None

    @property
    def size_bytes(self) -> int:
        parts = (self.query_in, self.query, self.latent, self.expand, self.out, self.indexer)
        return sum(part.size_bytes for part in parts if part is not None)

    def __call__(
        self, x: Tensor, place: Place, selection: Selection | None
    ) -> tuple[Tensor, Selection | None]:
        """x [T, D] float32, normed -> [T, D] float32, and what the rows looked at.

        `selection` is that of the nearest indexer below, for layers that share it.
        """
        s = self.sizes
        query_latent = self._query_latent(x)
        query = self.query(query_latent).float().view(len(x), s.heads, s.query)
        plain, turned = query[..., : s.plain], turn(query[..., s.plain :], place.rotations)
        self._write(x, place)
        if self.indexer is not None and place.index_keys is not None:
            slots = place.index_keys[place.start :]
            self.indexer.write_keys(x, place.rotations, slots)
            selection = self.indexer.select(
                x, query_latent, place.rotations, place.index_keys, place.start
            )
        attend = self._expanded if place.expanded else self._absorbed
        return self.out(attend(plain, turned, place, selection)).float(), selection

    def _query_latent(self, x: Tensor) -> Tensor:
        if self.query_in is None or self.query_norm is None:
            return x
        return short_rms_norm(self.query_in(x).float(), self.query_norm, self.eps)

    def _write(self, x: Tensor, place: Place) -> None:
        made = self.latent(x).float()  # [T, rank + rotary]
        slots, rank = place.latents[place.start :], self.sizes.rank
        slots[:, :rank] = short_rms_norm(made[:, :rank].contiguous(), self.latent_norm, self.eps)
        slots[:, rank:] = turn(made[:, None, rank:], place.rotations)[:, 0]

    def _absorbed(
        self, plain: Tensor, turned: Tensor, place: Place, selection: Selection | None
    ) -> Tensor:
        """Row by row. plain [T, H, plain], turned [T, H, rotary] -> [T, H * value]."""
        s = self.sizes
        weight = self.expand.weight().float().view(s.heads, s.plain + s.value, s.rank)
        keys, values = weight[:, : s.plain], weight[:, s.plain :]
        rows: list[Tensor] = []
        for t in range(len(plain)):
            seen = place.latents[: place.start + t + 1]
            chosen = None if selection is None else selection[t]
            seen = (seen if chosen is None else seen[chosen]).float()  # [S, rank + rotary]
            inner = torch.bmm(plain[t].unsqueeze(1), keys).squeeze(1)  # [H, rank]
            query = torch.cat([inner, turned[t]], dim=1)
            weights = (query @ seen.T).mul_(self.scale).softmax(-1)  # [H, S]
            inner = weights @ seen[:, : s.rank]  # [H, rank]
            rows.append(torch.bmm(values, inner.unsqueeze(2)).view(1, -1))
        return torch.cat(rows)

    def _expanded(
        self, plain: Tensor, turned: Tensor, place: Place, selection: Selection | None
    ) -> Tensor:
        """The same for all rows at once, a few heads at a time."""
        s, positions = self.sizes, len(place.latents)
        hidden = ~_mask(len(plain), place.start, selection)  # [T, S]
        latents, rotary = place.latents.float().split([s.rank, s.rotary], dim=1)
        weight = self.expand.weight().float().view(s.heads, s.plain + s.value, s.rank)
        per_head = 4 * positions * (s.plain + s.value + 2 * len(plain))
        step = max(1, _EXPANDED_BYTES // per_head)
        made: list[Tensor] = []
        for head in range(0, s.heads, step):
            heads = slice(head, head + step)
            expanded = latents @ weight[heads].transpose(1, 2)  # [h, S, plain + value]
            keys, values = expanded.split([s.plain, s.value], dim=2)
            scores = plain[:, heads].transpose(0, 1) @ keys.transpose(1, 2)  # [h, T, S]
            scores += turned[:, heads].transpose(0, 1) @ rotary.T
            scores.mul_(self.scale).masked_fill_(hidden, float("-inf"))
            made.append(scores.softmax(-1) @ values)  # [h, T, value]
        return torch.cat(made).transpose(0, 1).flatten(1)


def _mask(rows: int, start: int, selection: Selection | None) -> Tensor:
    """[T, start + T] bool: what each row looks at."""
    mask = causal_mask(rows, start)
    for row, chosen in zip(mask, selection or (), strict=False):
        if chosen is not None:
            row.zero_()
            row[chosen] = True
    return mask
