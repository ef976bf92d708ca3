"""GGUF's names of tensors and settings, in Hugging Face's terms.

A line here and a line in `engine.models.MODELS` make an architecture readable from GGUF.
"""

from __future__ import annotations

import re
from typing import Any

from engine.weights.gguf import GgufFile

# general.architecture -> model_type
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma3": "gemma3_text",
}

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
# Gemma norms the results of its layers too
_INNER_GEMMA = _INNER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_MOST_EXPERTS = 4096
_LAYER = re.compile(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)")

# "{architecture}.{key}" of the metadata -> key of config.json
_SETTINGS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}


def hf_names(file: GgufFile, architecture: str) -> dict[str, tuple[str, int | None]]:
    """Weight name -> tensor name and, of stacked experts, which one."""
    found: dict[str, tuple[str, int | None]] = {}
    inner = _INNER_GEMMA if architecture == "gemma3_text" else _INNER
    for name, info in file.tensors.items():
        layer = _LAYER.fullmatch(name)
        if layer is None:
            stem, _, kind = name.rpartition(".")
            found[f"{_OUTER[stem]}.{kind}" if stem in _OUTER else name] = (name, None)
            continue
        n, stem, kind = layer.groups()
        if stem in _EXPERTS and len(info.shape) == 3 and info.shape[0] <= _MOST_EXPERTS:
            for expert in range(info.shape[0]):
                weight = f"model.layers.{n}.mlp.experts.{expert}.{_EXPERTS[stem]}.{kind}"
                found[weight] = (name, expert)
        elif stem in inner:
            found[f"model.layers.{n}.{inner[stem]}.{kind}"] = (name, None)
        else:
            found[name] = (name, None)
    return found


def hf_config(file: GgufFile, architecture: str) -> dict[str, Any]:
    """Settings that the file states; those that its format leaves to the reader are added."""
    prefix = str(file.metadata.get("general.architecture", "none"))

    def stated(key: str) -> Any:
        return file.metadata.get(f"{prefix}.{key}")

    config: dict[str, Any] = {"model_type": architecture}
    config |= {ours: stated(key) for key, ours in _SETTINGS.items() if stated(key) is not None}
    if "head_dim" not in config:
        config["head_dim"] = stated("rope.dimension_count") or _share(config)
    scaling = stated("rope.scaling.type")
    if isinstance(scaling, str) and scaling != "none":
        config["rope_scaling"] = {
            "rope_type": scaling,
            "factor": stated("rope.scaling.factor"),
            "original_max_position_embeddings": stated("rope.scaling.original_context_length"),
        }
    if architecture == "gemma3_text":
        config |= _gemma3(config)
    if architecture == "qwen3_moe":
        config["norm_topk_prob"] = True
    return config


def _share(config: dict[str, Any]) -> int | None:
    """Width over heads: a head's width where nothing says it."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None


def _gemma3(config: dict[str, Any]) -> dict[str, Any]:
    """Not in the file: every sixth layer is global, the others have their own rotary base.

    Scores are scaled by the head's width in all sizes but 27B (62 layers), which takes the
    width over heads (gemma_pytorch's config).
    """
    scalar = _share(config) if config.get("num_hidden_layers") == 62 else config["head_dim"]
    return {
        "rope_local_base_freq": 10000.0,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": scalar,
    }
