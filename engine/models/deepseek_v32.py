"""DeepSeek-V3.2: V3 with sparse attention. Its indexer rotates halves, its attention neighbours."""

from __future__ import annotations

from engine.models.latent.config import read_config
from engine.models.latent.model import LatentModel
from engine.weights.checkpoint import Checkpoint


class DeepseekV32(LatentModel):
    def __init__(
        self,
        checkpoint: Checkpoint,
        level: str,
        context_tokens: int | None = None,
        *,
        inner_eps: float | None = None,
    ) -> None:
        """Arguments and errors as of `LatentModel`."""
        config = read_config(checkpoint, scoring="sigmoid", dense_layers=3, index_neighbours=False)
        super().__init__(checkpoint, config, level, context_tokens, inner_eps=inner_eps)
