"""Qwen3: a llama whose queries and keys are normed head by head (arXiv:2505.09388)."""

from __future__ import annotations

from dataclasses import replace

from engine.models.decoder_config import DecoderConfig
from engine.models.llama import Llama
from engine.weights.checkpoint import Checkpoint


class Qwen3(Llama):
    @staticmethod
    def read_config(checkpoint: Checkpoint) -> DecoderConfig:
        return replace(DecoderConfig.read(checkpoint), head_norms=True)
