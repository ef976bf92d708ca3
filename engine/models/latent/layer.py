"""One decoder layer of a model with latent attention, and where its weights come from.

Pre-norm: h += Attention(RMS(h)); h += Mlp(RMS(h)), the latter a single block or experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels import KERNELS, WEIGHT_KERNELS, Product
from engine.layers.experts import Experts, Mlp
from engine.layers.indexer import Indexer, Selection
from engine.layers.latent_attention import LatentAttention, Place
from engine.layers.norm import short_rms_norm
from engine.models.latent.config import LatentConfig
from engine.weights.checkpoint import Checkpoint, vector
from engine.weights.rows import Rows


@dataclass(frozen=True, slots=True)
class LatentLayer:
    attention_norm: Tensor
    attention: LatentAttention
    mlp_norm: Tensor
    mlp: Mlp | Experts
    eps: float

    @property
    def size_bytes(self) -> int:
        """Weight bytes that one token reads."""
        return self.attention.size_bytes + self.mlp.size_bytes

    def __call__(
        self, h: Tensor, place: Place, selection: Selection | None
    ) -> tuple[Tensor, Selection | None]:
        """h [T, D] float32, written to and returned, with what the rows looked at."""
        x = short_rms_norm(h, self.attention_norm, self.eps)
        attended, selection = self.attention(x, place, selection)
        h += attended
        h += self.mlp(short_rms_norm(h, self.mlp_norm, self.eps))
        return h, selection


@dataclass(frozen=True, slots=True)
class LayerReader:
    """Reads layers of one checkpoint at one level. Everything here raises ModelFileError."""

    checkpoint: Checkpoint
    config: LatentConfig
    level: str
    # of the norms inside attention, where it is not the config's
    inner_eps: float | None = None

    def layer(self, number: int) -> LatentLayer:
        """`config.layers` is the number of the layer that drafts."""
        c, name = self.config, f"model.layers.{number}."
        sparse = number >= c.layers or c.sparse[number]
        return LatentLayer(
            attention_norm=self.vector(name + "input_layernorm.weight", c.width),
            attention=self._attention(name + "self_attn.", number),
            mlp_norm=self.vector(name + "post_attention_layernorm.weight", c.width),
            mlp=self._experts(name + "mlp.") if sparse else self._mlp(name + "mlp.", c.ffn_width),
            eps=c.norm_eps,
        )

    def vector(self, name: str, length: int) -> Tensor:
        return vector(self.checkpoint, name, length)

    def product(self, names: Sequence[str], shape: tuple[int, int]) -> Product:
        """Weights on top of each other as one matrix [N, K]."""
        whole = [f"{name}.weight" for name in names]
        return KERNELS[self.level](Rows(self.checkpoint, whole, shape))

    def matrix(self, name: str, shape: tuple[int, int]) -> Tensor:
        """Small ones that every level keeps in float32."""
        return Rows(self.checkpoint, [f"{name}.weight"], shape).float32()

    def _attention(self, name: str, number: int) -> LatentAttention:
        c, s = self.config, self.config.attention
        query_rank = c.query_rank
        query_width = s.heads * s.query
        has_indexer = c.indexer is not None and (number >= c.layers or number in c.index_layers)
        query_in = query_norm = None
        if query_rank:
            query_in = self.product([name + "q_a_proj"], (query_rank, c.width))
            query_norm = self.vector(name + "q_a_layernorm.weight", query_rank)
        query = name + ("q_b_proj" if query_rank else "q_proj")
        expand = Rows(
            self.checkpoint,
            [name + "kv_b_proj.weight"],
            (s.heads * (s.plain + s.value), s.rank),
        )
        return LatentAttention(
            sizes=s,
            scale=c.score_scale,
            eps=self.inner_eps or c.norm_eps,
            query_in=query_in,
            query_norm=query_norm,
            query=self.product([query], (query_width, query_rank or c.width)),
            latent=self.product([name + "kv_a_proj_with_mqa"], (s.cached, c.width)),
            latent_norm=self.vector(name + "kv_a_layernorm.weight", s.rank),
            # read as a whole for each token, in two forms that the packed products do not have
            expand=WEIGHT_KERNELS.get(self.level, WEIGHT_KERNELS["bf16"])(expand),
            out=self.product([name + "o_proj"], (c.width, s.heads * s.value)),
            indexer=self._indexer(name + "indexer.") if has_indexer else None,
        )

    def _indexer(self, name: str) -> Indexer:
        sizes, width = self.config.indexer, self.config.width
        assert sizes is not None, "asked for only where the config has one"
        return Indexer(
            sizes=sizes,
            queries=self.product(
                [name + "wq_b"], (sizes.heads * sizes.width, self.config.query_rank or width)
            ),
            keys=self.product([name + "wk"], (sizes.width, width)),
            key_norm=self.vector(name + "k_norm.weight", sizes.width),
            key_bias=self.vector(name + "k_norm.bias", sizes.width),
            head_weights=self.matrix(name + "weights_proj", (sizes.heads, width)),
        )

    def _mlp(self, name: str, ffn_width: int) -> Mlp:
        width = self.config.width
        return Mlp(
            self.product([name + "gate_proj", name + "up_proj"], (2 * ffn_width, width)),
            self.product([name + "down_proj"], (width, ffn_width)),
        )

    def _experts(self, name: str) -> Experts:
        c, routing = self.config, self.config.routing
        bias = torch.zeros(routing.experts)
        if routing.scoring == "sigmoid":
            bias = self.vector(name + "gate.e_score_correction_bias", routing.experts)
        shared = None
        if c.shared_experts:
            shared = self._mlp(name + "shared_experts.", c.shared_experts * c.expert_width)
        return Experts(
            routing=routing,
            router=self.matrix(name + "gate", (routing.experts, c.width)),
            bias=bias,
            experts=[
                self._mlp(f"{name}experts.{expert}.", c.expert_width)
                for expert in range(routing.experts)
            ],
            shared=shared,
        )
