"""Sizes and choices of one model with latent attention, from its config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.layers.experts import Routing
from engine.layers.indexer import IndexerSizes
from engine.layers.latent_attention import LatentSizes
from engine.layers.yarn import Waves, waves
from engine.weights.checkpoint import Checkpoint
from engine.weights.fields import Fields, read_rope


@dataclass(frozen=True, slots=True)
class LatentConfig:
    layers: int
    width: int
    vocabulary: int
    attention: LatentSizes
    # of the queries' latent; None: queries come from the hidden state directly
    query_rank: int | None
    ffn_width: int
    expert_width: int
    shared_experts: int
    routing: Routing
    # for each layer whether it has experts
    sparse: tuple[bool, ...]
    norm_eps: float
    waves: Waves
    context_tokens: int
    indexer: IndexerSizes | None
    # layers with an indexer of their own; those between use the selection of the one below
    index_layers: tuple[int, ...]

    @property
    def score_scale(self) -> float:
        return self.attention.query**-0.5 * self.waves.score_scale


def read_config(
    checkpoint: Checkpoint,
    *,
    scoring: Literal["sigmoid", "softmax"],
    index_neighbours: bool | None = None,
    dense_layers: int = 0,
) -> LatentConfig:
    """`index_neighbours`: how the indexer's rotary pairs lie; None for models without one.
    `dense_layers`: how many layers have no experts where the config does not say.

    Raises ModelFileError when a value is missing or cannot be.
    """
    fields = Fields.of(checkpoint)
    layers = fields.count("num_hidden_layers")
    sizes = LatentSizes(
        heads=fields.count("num_attention_heads"),
        rank=fields.count("kv_lora_rank"),
        plain=fields.count("qk_nope_head_dim"),
        rotary=fields.count("qk_rope_head_dim"),
        value=fields.count("v_head_dim"),
    )
    context_tokens = fields.count("max_position_embeddings")
    indexer = _indexer(fields, index_neighbours)
    config = LatentConfig(
        layers=layers,
        width=fields.count("hidden_size"),
        vocabulary=fields.count("vocab_size"),
        attention=sizes,
        query_rank=fields.count("q_lora_rank") if fields.has("q_lora_rank") else None,
        ffn_width=fields.count("intermediate_size"),
        expert_width=fields.count("moe_intermediate_size"),
        shared_experts=fields.count("n_shared_experts") if _some(fields, "n_shared_experts") else 0,
        routing=_routing(fields, scoring),
        sparse=_sparse(fields, layers, dense_layers),
        norm_eps=fields.number("rms_norm_eps"),
        waves=waves(read_rope(fields), sizes.rotary, context_tokens),
        context_tokens=context_tokens,
        indexer=indexer,
        index_layers=_index_layers(fields, layers) if indexer else (),
    )
    if sizes.rotary % 2 or (indexer and (indexer.width < sizes.rotary or not config.query_rank)):
        raise fields.wrong("qk_rope_head_dim")
    return config


def _some(fields: Fields, key: str) -> bool:
    """Whether a count is given and not 0."""
    return bool(fields.values.get(key))


def _routing(fields: Fields, scoring: Literal["sigmoid", "softmax"]) -> Routing:
    grouped = scoring == "sigmoid" or fields.text("topk_method", "greedy") != "greedy"
    routing = Routing(
        experts=fields.count("n_routed_experts"),
        chosen=fields.count("num_experts_per_tok"),
        groups=fields.count("n_group", 1) if grouped else 1,
        chosen_groups=fields.count("topk_group", 1) if grouped else 1,
        scoring=scoring,
        normalised=fields.flag("norm_topk_prob", True) and scoring == "sigmoid",
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    per_group = routing.experts // routing.groups
    if routing.experts % routing.groups or routing.chosen_groups > routing.groups:
        raise fields.wrong("n_group")
    if routing.chosen > per_group * routing.chosen_groups or (routing.groups > 1 and per_group < 2):
        raise fields.wrong("num_experts_per_tok")
    return routing


def _sparse(fields: Fields, layers: int, dense_layers: int) -> tuple[bool, ...]:
    kinds = fields.texts("mlp_layer_types")
    if kinds:
        if len(kinds) != layers:
            raise fields.wrong("mlp_layer_types")
        return tuple(kind == "sparse" for kind in kinds)
    if _some(fields, "first_k_dense_replace"):
        dense_layers = fields.count("first_k_dense_replace")
    elif fields.has("first_k_dense_replace"):
        dense_layers = 0
    return tuple(layer >= dense_layers for layer in range(layers))


def _indexer(fields: Fields, neighbours: bool | None) -> IndexerSizes | None:
    if neighbours is None:
        return None
    return IndexerSizes(
        heads=fields.count("index_n_heads"),
        width=fields.count("index_head_dim"),
        chosen=fields.count("index_topk"),
        neighbours=fields.flag("indexer_rope_interleave", neighbours),
    )


def _index_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    """`indexer_types`, or the patterns that stand for it ("IndexShare" of GLM-5.2)."""
    kinds = fields.texts("indexer_types")
    pattern = fields.values.get("index_topk_pattern")
    if not kinds and isinstance(pattern, str):
        kinds = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if not kinds:
        every = fields.count("index_topk_freq", 1)
        offset = fields.count("index_skip_topk_offset", 2)
        shared = [max(layer - offset + 1, 0) % every != 0 for layer in range(layers)]
        kinds = ["shared" if here else "full" for here in shared]
    if len(kinds) != layers or kinds[0] != "full" or set(kinds) - {"full", "shared"}:
        raise fields.wrong("indexer_types")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "full")
