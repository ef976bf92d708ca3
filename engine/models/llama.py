"""Llama and its relatives (SmolLM, ...), and what the dense families share with it.

Pre-norm decoder (Touvron et al. 2023, arXiv:2302.13971): h += Attention(RMS(h)); h +=
Down(SwiGLU(RMS(h))). Families that differ little from it say how in their config
(`decoder_config.py`) and have a file each: `qwen2.py`, `qwen3.py`, `gemma3_text.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.cache import KvCache
from engine.kernels import KERNELS, Product
from engine.layers.attention import Attend, attend_chunk, attend_rows
from engine.layers.head import Head, Tables
from engine.layers.norm import Norm, head_norm, head_norm_rows, rms_norm, rms_norm_rows
from engine.layers.rope import llama3_factors, rope_frequencies, rope_table, rotate
from engine.layers.swiglu import geglu, swiglu
from engine.models.decoder_config import LAYER, DecoderConfig, Vectors, norm_weight, read_vectors
from engine.types import ModelFileError
from engine.weights.checkpoint import Checkpoint, vector
from engine.weights.fields import Rope
from engine.weights.rotary import Neighbours
from engine.weights.rows import Rows

# our name -> the weights of layer n, stacked in this order
MATRICES = {
    "qkv": tuple(f"{LAYER}.self_attn.{part}_proj.weight" for part in "qkv"),
    "out": (f"{LAYER}.self_attn.o_proj.weight",),
    "gate_up": (f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight"),
    "down": (f"{LAYER}.mlp.down_proj.weight",),
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FINAL_NORM = "model.norm.weight"
# worked out by GGUF converters
ROPE_FACTORS = "rope_freqs.weight"
# int8 and int4: 4 rows take 1.1 of the time of one, 8 rows 2.2
PACKED_ROWS = 4


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

    def feed_forward(self, x: Tensor, gate: Callable[[Tensor], Tensor]) -> Tensor:
        """x [T, D] float32 -> [T, D]."""
        return self.down(gate(self.gate_up(x)))


class Layer(Protocol):
    """One layer's products, `Matrices` or with another feed-forward block."""

    @property
    def qkv(self) -> Product: ...

    @property
    def out(self) -> Product: ...

    @property
    def size_bytes(self) -> int:
        """Bytes that one row reads."""
        ...

    def feed_forward(self, x: Tensor, gate: Callable[[Tensor], Tensor]) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Phase:
    """How the layers are computed: prefill shares a pass among rows, decode keeps rows apart."""

    layers: Sequence[Layer]
    norm: Norm
    head_norm: Norm
    attend: Attend

    @property
    def size_bytes(self) -> int:
        return sum(layer.size_bytes for layer in self.layers)


class Llama:
    """Weights of one checkpoint and the forward pass over them."""

    def __init__(
        self, checkpoint: Checkpoint, level: str, context_tokens: int | None = None
    ) -> None:
        self.config = self.read_config(checkpoint)
        checkpoint = Neighbours(checkpoint, self.config.head_width)
        self.level = level
        self.context_tokens = min(
            context_tokens or self.config.context_tokens, self.config.context_tokens
        )
        self._vectors = [
            read_vectors(checkpoint, self.config, n) for n in range(self.config.layers)
        ]
        self._final_norm = norm_weight(checkpoint, FINAL_NORM, self.config)
        self._turns = [self._rope_table(checkpoint, rope) for rope in self.config.ropes]
        self._tables = Tables(checkpoint, EMBEDDING, head_name(checkpoint), self.config.width)
        dense = self._matrices(checkpoint, "fp32" if level == "fp32" else "bf16")
        self._prefill = Phase(dense, rms_norm, head_norm, attend_chunk)
        self._pack(checkpoint)
        query_scale = torch.full((self.config.heads, 1), self.config.query_scale)
        self._head_scales = torch.cat([query_scale, torch.ones(self.config.kv_heads, 1)])

    @staticmethod
    def read_config(checkpoint: Checkpoint) -> DecoderConfig:
        """Raises ModelFileError. What a family overrides."""
        return DecoderConfig.read(checkpoint)

    def _pack(self, checkpoint: Checkpoint) -> None:
        """Make ready what decode needs."""
        # Measured: from 8 rows on bfloat16 is faster than the packed products, at 128 twice as fast.
        dense = self._prefill.layers
        layers = dense if self.level in ("fp32", "bf16") else self._matrices(checkpoint, self.level)
        self._decode = Phase(layers, rms_norm_rows, head_norm_rows, attend_rows)
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
        if c.embedding_scale != 1:
            h *= c.embedding_scale
        # [T, (H + K) E / 2]: the same rotation for every head, queries scaled for their scores
        turns = [(table[start:end] * self._head_scales).flatten(1) for table in self._turns]
        gate = geglu if c.gelu else swiglu
        for n, (matrices, v, slots, keys, values) in enumerate(
            zip(phase.layers, self._vectors, *cache.views(start, end), strict=True)
        ):
            x = phase.norm(h, v.attention_norm, c.norm_eps)
            qkv = self._heads(phase, matrices.qkv(x).float(), v, turns[c.layer_ropes[n]])
            split = c.heads * c.head_width
            slots.copy_(qkv[:, split:].view(-1, 2, c.kv_heads, c.head_width))
            q = qkv[:, :split].view(-1, c.heads, c.head_width)
            out = matrices.out(phase.attend(q, keys, values, start, c.windows[n]))
            h += _normed(phase, out, v.attention_out_norm, c.norm_eps)
            x = phase.norm(h, v.ffn_norm, c.norm_eps)
            out = matrices.feed_forward(x, gate)
            h += _normed(phase, out, v.ffn_out_norm, c.norm_eps)
        cache.claim(token_ids)
        return h

    def _heads(self, phase: Phase, qkv: Tensor, v: Vectors, turns: Tensor) -> Tensor:
        """Queries, keys and values [T, (H + 2 K) E] ready for attention."""
        c = self.config
        if v.bias is not None:
            qkv += v.bias
        if v.head_norm is not None:
            normed = c.heads + c.kv_heads
            heads = qkv.view(len(qkv), -1, c.head_width)
            heads[:, :normed] = phase.head_norm(heads[:, :normed], v.head_norm, c.norm_eps)
        rotate(qkv, turns)
        return qkv

    def _rope_table(self, checkpoint: Checkpoint, rope: Rope) -> Tensor:
        return rope_table(frequencies(checkpoint, self.config, rope), self.context_tokens)

    def _matrices(self, checkpoint: Checkpoint, level: str) -> Sequence[Layer]:
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


def _normed(phase: Phase, out: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """A result on its way into the residual stream; some families norm it there."""
    return out if weight is None else phase.norm(out.float(), weight, eps)


def head_name(checkpoint: Checkpoint) -> str:
    """The table that scores tokens: the embedding where the two are one."""
    tied = checkpoint.config.get("tie_word_embeddings") is True
    return HEAD if HEAD in checkpoint and not tied else EMBEDDING


def frequencies(checkpoint: Checkpoint, config: DecoderConfig, rope: Rope) -> Tensor:
    """Radians per position of each pair, [E / 2]. Raises ModelFileError for an unknown kind."""
    plain = rope_frequencies(config.head_width, rope.base)
    if ROPE_FACTORS in checkpoint:
        return plain / vector(checkpoint, ROPE_FACTORS, config.head_width // 2)
    if rope.kind == "default":
        return plain
    factor = rope.fields.number("factor")
    if rope.kind == "linear":
        return plain / factor
    if rope.kind == "llama3":
        return plain / llama3_factors(
            plain,
            factor,
            rope.fields.number("low_freq_factor"),
            rope.fields.number("high_freq_factor"),
            rope.fields.number("original_max_position_embeddings"),
        )
    raise ModelFileError(
        f"The model in {checkpoint.path} stretches its positions by the rule {rope.kind[:40]!r}, "
        "and this engine knows linear and llama3 for it. Choose another model."
    )
