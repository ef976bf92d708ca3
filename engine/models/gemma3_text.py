"""Gemma 3, the text model (arXiv:2503.19786).

Five layers of six see a window only and have a rotary base of their own. Every norm multiplies by
1 + w; results are normed on their way into the residual stream too.
"""

from __future__ import annotations

from dataclasses import replace

from engine.models.decoder_config import SLIDING, DecoderConfig
from engine.models.llama import Llama
from engine.weights.checkpoint import Checkpoint
from engine.weights.fields import Fields, read_rope


class Gemma3Text(Llama):
    @staticmethod
    def read_config(checkpoint: Checkpoint) -> DecoderConfig:
        fields = Fields.of(checkpoint)
        config = DecoderConfig.read(checkpoint)
        slides = _slides(fields, config.layers)
        window = fields.count("sliding_window", 4096)
        return replace(
            config,
            query_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
            ropes=(read_rope(fields, "full_attention"), read_rope(fields, SLIDING)),
            layer_ropes=tuple(map(int, slides)),
            windows=tuple(window if slide else None for slide in slides),
            head_norms=True,
            out_norms=True,
            norm_offset=1,
            embedding_scale=config.width**0.5,
            gelu=True,
        )


def _slides(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers see a window: `layer_types`, in old files every one but each sixth."""
    kinds = fields.texts("layer_types")
    if kinds and len(kinds) != layers:
        raise fields.wrong("layer_types")
    if kinds:
        return tuple(kind == SLIDING for kind in kinds)
    pattern = fields.count("sliding_window_pattern", 6)
    return tuple((n + 1) % pattern != 0 for n in range(layers))
