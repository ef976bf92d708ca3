"""Many rows of a llama in one pass, in plain torch: the prompt, on whatever device the weights are.

The residual stream is float32, everything else has the weights' type, sums are the library's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.layers.attention import causal_mask
from engine.layers.norm import rms_norm
from engine.layers.rope import rotate
from engine.layers.swiglu import swiglu
from engine.runtime.device_cache import DeviceCache
from engine.runtime.llama_weights import LayerWeights, LlamaWeights


def prefill(weights: LlamaWeights, token_ids: Tensor, cache: DeviceCache) -> Tensor:
    """Run token_ids [T] int64 behind what the cache holds; the caller claims them.

    Returns the last row's hidden state [D] float32.
    """
    c = weights.config
    start, end = cache.length, cache.length + len(token_ids)
    hidden = weights.embedding[token_ids].float()  # [T, D]
    turns = torch.view_as_complex(weights.rotations[start:end]).unsqueeze(1)  # [T, 1, E / 2]
    turns = turns.expand(-1, c.heads + c.kv_heads, -1).flatten(1)
    for layer, slots, keys, values in zip(weights.layers, *cache.views(start, end), strict=True):
        x = rms_norm(hidden, layer.attention_norm, c.norm_eps)
        qkv = F.linear(x.to(layer.qkv.dtype), layer.qkv).float()
        rotate(qkv, turns)
        rows = qkv.to(layer.qkv.dtype)
        split = c.heads * c.head_width
        slots.copy_(rows[:, split:].view(-1, 2, c.kv_heads, c.head_width))
        q = rows[:, :split].view(-1, c.heads, c.head_width)
        hidden += F.linear(_attend(q, keys, values, start), layer.out)
        hidden += _feed_forward(layer, hidden, c.norm_eps)
    return hidden[-1]


def _attend(q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """q [T, H, E], keys and values [K, start + T, E] -> [T, H E]."""
    mask = None if start == 0 else causal_mask(len(q), start).to(q.device)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        keys.unsqueeze(0),
        values.unsqueeze(0),
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1).flatten(1)


def _feed_forward(layer: LayerWeights, hidden: Tensor, eps: float) -> Tensor:
    x = rms_norm(hidden, layer.ffn_norm, eps).to(layer.gate_up.dtype)
    return F.linear(swiglu(F.linear(x, layer.gate_up)), layer.down)
