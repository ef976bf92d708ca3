"""Qwen2 and Qwen2.5: a llama whose queries, keys and values have a bias (arXiv:2407.10671)."""

from __future__ import annotations

from dataclasses import replace

from engine.models.decoder_config import SLIDING, DecoderConfig
from engine.models.llama import Llama
from engine.weights.checkpoint import Checkpoint
from engine.weights.fields import Fields


class Qwen2(Llama):
    @staticmethod
    def read_config(checkpoint: Checkpoint) -> DecoderConfig:
        config = DecoderConfig.read(checkpoint)
        windows = _windows(Fields.of(checkpoint), config.layers)
        return replace(config, bias=True, windows=windows)


def _windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """With `use_sliding_window` the layers from `max_window_layers` on see a window only."""
    if not fields.flag("use_sliding_window"):
        return (None,) * layers
    window = fields.count("sliding_window", 4096)
    kinds = fields.texts("layer_types")
    if kinds and len(kinds) != layers:
        raise fields.wrong("layer_types")
    if kinds:
        return tuple(window if kind == SLIDING else None for kind in kinds)
    first = fields.values.get("max_window_layers", 28)
    if not isinstance(first, int) or isinstance(first, bool):
        raise fields.wrong("max_window_layers")
    return tuple(window if n >= first else None for n in range(layers))
