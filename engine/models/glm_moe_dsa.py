"""GLM-5, 5.1, and 5.2 and 5.3 whose layers share indexers: DeepSeek-V3.2's structure throughout.

The indexer rotates neighbours, experts are chosen from one group.
"""

from __future__ import annotations

from engine.models.latent.config import read_config
from engine.models.latent.model import LatentModel
from engine.weights.checkpoint import Checkpoint


class GlmMoeDsa(LatentModel):
    def __init__(
        self,
        checkpoint: Checkpoint,
        level: str,
        context_tokens: int | None = None,
        *,
        inner_eps: float | None = None,
    ) -> None:
        """Arguments and errors as of `LatentModel`."""
        config = read_config(checkpoint, scoring="sigmoid", dense_layers=3, index_neighbours=True)
        super().__init__(checkpoint, config, level, context_tokens, inner_eps=inner_eps)
