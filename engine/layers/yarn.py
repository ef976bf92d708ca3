"""YaRN: rotary positions stretched beyond the length a model was trained at.

Peng et al. 2023, arXiv:2309.00071, as transformers computes it (`_compute_yarn_parameters`): fast
waves stay, slow ones are slowed by `factor`, those between are blended. Beside it stand two
scales: one on cos and sin, and one on the scores' softmax, which only DeepSeek's models have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.layers.rope import rope_frequencies
from engine.weights.fields import Rope


@dataclass(frozen=True, slots=True)
class Waves:
    """How one model turns its rotary pairs."""

    # [E / 2] float32, radians per position
    frequencies: Tensor
    # on cos and sin
    amplitude: float
    # on attention scores, beside their width^-0.5
    score_scale: float

    def rotations(self, start: int, end: int) -> Tensor:
        """[end - start, E / 2] complex64 for these positions; angles in float32."""
        angles = torch.outer(torch.arange(start, end, dtype=torch.float32), self.frequencies)
        return torch.polar(torch.full_like(angles, self.amplitude), angles)


def waves(rope: Rope, width: int, context_tokens: int) -> Waves:
    """For heads of `width` rotary dimensions. Raises ModelFileError for an unknown kind of rope."""
    if rope.kind == "default":
        return Waves(rope_frequencies(width, rope.base), 1.0, 1.0)
    if rope.kind != "yarn":
        raise rope.fields.wrong("rope_type")
    fields = rope.fields
    trained_tokens = fields.number("original_max_position_embeddings", context_tokens)
    factor = fields.number("factor", context_tokens / trained_tokens)
    fast, slow = fields.number("beta_fast", 32.0), fields.number("beta_slow", 1.0)
    plain = rope_frequencies(width, rope.base)
    low = math.floor(_dimension(fast, width, rope.base, trained_tokens))
    high = math.ceil(_dimension(slow, width, rope.base, trained_tokens))
    stretched = _ramp(max(low, 0), min(high, width - 1), width // 2)
    frequencies = plain / factor * stretched + plain * (1 - stretched)
    all_dim = _optional(rope, "mscale_all_dim")
    score_scale = magnitude(factor, all_dim) ** 2 if all_dim else 1.0
    return Waves(frequencies, _amplitude(rope, factor), score_scale)


def magnitude(factor: float, mscale: float) -> float:
    """0.1 mscale ln(factor) + 1: how much attention sharpens with the stretch."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _amplitude(rope: Rope, factor: float) -> float:
    if rope.fields.has("attention_factor"):
        return rope.fields.number("attention_factor")
    mscale, all_dim = _optional(rope, "mscale"), _optional(rope, "mscale_all_dim")
    if mscale and all_dim:
        return magnitude(factor, mscale) / magnitude(factor, all_dim)
    return magnitude(factor, 1.0)


def _optional(rope: Rope, key: str) -> float | None:
    """None also for 0, which configs write for "not used"."""
    return rope.fields.number(key) if rope.fields.values.get(key) else None


def _dimension(rotations: float, width: int, base: float, trained_tokens: float) -> float:
    """The dimension whose wave makes so many rotations within the trained length."""
    return width * math.log(trained_tokens / (rotations * 2 * math.pi)) / (2 * math.log(base))


def _ramp(low: float, high: float, pairs: int) -> Tensor:
    """[pairs]: 0 up to `low`, 1 from `high` on, a line between."""
    if low == high:
        high += 0.001  # as transformers avoids the division by zero
    return ((torch.arange(pairs, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
