"""The forward pass that the DeepSeek and GLM models share. Their own files say what differs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.latent_cache import LatentCache
from engine.layers.head import Head, Tables
from engine.layers.latent_attention import Place
from engine.layers.norm import short_rms_norm
from engine.layers.rows import APART_ROWS, each_row
from engine.models.latent.config import LatentConfig
from engine.models.latent.layer import LayerReader
from engine.models.latent.mtp import DraftLayer, MtpDrafter
from engine.weights.checkpoint import Checkpoint

EMBEDDING, HEAD, FINAL_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
# Rows that a decode pass takes with results as if each were alone. The dense products would order
# their sums by the number of rows; block FP8 multiplies row by row what it dequantised once.
_TOGETHER = {"fp8": APART_ROWS, "int8": 4, "int4": 4}


class LatentModel:
    """Weights of one checkpoint and the forward pass over them; see `engine.models.Model`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: LatentConfig,
        level: str,
        context_tokens: int | None = None,
        *,
        inner_eps: float | None = None,
    ) -> None:
        """`inner_eps`: of the norms inside attention, if it is not the config's.

        Raises ModelFileError.
        """
        self.config = config
        self.level = level
        self.context_tokens = min(context_tokens or config.context_tokens, config.context_tokens)
        reader = LayerReader(checkpoint, config, level, inner_eps)
        self._layers = [reader.layer(number) for number in range(config.layers)]
        self._final_norm = reader.vector(FINAL_NORM, config.width)
        tables = Tables(
            checkpoint, EMBEDDING, HEAD if HEAD in checkpoint else EMBEDDING, config.width
        )
        self._embed = tables.embed
        self._head = Head(tables, level)
        self._reader = reader
        self._drafter: MtpDrafter | None = None

    @property
    def decode_bytes(self) -> int:
        """Weight bytes that one decode step reads: of the experts, those that are chosen."""
        return sum(layer.size_bytes for layer in self._layers) + self._head.size_bytes

    @property
    def prefill_bytes(self) -> int:
        """Prefill uses the same weights."""
        return 0

    @property
    def pass_rows(self) -> int:
        return _TOGETHER.get(self.level, 1)

    def new_cache(self) -> LatentCache:
        c = self.config
        return self._cache(c.layers, c.index_layers)

    def prefill(self, token_ids: Sequence[int], cache: LatentCache) -> Tensor:
        """Run one chunk behind what the cache holds; all of its rows in one pass.

        Returns the last row's hidden state [1, D] for `logits`.
        """
        start = cache.length
        hidden = self._forward(token_ids, cache, expanded=True)
        if self._drafter is not None:
            self._drafter.read(token_ids, self.normed(hidden), start)
        return hidden[-1:]

    def decode(self, token_ids: Sequence[int], cache: LatentCache) -> Tensor:
        """Run tokens so that each row comes out as if it were alone. Returns [T, D]."""
        together = self.pass_rows
        passes = [
            self._forward(token_ids[first : first + together], cache, expanded=False)
            for first in range(0, len(token_ids), together)
        ]
        return passes[0] if len(passes) == 1 else torch.cat(passes)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, D] as the passes return it -> [T, V] float32."""
        return self.head_logits(self.normed(hidden))

    def normed(self, hidden: Tensor) -> Tensor:
        """[T, D] through the final norm."""
        return short_rms_norm(hidden, self._final_norm, self.config.norm_eps)

    def head_logits(self, normed: Tensor) -> Tensor:
        """[T, D] that went through a final norm -> [T, V] float32."""
        return each_row(self._head.logits, normed)

    def embed(self, token_ids: Sequence[int]) -> Tensor:
        """[T, D] float32."""
        return self._embed(token_ids)

    def drafter(self) -> MtpDrafter | None:
        """The model's own guess of what comes next; None if the checkpoint has no layer for that.

        One at a time: it follows what `prefill` reads from now on. Raises ModelFileError.
        """
        if DraftLayer.stands_in(self._reader):
            layer = DraftLayer.read(self._reader)
            self._drafter = MtpDrafter(self, layer, self._cache(1, (0,)))
        return self._drafter

    def use_threads(self, count: int) -> None:
        """torch's own threads are set for the whole process by who loads the model."""

    def close(self) -> None:
        """Nothing is held that the interpreter does not free by itself."""

    def _cache(self, layers: int, index_layers: Sequence[int]) -> LatentCache:
        sizes, indexer = self.config.attention, self.config.indexer
        return LatentCache(
            layers,
            sizes.cached,
            index_layers if indexer else (),
            indexer.width if indexer else 0,
            self.context_tokens,
            torch.float32 if self.level == "fp32" else torch.bfloat16,
        )

    def _forward(self, token_ids: Sequence[int], cache: LatentCache, *, expanded: bool) -> Tensor:
        start, end = cache.length, cache.length + len(token_ids)
        cache.reserve(end)
        h = self._embed(token_ids)  # [T, D] float32
        rotations = self.config.waves.rotations(start, end)
        selection = None
        for number, layer in enumerate(self._layers):
            place = Place(
                start,
                rotations,
                cache.latents(number, end),
                cache.index_keys(number, end),
                expanded,
            )
            h, selection = layer(h, place, selection)
        cache.claim(token_ids)
        return h
