"""The cache of models with latent attention: latents of every layer, index keys of some."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache import CachedText, grown_capacity
from engine.memory import memory_for


class LatentCache(CachedText):
    """Latents [L, S, rank + rotary] and, for layers that have an indexer, its keys [I, S, width].

    S grows up to `context_tokens`. All heads of a layer share one latent, so a position costs
    576 numbers a layer in DeepSeek and GLM models, where plain attention would cost 32768.
    """

    def __init__(
        self,
        layers: int,
        latent_width: int,
        index_layers: Sequence[int],
        index_width: int,
        context_tokens: int,
        dtype: torch.dtype,
    ) -> None:
        """`index_layers`: numbers of the layers with an indexer, ascending."""
        super().__init__()
        self.context_tokens = context_tokens
        self._latents = torch.zeros(layers, 0, latent_width, dtype=dtype)
        self._index_keys = torch.zeros(len(index_layers), 0, index_width, dtype=dtype)
        self._index_places = {layer: place for place, layer in enumerate(index_layers)}

    @property
    def capacity(self) -> int:
        """Positions there is room for without growing."""
        return self._latents.shape[1]

    @property
    def size_bytes(self) -> int:
        return self._latents.nbytes + self._index_keys.nbytes

    def reserve(self, positions: int) -> None:
        """Make room for positions 0..positions - 1.

        Raises OutOfMemoryError when the machine has none; the cache is then as it was.
        """
        if positions <= self.capacity:
            return
        capacity = grown_capacity(positions, self.context_tokens)
        with memory_for(f"a cache of {capacity} positions"):
            latents = self._grown(self._latents, capacity)
            index_keys = self._grown(self._index_keys, capacity)
        # what is given back to the machine holds nothing of the text
        self._latents.zero_()
        self._index_keys.zero_()
        self._latents, self._index_keys = latents, index_keys

    def latents(self, layer: int, end: int) -> Tensor:
        """[end, rank + rotary]: what stands at positions 0..end - 1, to read and to write."""
        return self._latents[layer, :end]

    def index_keys(self, layer: int, end: int) -> Tensor | None:
        """[end, width] likewise; None for a layer without an indexer."""
        place = self._index_places.get(layer)
        return None if place is None else self._index_keys[place, :end]

    def wipe(self) -> None:
        """Forget everything, in memory too: the next seat must find nothing of this one."""
        self._tokens.clear()
        self._latents.zero_()
        self._index_keys.zero_()

    def _grown(self, data: Tensor, capacity: int) -> Tensor:
        grown = torch.zeros(data.shape[0], capacity, data.shape[2], dtype=data.dtype)
        grown[:, : self.length] = data[:, : self.length]
        return grown
