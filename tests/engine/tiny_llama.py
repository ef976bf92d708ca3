"""A llama of random weights: written as a GGUF file, and computed naively in float64.

The naive side is independent of the engine on purpose: half-split rotary pairs on the weights as
Hugging Face stores them, one full attention matrix, no cache. The file gets the row order that
GGUF converters write, so loading is under test too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class TinyLlama:
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 16
    ffn_width: int = 96
    vocabulary: int = 128
    rope_base: float = 10000.0
    tied: bool = True
    rope_factors: NDArray[np.float32] | None = None
    context_tokens: int = 8192
    weights: dict[str, NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random = np.random.default_rng(7)

        def matrix(rows: int, columns: int) -> NDArray[np.float32]:
            return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

        def norm() -> NDArray[np.float32]:
            return random.normal(1, 0.2, self.width).astype(np.float32)

        kv_width = self.kv_heads * self.head_width
        self.weights = {"token_embd": matrix(self.vocabulary, self.width), "output_norm": norm()}
        if not self.tied:
            self.weights["output"] = matrix(self.vocabulary, self.width)
        for n in range(self.layers):
            self.weights |= {
                f"blk.{n}.attn_norm": norm(),
                f"blk.{n}.attn_q": matrix(self.width, self.width),
                f"blk.{n}.attn_k": matrix(kv_width, self.width),
                f"blk.{n}.attn_v": matrix(kv_width, self.width),
                f"blk.{n}.attn_output": matrix(self.width, self.width),
                f"blk.{n}.ffn_norm": norm(),
                f"blk.{n}.ffn_gate": matrix(self.ffn_width, self.width),
                f"blk.{n}.ffn_up": matrix(self.ffn_width, self.width),
                f"blk.{n}.ffn_down": matrix(self.width, self.ffn_width),
            }

    @property
    def width(self) -> int:
        return self.heads * self.head_width

    def write(self, path: Path, architecture: str = "llama") -> Path:
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(self.layers)
        writer.add_context_length(self.context_tokens)
        writer.add_embedding_length(self.width)
        writer.add_feed_forward_length(self.ffn_width)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_rope_dimension_count(self.head_width)
        for name, weight in self.weights.items():
            if name.endswith(("attn_q", "attn_k")):
                weight = self._paired(weight)
            writer.add_tensor(f"{name}.weight", weight)
        if self.rope_factors is not None:
            writer.add_tensor("rope_freqs.weight", self.rope_factors)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _paired(self, weight: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows i and i + E / 2 of each head become neighbours."""
        halves = weight.reshape(-1, 2, self.head_width // 2, weight.shape[1])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))

    def logits(self, token_ids: list[int], last: int | None = None) -> Array:
        """[rows, V] of every position, or of the `last` positions only."""
        w = {name: weight.astype(np.float64) for name, weight in self.weights.items()}
        h = w["token_embd"][token_ids]
        for n in range(self.layers):
            rows = last if last is not None and n == self.layers - 1 else len(token_ids)
            h = self._block(
                h, {k[len(f"blk.{n}.") :]: v for k, v in w.items() if f"blk.{n}." in k}, rows
            )
        return _norm(h, w["output_norm"]) @ w["token_embd" if self.tied else "output"].T

    def _block(self, h: Array, w: dict[str, Array], rows: int) -> Array:
        x = _norm(h, w["attn_norm"])
        q = self._rotated(self._heads(x @ w["attn_q"].T))[:, -rows:]  # [H, rows, E]
        k = self._rotated(self._heads(x @ w["attn_k"].T))  # [K, T, E]
        v = self._heads(x @ w["attn_v"].T)
        share = self.heads // self.kv_heads
        k, v = k.repeat(share, axis=0), v.repeat(share, axis=0)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(self.head_width)  # [H, rows, T]
        seen = np.tri(len(h), dtype=bool)[-rows:]
        scores = np.where(seen, scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        out = (scores / scores.sum(-1, keepdims=True)) @ v
        h = h[-rows:] + out.swapaxes(0, 1).reshape(rows, -1) @ w["attn_output"].T
        x = _norm(h, w["ffn_norm"])
        gate = x @ w["ffn_gate"].T
        return h + (gate / (1 + np.exp(-gate)) * (x @ w["ffn_up"].T)) @ w["ffn_down"].T

    def _heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self.head_width).swapaxes(0, 1)

    def _rotated(self, x: Array) -> Array:
        """Angles in float32, as every implementation has them: at 4000 that is already visible."""
        half = self.head_width // 2
        exponents = np.arange(half, dtype=np.float32) / np.float32(half)
        frequencies = (1 / np.float32(self.rope_base) ** exponents).astype(np.float32)
        if self.rope_factors is not None:
            frequencies /= self.rope_factors
        angles = np.outer(np.arange(x.shape[1], dtype=np.float32), frequencies).astype(np.float64)
        first, second = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _norm(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight
