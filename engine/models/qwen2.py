"""Qwen2 and Qwen2.5: a llama whose queries, keys and values have a bias (arXiv:2407.10671)."""

from __future__ import annotations

from dataclasses import replace

from engine.models.decoder_config import DecoderConfig
from engine.models.llama import Llama
from engine.weights.checkpoint import Checkpoint


class Qwen2(Llama):
    @staticmethod
    def read_config(checkpoint: Checkpoint) -> DecoderConfig:
        return replace(DecoderConfig.read(checkpoint), bias=True)
