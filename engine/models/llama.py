"""Llama and its relatives (SmolLM, Mistral 7B v0.1, ...).

Pre-norm decoder (Touvron et al. 2023, arXiv:2302.13971): h += Attention(RMS(h)); h +=
Down(SwiGLU(RMS(h))).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache import KvCache
from engine.kernels import KERNELS, Product
from engine.layers.attention import Attend, attend_chunk, attend_rows
from engine.layers.head import Head, Tables
from engine.layers.norm import Norm, rms_norm, rms_norm_rows
from engine.layers.rope import rope_frequencies, rope_table, rotate
from engine.layers.swiglu import swiglu
from engine.types import ModelFileError
from engine.weights.checkpoint import Checkpoint, vector
from engine.weights.fields import Fields, read_rope
from engine.weights.rotary import Neighbours
from engine.weights.rows import Rows

LAYER = "model.layers.{n}"
# our name -> the weights of layer n, stacked in this order
MATRICES = {
    "qkv": tuple(f"{LAYER}.self_attn.{part}_proj.weight" for part in "qkv"),
    "out": (f"{LAYER}.self_attn.o_proj.weight",),
    "gate_up": (f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight"),
    "down": (f"{LAYER}.mlp.down_proj.weight",),
}
NORMS = (f"{LAYER}.input_layernorm.weight", f"{LAYER}.post_attention_layernorm.weight")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FINAL_NORM = "model.norm.weight"
# worked out by GGUF converters
ROPE_FACTORS = "rope_freqs.weight"
# int8 and int4: 4 rows take 1.1 of the time of one, 8 rows 2.2
PACKED_ROWS = 4


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    norm_eps: float
    rope_base: float
    context_tokens: int

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> LlamaConfig:
        """Raises ModelFileError when a value is missing or cannot be."""
        fields = Fields.of(checkpoint)
        width, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
        config = cls(
            layers=fields.count("num_hidden_layers"),
            width=width,
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", heads),
            head_width=fields.count("head_dim", width // heads),
            ffn_width=fields.count("intermediate_size"),
            norm_eps=fields.number("rms_norm_eps"),
            rope_base=read_rope(fields).base,
            context_tokens=fields.count("max_position_embeddings"),
        )
        if config.heads % config.kv_heads or config.head_width % 2:
            raise ModelFileError(
                f"The sizes of the model in {checkpoint.path} contradict each other ({config}). "
                "Download it again."
            )
        return config

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """[N, K] of each of MATRICES."""
        query_width = self.heads * self.head_width
        return {
            "qkv": (query_width + 2 * self.kv_heads * self.head_width, self.width),
            "out": (self.width, query_width),
            "gate_up": (2 * self.ffn_width, self.width),
            "down": (self.width, self.ffn_width),
        }


@dataclass(frozen=True, slots=True)
class Matrices:
    """The four products of one layer."""

    qkv: Product  # [(H + 2 K) E, D]
    out: Product  # [D, H E]
    gate_up: Product  # [2 F, D]
    down: Product  # [D, F]

    @property
    def size_bytes(self) -> int:
        return sum(m.size_bytes for m in (self.qkv, self.out, self.gate_up, self.down))


@dataclass(frozen=True, slots=True)
class Phase:
    """How the layers are computed: prefill shares a pass among rows, decode keeps rows apart."""

    layers: list[Matrices]
    norm: Norm
    attend: Attend

    @property
    def size_bytes(self) -> int:
        return sum(layer.size_bytes for layer in self.layers)


class Llama:
    """Weights of one checkpoint and the forward pass over them."""

    def __init__(
        self, checkpoint: Checkpoint, level: str, context_tokens: int | None = None
    ) -> None:
        self.config = LlamaConfig.read(checkpoint)
        checkpoint = Neighbours(checkpoint, self.config.head_width)
        self.level = level
        self.context_tokens = min(
            context_tokens or self.config.context_tokens, self.config.context_tokens
        )
        self._norms = [
            [vector(checkpoint, name.format(n=n), self.config.width) for name in NORMS]
            for n in range(self.config.layers)
        ]
        self._final_norm = vector(checkpoint, FINAL_NORM, self.config.width)
        self._rotations = self._rope_table(checkpoint)
        head = HEAD if HEAD in checkpoint else EMBEDDING  # absent where the two are one table
        self._tables = Tables(checkpoint, EMBEDDING, head, self.config.width)
        dense = self._matrices(checkpoint, "fp32" if level == "fp32" else "bf16")
        self._prefill = Phase(dense, rms_norm, attend_chunk)
        self._pack(checkpoint)
        query_scale = torch.full((self.config.heads, 1), self.config.head_width**-0.5)
        self._head_scales = torch.cat([query_scale, torch.ones(self.config.kv_heads, 1)])

    def _pack(self, checkpoint: Checkpoint) -> None:
        """Make ready what decode needs."""
        # Measured: from 8 rows on bfloat16 is faster than the packed products, at 128 twice as fast.
        dense = self._prefill.layers
        layers = dense if self.level in ("fp32", "bf16") else self._matrices(checkpoint, self.level)
        self._decode = Phase(layers, rms_norm_rows, attend_rows)
        self._head = Head(self._tables, self.level)

    @property
    def decode_bytes(self) -> int:
        """Weight bytes that one decode step reads."""
        return self._decode.size_bytes + self._head.size_bytes

    @property
    def prefill_bytes(self) -> int:
        """Weight bytes held for the prefill on top of those for decode."""
        shared = self._prefill.layers is self._decode.layers
        return 0 if shared else self._prefill.size_bytes

    @property
    def pass_rows(self) -> int:
        """The packed products keep rows apart, the dense ones do not."""
        return PACKED_ROWS if self.level in ("int8", "int4") else 1

    def new_cache(self) -> KvCache:
        c = self.config
        dtype = torch.float32
        return KvCache(c.layers, c.kv_heads, c.head_width, self.context_tokens, dtype)

    def prefill(self, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        """Run one chunk behind what the cache holds; all of its rows in one pass.

        Returns the last row's hidden state [1, D] for `logits`.
        """
        hidden = self._forward(self._prefill, token_ids, cache)
        return hidden[-1:]

    def decode(self, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        """Run tokens so that each row comes out as if it were alone. Returns [T, D]."""
        return self._forward(self._decode, token_ids, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, V] float32."""
        return self._head.logits(rms_norm_rows(hidden, self._final_norm, self.config.norm_eps))

    def use_threads(self, count: int) -> None:
        """torch's own threads are set for the whole process by who loads the model."""

    def close(self) -> None:
        """Nothing is held that the interpreter does not free by itself."""

    def _forward(self, phase: Phase, token_ids: Sequence[int], cache: KvCache) -> Tensor:
        c = self.config
        start, end = cache.length, cache.length + len(token_ids)
        cache.reserve(end)
        h = self._tables.embed(token_ids)  # [T, D] float32
        # [T, (H + K) E / 2]: the same rotation for every head, queries scaled for their scores
        rotations = (self._rotations[start:end] * self._head_scales).flatten(1)
        split = c.heads * c.head_width
        for matrices, (attention_norm, ffn_norm), slots, keys, values in zip(
            phase.layers, self._norms, *cache.views(start, end), strict=True
        ):
            x = phase.norm(h, attention_norm, c.norm_eps)
            qkv = matrices.qkv(x).float()  # [T, (H + 2 K) E]
            rotate(qkv, rotations)
            slots.copy_(qkv[:, split:].view(-1, 2, c.kv_heads, c.head_width))
            q = qkv[:, :split].view(-1, c.heads, c.head_width)
            h += matrices.out(phase.attend(q, keys, values, start))
            x = phase.norm(h, ffn_norm, c.norm_eps)
            h += matrices.down(swiglu(matrices.gate_up(x)))
        cache.claim(token_ids)
        return h

    def _rope_table(self, checkpoint: Checkpoint) -> Tensor:
        c = self.config
        factors = None
        if ROPE_FACTORS in checkpoint:
            factors = vector(checkpoint, ROPE_FACTORS, c.head_width // 2)
        return rope_table(rope_frequencies(c.head_width, c.rope_base, factors), self.context_tokens)

    def _matrices(self, checkpoint: Checkpoint, level: str) -> list[Matrices]:
        pack, shapes = KERNELS[level], self.config.shapes
        return [
            Matrices(
                **{
                    name: pack(Rows(checkpoint, [part.format(n=n) for part in parts], shapes[name]))
                    for name, parts in MATRICES.items()
                }
            )
            for n in range(self.config.layers)
        ]
