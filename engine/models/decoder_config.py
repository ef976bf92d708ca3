"""How a dense decoder is built: its sizes, and in what it differs from a plain llama."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.checkpoint import Checkpoint, vector
from engine.weights.fields import Fields, Rope, read_rope

LAYER = "model.layers.{n}"
SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    norm_eps: float
    context_tokens: int
    # what scores are multiplied by
    query_scale: float
    # kinds of rotary positions, and which of them each layer has
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]
    # positions that each layer sees; None for all
    windows: tuple[int | None, ...]
    # queries, keys and values have a bias
    bias: bool = False
    # queries and keys are normed, head by head, before they are rotated
    head_norms: bool = False
    # Gemma's: what a layer adds to the residual stream is normed first
    out_norms: bool = False
    # added to every norm's weight
    norm_offset: float = 0
    embedding_scale: float = 1
    # the gate's function is GELU in place of SiLU
    gelu: bool = False

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> DecoderConfig:
        """A plain llama's. Raises ModelFileError when a value is missing or cannot be."""
        fields = Fields.of(checkpoint)
        width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
        head_width = fields.count("head_dim", width // heads)
        plain = cls.plain(
            layers=fields.count("num_hidden_layers"),
            width=width,
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", heads),
            head_width=head_width,
            ffn_width=fields.count("intermediate_size"),
            norm_eps=fields.number("rms_norm_eps"),
            rope=read_rope(fields),
            context_tokens=fields.count("max_position_embeddings"),
        )
        config = replace(plain, bias=fields.flag("attention_bias"))
        if config.heads % config.kv_heads or config.head_width % 2:
            raise ModelFileError(
                f"The sizes of the model in {checkpoint.path} contradict each other: {heads} heads of "
                f"{head_width} on {config.kv_heads}. Download it again."
            )
        return config

    @classmethod
    def plain(
        cls,
        *,
        layers: int,
        width: int,
        heads: int,
        kv_heads: int,
        head_width: int,
        ffn_width: int,
        norm_eps: float,
        rope: Rope,
        context_tokens: int,
    ) -> DecoderConfig:
        """A llama in every respect."""
        return cls(
            layers=layers,
            width=width,
            heads=heads,
            kv_heads=kv_heads,
            head_width=head_width,
            ffn_width=ffn_width,
            norm_eps=norm_eps,
            context_tokens=context_tokens,
            query_scale=head_width**-0.5,
            ropes=(rope,),
            layer_ropes=(0,) * layers,
            windows=(None,) * layers,
        )

    @property
    def rope_base(self) -> float:
        """Of a model with one kind of rotary positions."""
        return self.ropes[0].base

    @property
    def is_plain(self) -> bool:
        """Whether it is a llama in every respect, for levels that know nothing else."""
        differs = self.bias or self.head_norms or self.out_norms or self.gelu
        return not differs and self.embedding_scale == 1 and len(self.ropes) == 1

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """[N, K] of each of `engine.models.llama.MATRICES`."""
        query_width = self.heads * self.head_width
        return {
            "qkv": (query_width + 2 * self.kv_heads * self.head_width, self.width),
            "out": (self.width, query_width),
            "gate_up": (2 * self.ffn_width, self.width),
            "down": (self.width, self.ffn_width),
        }


@dataclass(frozen=True, slots=True)
class Vectors:
    """One layer's weights that are no matrices, float32."""

    attention_norm: Tensor  # [D]
    ffn_norm: Tensor  # [D]
    attention_out_norm: Tensor | None  # [D]
    ffn_out_norm: Tensor | None  # [D]
    bias: Tensor | None  # [(H + 2 K) E]
    head_norm: Tensor | None  # [H + K, E]


def norm_weight(checkpoint: Checkpoint, name: str, config: DecoderConfig) -> Tensor:
    """[D] float32. Raises ModelFileError."""
    weight = vector(checkpoint, name, config.width)
    return weight + config.norm_offset if config.norm_offset else weight


def read_vectors(checkpoint: Checkpoint, config: DecoderConfig, n: int) -> Vectors:
    """Of layer n, queries and keys in neighbouring pairs. Raises ModelFileError."""
    layer = LAYER.format(n=n)

    def norm(name: str) -> Tensor:
        return norm_weight(checkpoint, f"{layer}.{name}_layernorm.weight", config)

    ffn_norm = "pre_feedforward" if config.out_norms else "post_attention"
    return Vectors(
        attention_norm=norm("input"),
        ffn_norm=norm(ffn_norm),
        attention_out_norm=norm("post_attention") if config.out_norms else None,
        ffn_out_norm=norm("post_feedforward") if config.out_norms else None,
        bias=_bias(checkpoint, config, layer) if config.bias else None,
        head_norm=_head_norm(checkpoint, config, layer) if config.head_norms else None,
    )


def _bias(checkpoint: Checkpoint, config: DecoderConfig, layer: str) -> Tensor:
    heads = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    return torch.cat(
        [
            vector(checkpoint, f"{layer}.self_attn.{part}_proj.bias", count * config.head_width)
            for part, count in heads.items()
        ]
    )


def _head_norm(checkpoint: Checkpoint, config: DecoderConfig, layer: str) -> Tensor:
    parts = [
        vector(checkpoint, f"{layer}.self_attn.{part}_norm.weight", config.head_width).expand(
            count, -1
        )
        for part, count in (("q", config.heads), ("k", config.kv_heads))
    ]
    return torch.cat(parts) + config.norm_offset
