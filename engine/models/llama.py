"""Llama and its relatives (SmolLM, Mistral 7B v0.1, ...) from GGUF files of architecture `llama`.

Pre-norm decoder (Touvron et al. 2023, arXiv:2302.13971): h += Attention(RMS(h)); h +=
Down(SwiGLU(RMS(h))). Such files store the rows of queries and keys for neighbouring rotary pairs,
which is the order `engine/layers/rope.py` works in, so nothing is permuted.
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
from engine.weights.gguf import GgufFile
from engine.weights.rows import Rows

# our name -> the file's tensors of layer n, stacked in this order
MATRICES = {
    "qkv": ("blk.{n}.attn_q.weight", "blk.{n}.attn_k.weight", "blk.{n}.attn_v.weight"),
    "out": ("blk.{n}.attn_output.weight",),
    "gate_up": ("blk.{n}.ffn_gate.weight", "blk.{n}.ffn_up.weight"),
    "down": ("blk.{n}.ffn_down.weight",),
}
NORMS = ("blk.{n}.attn_norm.weight", "blk.{n}.ffn_norm.weight")
EMBEDDING, HEAD, FINAL_NORM = "token_embd.weight", "output.weight", "output_norm.weight"
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
    def read(cls, file: GgufFile) -> LlamaConfig:
        """Raises ModelFileError when a value is missing or cannot be."""
        width, heads = _number(file, "embedding_length"), _number(file, "attention.head_count")
        config = cls(
            layers=int(_number(file, "block_count")),
            width=int(width),
            heads=int(heads),
            kv_heads=int(_number(file, "attention.head_count_kv", heads)),
            head_width=int(_number(file, "rope.dimension_count", width // heads)),
            ffn_width=int(_number(file, "feed_forward_length")),
            norm_eps=_number(file, "attention.layer_norm_rms_epsilon"),
            rope_base=_number(file, "rope.freq_base", 10000.0),
            context_tokens=int(_number(file, "context_length")),
        )
        if config.heads % config.kv_heads or config.head_width % 2:
            raise ModelFileError(
                f"The model file's sizes contradict each other ({config}); download it again."
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

    def __init__(self, file: GgufFile, level: str, context_tokens: int | None = None) -> None:
        self.config = LlamaConfig.read(file)
        self.level = level
        self.context_tokens = min(
            context_tokens or self.config.context_tokens, self.config.context_tokens
        )
        self._norms = [
            [vector(file, name.format(n=n), self.config.width) for name in NORMS]
            for n in range(self.config.layers)
        ]
        self._final_norm = vector(file, FINAL_NORM, self.config.width)
        self._rotations = self._rope_table(file)
        head = HEAD if HEAD in file.tensors else EMBEDDING  # absent where the two are one table
        self._tables = Tables(file, EMBEDDING, head, self.config.width)
        dense = self._matrices(file, "fp32" if level == "fp32" else "bf16")
        self._prefill = Phase(dense, rms_norm, attend_chunk)
        self._pack(file)
        query_scale = torch.full((self.config.heads, 1), self.config.head_width**-0.5)
        self._head_scales = torch.cat([query_scale, torch.ones(self.config.kv_heads, 1)])

    def _pack(self, file: GgufFile) -> None:
        """Make ready what decode needs."""
        # Measured: from 8 rows on bfloat16 is faster than the packed products, at 128 twice as fast.
        dense = self._prefill.layers
        layers = dense if self.level in ("fp32", "bf16") else self._matrices(file, self.level)
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

    def _rope_table(self, file: GgufFile) -> Tensor:
        c = self.config
        factors = None
        if ROPE_FACTORS in file.tensors:
            factors = vector(file, ROPE_FACTORS, c.head_width // 2)
        return rope_table(rope_frequencies(c.head_width, c.rope_base, factors), self.context_tokens)

    def _matrices(self, file: GgufFile, level: str) -> list[Matrices]:
        pack, shapes = KERNELS[level], self.config.shapes
        return [
            Matrices(
                **{
                    name: pack(Rows(file, [part.format(n=n) for part in parts], shapes[name]))
                    for name, parts in MATRICES.items()
                }
            )
            for n in range(self.config.layers)
        ]


def _number(file: GgufFile, key: str, default: float | None = None) -> float:
    """A positive number of the file's metadata."""
    value = file.metadata.get(f"llama.{key}", default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 2**31:
        raise ModelFileError(
            f"The model file says llama.{key} = {value!r}, which cannot be; download it again."
        )
    return value


def vector(file: GgufFile, name: str, length: int) -> Tensor:
    vector = torch.from_numpy(file.dequantised(name))
    if vector.shape != (length,):
        raise ModelFileError(
            f"{name} in the model file has the shape {tuple(vector.shape)} instead of ({length},); "
            "download or convert it again."
        )
    return vector
