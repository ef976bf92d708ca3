"""Qwen3 with experts in place of the feed-forward block (arXiv:2505.09388); none is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from engine.kernels import KERNELS, Product
from engine.layers.experts import Experts, Mlp, Routing
from engine.models.decoder_config import LAYER
from engine.models.llama import MATRICES, Layer
from engine.models.qwen3 import Qwen3
from engine.weights.checkpoint import Checkpoint
from engine.weights.fields import Fields
from engine.weights.rows import Rows


@dataclass(frozen=True, slots=True)
class SparseLayer:
    """A `Layer` whose feed-forward block is a choice of experts or, in some layers, a plain one."""

    qkv: Product  # [(H + 2 K) E, D]
    out: Product  # [D, H E]
    block: Experts | Mlp

    @property
    def size_bytes(self) -> int:
        return self.qkv.size_bytes + self.out.size_bytes + self.block.size_bytes

    def feed_forward(self, x: Tensor, gate: Callable[[Tensor], Tensor]) -> Tensor:
        # the blocks have their gate's function inside: SiLU, as every Qwen
        return self.block(x)


class Qwen3Moe(Qwen3):
    """Experts are held once, at the model's level: a copy for prefill would double the memory."""

    def _matrices(self, checkpoint: Checkpoint, level: str) -> Sequence[Layer]:
        pack, shapes = KERNELS[level], self.config.shapes
        blocks = self._blocks_of(checkpoint)
        layers: list[Layer] = []
        for n in range(self.config.layers):
            qkv, out = (
                pack(Rows(checkpoint, [part.format(n=n) for part in MATRICES[name]], shapes[name]))
                for name in ("qkv", "out")
            )
            layers.append(SparseLayer(qkv, out, blocks[n]))
        return layers

    def _blocks_of(self, checkpoint: Checkpoint) -> Sequence[Experts | Mlp]:
        if self._blocks is None:
            reader = _Blocks(checkpoint, self.level, self.config.width)
            self._blocks = [
                reader.block(n, self.config.ffn_width) for n in range(self.config.layers)
            ]
        return self._blocks

    _blocks: Sequence[Experts | Mlp] | None = None


class _Blocks:
    """Reads feed-forward blocks. Raises ModelFileError."""

    def __init__(self, checkpoint: Checkpoint, level: str, width: int) -> None:
        self._checkpoint = checkpoint
        self._level = level
        self._width = width
        self._fields = Fields.of(checkpoint)

    def block(self, n: int, ffn_width: int) -> Experts | Mlp:
        name = f"{LAYER.format(n=n)}.mlp"
        if not self._is_sparse(n):
            return self._mlp(name, ffn_width)
        routing, width = self._routing, self._fields.count("moe_intermediate_size")
        router = Rows(self._checkpoint, [f"{name}.gate.weight"], (routing.experts, self._width))
        return Experts(
            routing=routing,
            router=router.float32(),
            bias=torch.zeros(routing.experts),
            experts=[self._mlp(f"{name}.experts.{e}", width) for e in range(routing.experts)],
            shared=None,
        )

    @cached_property
    def _routing(self) -> Routing:
        fields = self._fields
        routing = Routing(
            experts=fields.count(
                "num_experts" if fields.has("num_experts") else "num_local_experts"
            ),
            chosen=fields.count("num_experts_per_tok"),
            groups=1,
            chosen_groups=1,
            scoring="softmax",
            normalised=fields.flag("norm_topk_prob"),
            scale=1.0,
        )
        if routing.chosen > routing.experts:
            raise fields.wrong("num_experts_per_tok")
        return routing

    def _is_sparse(self, n: int) -> bool:
        every = self._fields.count("decoder_sparse_step", 1)
        return (n + 1) % every == 0 and n not in self._fields.integers("mlp_only_layers")

    def _mlp(self, name: str, ffn_width: int) -> Mlp:
        pack, width = KERNELS[self._level], self._width
        gate_up = [f"{name}.gate_proj.weight", f"{name}.up_proj.weight"]
        return Mlp(
            pack(Rows(self._checkpoint, gate_up, (2 * ffn_width, width))),
            pack(Rows(self._checkpoint, [f"{name}.down_proj.weight"], (width, ffn_width))),
        )
