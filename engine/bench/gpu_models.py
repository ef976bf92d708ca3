"""What the GPU benchmark runs: random weights at real shapes. Latency does not depend on values."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.layers.rope import rope_frequencies
from engine.models.decoder_config import DecoderConfig
from engine.runtime.llama_weights import LayerWeights, LlamaWeights, rotations
from engine.weights.fields import plain_rope

LLAMA_1B = DecoderConfig.plain(
    layers=16,
    width=2048,
    heads=32,
    kv_heads=8,
    head_width=64,
    ffn_width=8192,
    norm_eps=1e-5,
    rope=plain_rope(5e5),
    context_tokens=131072,
)
# without Qwen's norms of queries and keys, which read nothing that would count
QWEN3_600M = DecoderConfig.plain(
    layers=28,
    width=1024,
    heads=16,
    kv_heads=8,
    head_width=128,
    ffn_width=3072,
    norm_eps=1e-6,
    rope=plain_rope(1e6),
    context_tokens=40960,
)
VOCABULARIES = {LLAMA_1B: 128256, QWEN3_600M: 151936}


def random_weights(config: DecoderConfig, context_tokens: int) -> LlamaWeights:
    """bfloat16 on the CUDA device, embedding and head tied as in both checkpoints."""
    generator = torch.Generator("cuda").manual_seed(7)

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.randn(rows, columns, device="cuda", generator=generator)
        return (values * columns**-0.5).to(torch.bfloat16)

    def norm() -> Tensor:
        return torch.ones(config.width, device="cuda")

    layers = [
        LayerWeights(norm(), norm(), **{k: matrix(*shape) for k, shape in config.shapes.items()})
        for _ in range(config.layers)
    ]
    table = matrix(VOCABULARIES[config], config.width)
    turning = rope_frequencies(config.head_width, config.rope_base)
    turns = rotations(turning, context_tokens).cuda()
    return LlamaWeights(config, context_tokens, layers, table, table, norm(), turns)
