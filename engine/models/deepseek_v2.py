"""DeepSeek-V2 and V2-Lite (arXiv:2405.04434): softmax routing; Lite has queries without a latent."""

from __future__ import annotations

from engine.models.latent.config import read_config
from engine.models.latent.model import LatentModel
from engine.weights.checkpoint import Checkpoint


class DeepseekV2(LatentModel):
    def __init__(
        self,
        checkpoint: Checkpoint,
        level: str,
        context_tokens: int | None = None,
        *,
        inner_eps: float | None = None,
    ) -> None:
        """Arguments and errors as of `LatentModel`."""
        config = read_config(checkpoint, scoring="softmax")
        super().__init__(checkpoint, config, level, context_tokens, inner_eps=inner_eps)
