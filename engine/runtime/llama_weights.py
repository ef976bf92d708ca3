"""A llama's weights on one device, as prefill and decode share them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.layers.rope import rope_table
from engine.models.decoder_config import DecoderConfig, norm_weight, read_vectors
from engine.models.llama import EMBEDDING, FINAL_NORM, MATRICES, frequencies, head_name
from engine.weights.checkpoint import Checkpoint
from engine.weights.rotary import Neighbours
from engine.weights.rows import Rows


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Matrices in the weights' type, norms float32."""

    attention_norm: Tensor  # [D]
    ffn_norm: Tensor  # [D]
    qkv: Tensor  # [(H + 2 K) E, D]
    out: Tensor  # [D, H E]
    gate_up: Tensor  # [2 F, D]
    down: Tensor  # [D, F]

    @property
    def size_bytes(self) -> int:
        return sum(m.nbytes for m in (self.qkv, self.out, self.gate_up, self.down))


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    config: DecoderConfig
    context_tokens: int
    layers: list[LayerWeights]
    embedding: Tensor  # [V, D]
    head: Tensor  # [V, D]; the same tensor where the checkpoint ties them
    final_norm: Tensor  # [D] float32
    rotations: Tensor  # [S, E / 2, 2] float32: cosine and sine

    @property
    def decode_bytes(self) -> int:
        """Weight bytes that one step reads."""
        return sum(layer.size_bytes for layer in self.layers) + self.head.nbytes

    @property
    def device(self) -> torch.device:
        return self.embedding.device


def read_weights(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, context_tokens: int | None
) -> LlamaWeights:
    """Raises ModelFileError when something is missing or has another shape."""
    config = DecoderConfig.read(checkpoint)
    checkpoint = Neighbours(checkpoint, config.head_width)
    context_tokens = min(context_tokens or config.context_tokens, config.context_tokens)

    def matrix(names: list[str], shape: tuple[int, int]) -> Tensor:
        return Rows(checkpoint, names, shape).float32().to(dtype).to(device)

    def layer(n: int) -> LayerWeights:
        vectors = read_vectors(checkpoint, config, n)
        return LayerWeights(
            vectors.attention_norm.to(device),
            vectors.ffn_norm.to(device),
            **{
                key: matrix([part.format(n=n) for part in parts], config.shapes[key])
                for key, parts in MATRICES.items()
            },
        )

    vocabulary = (*checkpoint.shape(EMBEDDING), 0)[0]
    embedding = matrix([EMBEDDING], (vocabulary, config.width))
    head = head_name(checkpoint)
    turning = frequencies(checkpoint, config, config.ropes[0])
    return LlamaWeights(
        config,
        context_tokens,
        [layer(n) for n in range(config.layers)],
        embedding,
        embedding if head == EMBEDDING else matrix([head], (vocabulary, config.width)),
        norm_weight(checkpoint, FINAL_NORM, config).to(device),
        rotations(turning, context_tokens).to(device),
    )


def rotations(turning: Tensor, positions: int) -> Tensor:
    """Frequencies [E / 2] -> [positions, E / 2, 2] float32."""
    return torch.view_as_real(rope_table(turning, positions)).squeeze(1).contiguous()
