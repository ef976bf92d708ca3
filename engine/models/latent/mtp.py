"""Drafts by the model's own further layer: multi-token prediction (DeepSeek-V3, arXiv:2412.19437).

The layer sees at position i the state of the main model there (behind its final norm) and the
embedding of token i + 1, and guesses token i + 2. For a further guess its own outcome (behind its
own norm) takes the state's place, and the guess the token's.

Its cache holds one slot for each position it has seen. After an answer the last tokens' states are
not there, and some positions stay without a slot: that costs a little of the guesses' quality and
nothing else, for drafts are only ever checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.kernels import Product
from engine.latent_cache import LatentCache
from engine.layers.latent_attention import Place
from engine.layers.norm import short_rms_norm
from engine.models.latent.layer import LatentLayer, LayerReader
from engine.sampling import choose
from engine.types import SamplingParams


class MainModel(Protocol):
    """What drafting needs of the model."""

    def normed(self, hidden: Tensor) -> Tensor: ...
    def head_logits(self, normed: Tensor) -> Tensor: ...
    def embed(self, token_ids: Sequence[int]) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DraftLayer:
    state_norm: Tensor
    token_norm: Tensor
    join: Product  # [D, 2 D], the token's half first
    layer: LatentLayer
    out_norm: Tensor
    reader: LayerReader

    @classmethod
    def stands_in(cls, reader: LayerReader) -> bool:
        """Converters often leave the layer out and its count in the config as it was."""
        return f"model.layers.{reader.config.layers}.eh_proj.weight" in reader.checkpoint

    @classmethod
    def read(cls, reader: LayerReader) -> DraftLayer:
        """The layer behind the last one. Raises ModelFileError."""
        width, number = reader.config.width, reader.config.layers
        name = f"model.layers.{number}."
        return cls(
            state_norm=reader.vector(name + "hnorm.weight", width),
            token_norm=reader.vector(name + "enorm.weight", width),
            join=reader.product([name + "eh_proj"], (width, 2 * width)),
            layer=reader.layer(number),
            out_norm=reader.vector(name + "shared_head.norm.weight", width),
            reader=reader,
        )

    def __call__(
        self, states: Tensor, embedded: Tensor, positions: range, cache: LatentCache, expanded: bool
    ) -> Tensor:
        """states, embedded [T, D] at consecutive positions -> [T, D] behind the layer's own norm."""
        config, eps = self.reader.config, self.reader.config.norm_eps
        start, end = cache.length, cache.length + len(positions)
        cache.reserve(end)
        token = short_rms_norm(embedded, self.token_norm, eps)
        state = short_rms_norm(states, self.state_norm, eps)
        h = self.join(torch.cat([token, state], dim=1)).float()
        place = Place(
            start,
            config.waves.rotations(positions.start, positions.stop),
            cache.latents(0, end),
            cache.index_keys(0, end),
            expanded,
        )
        h, _ = self.layer(h, place, None)
        cache.claim(positions)
        return short_rms_norm(h, self.out_norm, eps)


class MtpDrafter:
    """A `Drafter`. Its cache's "tokens" are the positions that its slots stand for."""

    def __init__(self, model: MainModel, layer: DraftLayer, cache: LatentCache) -> None:
        self._model = model
        self._layer = layer
        self._cache = cache
        self._sampling = SamplingParams()
        # state of the last position read, which waits for the token behind it
        self._waiting: tuple[int, Tensor] | None = None
        # the layer's outcome for the newest slot
        self._newest: Tensor | None = None

    def read(self, token_ids: Sequence[int], states: Tensor, start: int) -> None:
        """A chunk of the prompt from position `start` on. states [T, D], normed."""
        if self._waiting is not None and self._waiting[0] == start - 1:
            states = torch.cat([self._waiting[1], states])
            start -= 1
        else:
            # the token behind the first state is the second of the chunk
            token_ids = token_ids[1:]
        self._drop_from(start)
        if token_ids:
            positions = range(start, start + len(token_ids))
            self._run(states[:-1], token_ids, positions, expanded=True)
        self._waiting = start + len(states) - 1, states[-1:]

    def begin(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> None:
        self._sampling = sampling

    def extend(self, token_ids: Sequence[int], hidden: Tensor) -> None:
        position = self._next_position()
        self._waiting = None
        self._drop_from(position)
        states = self._model.normed(hidden)
        positions = range(position, position + len(token_ids))
        self._run(states, token_ids, positions, expanded=False)

    def kind(self) -> str | None:
        """What the next guess would rest on; None before anything was read."""
        return None if self._newest is None else "mtp"

    def propose(self, most: int) -> Sequence[int]:
        if self._newest is None:
            return []
        slots = self._cache.length
        drafts: list[int] = []
        state, position = self._newest, self._next_position()
        while True:
            # the newest slot saw token `position`; this is the one behind it
            logits = self._model.head_logits(state)[0]
            drafts.append(choose(logits, self._sampling, position + 1))
            if len(drafts) == most:
                break
            embedded = self._model.embed(drafts[-1:])
            here = range(position, position + 1)
            state = self._layer(state, embedded, here, self._cache, expanded=False)
            position += 1
        self._cache.truncate(slots)
        return drafts

    def close(self) -> None:
        """The layer and its cache are freed with the model."""
        self.forget()

    def forget(self) -> None:
        self._cache.wipe()
        self._waiting = self._newest = None
        self._sampling = SamplingParams()

    def _run(
        self, states: Tensor, token_ids: Sequence[int], positions: range, *, expanded: bool
    ) -> None:
        embedded = self._model.embed(token_ids)
        out = self._layer(states, embedded, positions, self._cache, expanded)
        self._newest = out[-1:]

    def _next_position(self) -> int:
        """Where the state stands that comes next."""
        if self._waiting is not None:
            return self._waiting[0]
        return self._cache.tokens[-1] + 1 if self._cache.length else 0

    def _drop_from(self, position: int) -> None:
        """Slots of this position and beyond belong to another text now."""
        seen = self._cache.tokens
        keep = len(seen)
        while keep and seen[keep - 1] >= position:
            keep -= 1
        self._cache.truncate(keep)
