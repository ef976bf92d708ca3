"""The usual fast way on one GPU, to stand beside: a plain torch step, compiled, one CUDA graph.

Written after the recipe of gpt-fast (static cache, `torch.compile` with CUDA graphs and
coordinate descent tuning, greedy choice inside the graph), over the same weight tensors. It is
no bar to be proud of passing: a better tended loop of this kind took 1,296 us a token on
Llama-3.2-1B's shapes, 1,372 on Qwen3-0.6B's and 1,017 on SmolLM2-135M's on an H200, where this
one took about 1,900, 3,800 and 1,600 (much of it the host's work for every token).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.runtime.llama_weights import LayerWeights, LlamaWeights


class PlainStep(nn.Module):
    """token [1], position [1] -> the next token [1], all on the device."""

    def __init__(self, weights: LlamaWeights, cache_tokens: int) -> None:
        super().__init__()
        self._w = weights
        c = weights.config
        self._caches = torch.zeros(
            c.layers, 2, c.kv_heads, cache_tokens, c.head_width, dtype=torch.bfloat16, device="cuda"
        )
        self._places = torch.arange(cache_tokens, device="cuda")

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        w, c = self._w, self._w.config
        h = w.embedding[token]  # [1, D]
        mask = (self._places <= position)[None, None]  # [1, 1, S]
        turn = w.rotations[position]  # [1, E / 2, 2]
        for n, layer in enumerate(w.layers):
            h = h + self._attention(layer, n, h, position, turn, mask)
            x = F.rms_norm(h, (c.width,), layer.ffn_norm.to(h.dtype), c.norm_eps)
            gate, up = F.linear(x, layer.gate_up).chunk(2, dim=-1)
            h = h + F.linear(F.silu(gate) * up, layer.down)
        h = F.rms_norm(h, (c.width,), w.final_norm.to(h.dtype), c.norm_eps)
        return F.linear(h, w.head).argmax(-1)

    def _attention(
        self, layer: LayerWeights, n: int, h: Tensor, position: Tensor, turn: Tensor, mask: Tensor
    ) -> Tensor:
        c = self._w.config
        x = F.rms_norm(h, (c.width,), layer.attention_norm.to(h.dtype), c.norm_eps)
        rows = F.linear(x, layer.qkv).view(-1, c.head_width)  # [H + 2 K, E]
        pairs = rows[: c.heads + c.kv_heads].float().unflatten(-1, (-1, 2))
        even, odd = pairs[..., 0], pairs[..., 1]
        cosine, sine = turn[..., 0], turn[..., 1]
        turned = torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1)
        turned = turned.flatten(-2).to(h.dtype)
        self._caches[n, 0, :, position] = turned[c.heads :].unsqueeze(1)
        self._caches[n, 1, :, position] = rows[c.heads + c.kv_heads :].unsqueeze(1)
        out = F.scaled_dot_product_attention(
            turned[None, : c.heads].transpose(0, 1).unsqueeze(0),
            self._caches[n, 0].unsqueeze(0),
            self._caches[n, 1].unsqueeze(0),
            attn_mask=mask,
            enable_gqa=True,
        )
        return F.linear(out.view(1, -1), layer.out)


Step = Callable[[Tensor, Tensor], Tensor]


def compiled(weights: LlamaWeights, cache_tokens: int) -> tuple[Step, float]:
    """The step and the seconds that compiling took."""
    inductor: Any = __import__("torch._inductor.config", fromlist=["config"])
    inductor.coordinate_descent_tuning = True
    start = time.perf_counter()
    plain = PlainStep(weights, cache_tokens)
    step = cast(Step, torch.compile(plain, mode="reduce-overhead", fullgraph=True))
    token, position = (torch.zeros(1, dtype=torch.int64, device="cuda") for _ in range(2))
    for _ in range(4):
        token = step(token, position).clone()
    torch.cuda.synchronize()
    return step, time.perf_counter() - start


def run(step: Step, start: int, tokens: int) -> list[float]:
    """Seconds at which the host saw each token; it looks at every one, as gpt-fast does."""
    token = torch.zeros(1, dtype=torch.int64, device="cuda")
    position = torch.full((1,), start, dtype=torch.int64, device="cuda")
    seen: list[float] = []
    for _ in range(tokens):
        torch.compiler.cudagraph_mark_step_begin()
        token = step(token, position).clone()
        position += 1
        token.item()
        seen.append(time.perf_counter())
    return seen
