"""One decode step as a fixed list of kernel launches over fixed buffers.

    survey, decide          logits of the last pass -> the token at NEXT and its embedding
    per layer: norm_product (q, k, v), attend, product_add (out), norm_swiglu, product_add (down)
    norm_product            -> logits for the next step

All that changes from step to step or from request to request (position, seed, temperature, cuts)
is device data, so the list can be captured once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from engine.kernels.cuda.attention import attend
from engine.kernels.cuda.products import norm_product, norm_swiglu, product_add
from engine.runtime.choice import Choice, launch_options
from engine.runtime.device_cache import DeviceCache
from engine.runtime.llama_weights import LayerWeights, LlamaWeights

# numbers of a key tile (positions * head width), and programs per key head at most
ATTEND_CELLS, ATTEND_SPLITS, ATTEND_WARPS = 4096, 32, 4


# Weights that a thread holds while it waits: enough in flight, and no register spilled.
WEIGHTS_PER_THREAD = 64


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of a matrix per program, and warps that share them."""

    rows: int
    warps: int


def tile_for(columns: int, matrices: int = 1) -> Tile:
    """For whole rows of `columns` weights of so many matrices at once."""
    block = triton.next_power_of_2(columns)
    warps = 4 if block <= 2048 else 8
    rows = WEIGHTS_PER_THREAD * 32 * warps // (block * matrices)
    return Tile(max(1, min(rows, 8)), warps)


class DecodeStep:
    """Buffers of one text and the launches over them."""

    def __init__(self, weights: LlamaWeights, cache: DeviceCache, *, pdl: bool) -> None:
        """`pdl`: programmatic dependent launch, which needs compute capability 9.0."""
        self.weights = weights
        self._cache = cache
        c, device = weights.config, weights.device

        def floats(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        self.choice = Choice(weights.embedding, weights.context_tokens, pdl=pdl)
        self.hidden = floats(c.width)
        self.logits = floats(len(weights.head))
        self._qkv = floats((c.heads + 2 * c.kv_heads) * c.head_width)
        self._attended = floats(c.heads * c.head_width)
        self._activated = floats(c.ffn_width)
        self._parts = (
            floats(c.heads, ATTEND_SPLITS, c.head_width),
            floats(c.heads, ATTEND_SPLITS),
            floats(c.heads, ATTEND_SPLITS),
            torch.zeros(c.kv_heads, dtype=torch.int32, device=device),
        )
        self._options = launch_options(pdl=pdl)

    @property
    def traces(self) -> list[Tensor]:
        """Buffers that hold something of the text between steps."""
        return [self.hidden, self.logits, self._qkv, self._attended, self._activated,
                self._parts[0], self.choice.scores, self.choice.seen]  # fmt: skip

    def enqueue_head(self) -> None:
        """Logits from `hidden`."""
        w = self.weights
        self._norm_product(w.final_norm, w.head, self.logits, hold=False)

    def enqueue(self) -> None:
        """Choose a token, run it through the layers, leave the next logits."""
        self.choice.enqueue(self.logits, self.hidden)
        self._enqueue_layers()
        self.enqueue_head()

    def enqueue_given(self, token_id: int, position: int) -> None:
        """The same for a token that others chose, up to `hidden`; equal to the bit."""
        self.choice.place(position)
        self.hidden.copy_(self.weights.embedding[token_id])
        self._enqueue_layers()

    def _enqueue_layers(self) -> None:
        for n, layer in enumerate(self.weights.layers):
            self._enqueue_layer(layer, *self._cache.layer(n))

    def _enqueue_layer(self, layer: LayerWeights, keys: Tensor, values: Tensor) -> None:
        c = self.weights.config
        self._norm_product(layer.attention_norm, layer.qkv, self._qkv, hold=True)
        attend[(c.kv_heads, ATTEND_SPLITS)](
            self._qkv,
            keys,
            values,
            self.weights.rotations,
            self.choice.ints,
            *self._parts,
            self._attended,
            S=self._cache.context_tokens,
            H=c.heads,
            K=c.kv_heads,
            E=c.head_width,
            GROUP=max(16, triton.next_power_of_2(c.heads // c.kv_heads)),
            TILE=ATTEND_CELLS // c.head_width,
            SPLITS=ATTEND_SPLITS,
            num_warps=ATTEND_WARPS,
            **self._options,
        )
        self._product_add(self._attended, layer.out)
        tile = tile_for(c.width, 2)
        norm_swiglu[(triton.cdiv(c.ffn_width, tile.rows),)](
            self.hidden,
            layer.ffn_norm,
            layer.gate_up,
            self._activated,
            c.norm_eps,
            N=c.ffn_width,
            K=c.width,
            ROWS=tile.rows,
            BLOCK=triton.next_power_of_2(c.width),
            num_warps=tile.warps,
            **self._options,
        )
        self._product_add(self._activated, layer.down)

    def _norm_product(self, gain: Tensor, weight: Tensor, out: Tensor, *, hold: bool) -> None:
        rows, columns = weight.shape
        tile = tile_for(columns)
        norm_product[(triton.cdiv(rows, tile.rows),)](
            self.hidden,
            gain,
            weight,
            out,
            self.weights.config.norm_eps,
            N=rows,
            K=columns,
            HOLD=hold,
            ROWS=tile.rows,
            BLOCK=triton.next_power_of_2(columns),
            num_warps=tile.warps,
            **self._options,
        )

    def _product_add(self, vector: Tensor, weight: Tensor) -> None:
        rows, columns = weight.shape
        tile = tile_for(columns)
        product_add[(triton.cdiv(rows, tile.rows),)](
            vector,
            weight,
            self.hidden,
            N=rows,
            K=columns,
            ROWS=tile.rows,
            BLOCK=triton.next_power_of_2(columns),
            num_warps=tile.warps,
            **self._options,
        )
