"""DeepSeek-V3 and R1 (arXiv:2412.19437): sigmoid routing in groups, a layer that drafts."""

from __future__ import annotations

from engine.models.latent.config import read_config
from engine.models.latent.model import LatentModel
from engine.weights.checkpoint import Checkpoint


class DeepseekV3(LatentModel):
    def __init__(
        self,
        checkpoint: Checkpoint,
        level: str,
        context_tokens: int | None = None,
        *,
        inner_eps: float | None = None,
    ) -> None:
        """Arguments and errors as of `LatentModel`."""
        config = read_config(checkpoint, scoring="sigmoid", dense_layers=3)
        super().__init__(checkpoint, config, level, context_tokens, inner_eps=inner_eps)
