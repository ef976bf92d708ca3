"""Tiny random models of the DeepSeek and GLM families: transformers' own, saved as checkpoints.

Everything that a config would set to a constant is randomised, and matrices are scaled so that
logits spread by about 1; otherwise whole faults hide. Enough index heads keep relu's zeros from
making ties in the choice of positions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SEED = 20261201
PROMPT_TOKENS = 40
VOCABULARY = 96

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
_V3_ROPE = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
_INDEXER = {"index_topk": 8, "index_n_heads": 16, "index_head_dim": 32}
_SPARSE_FROM_1 = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
_GLM_ROPE = {"rope_type": "default", "rope_theta": 1e6}

# name -> (transformers' classes, what differs from _BASE)
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": (
        "DeepseekV2",
        {
            "q_lora_rank": None,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 2,
            "topk_method": "greedy",
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.0,
            "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {"n_group": 4, "topk_group": 2, "rope_parameters": _V3_ROPE},
    ),
    "deepseek_v32": (
        "DeepseekV32",
        {"n_group": 4, "topk_group": 2, "rope_parameters": _V3_ROPE} | _INDEXER | _SPARSE_FROM_1,
    ),
    "glm_moe_dsa": (
        "GlmMoeDsa",
        {"rms_norm_eps": 1e-5, "rope_parameters": _GLM_ROPE} | _INDEXER | _SPARSE_FROM_1,
    ),
    "glm_moe_dsa_shared": (
        "GlmMoeDsa",
        {
            "num_hidden_layers": 8,
            "rms_norm_eps": 1e-5,
            "rope_parameters": _GLM_ROPE,
            "index_topk_freq": 4,
            "index_skip_topk_offset": 3,
            "mlp_layer_types": ["dense"] + ["sparse"] * 7,
        }
        | _INDEXER,
    ),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        {"routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5, "rope_parameters": _GLM_ROPE}
        | _SPARSE_FROM_1,
    ),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A model of transformers, and what it says about some tokens."""

    model: Any
    token_ids: list[int]
    logits: Tensor  # [T, V]


def build(name: str, **changes: Any) -> Any:
    """A seeded model of transformers, float32, in evaluation mode."""
    import transformers

    prefix, different = CONFIGS[name]
    config = getattr(transformers, f"{prefix}Config")(**(_BASE | different | changes))
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).eval()
    randomise(model)
    return model


def randomise(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(SEED)
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in tensors.items():
        if "inv_freq" in name:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith(("e_score_correction_bias", "bias")):
            made = 0.1 * noise
        elif tensor.dim() == 1:
            made = 1 + 0.2 * noise
        elif "embed_tokens" in name:
            made = noise
        else:
            made = noise * tensor.shape[-1] ** -0.5
        with torch.no_grad():
            tensor.copy_(made)


def token_ids(count: int = PROMPT_TOKENS) -> list[int]:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(2, VOCABULARY, (count,), generator=generator).tolist()


@torch.inference_mode()
def reference(name: str, folder: Path, **changes: Any) -> Reference:
    """Build a model, save it to `folder`, and ask it."""
    model = build(name, **changes)
    model.save_pretrained(folder)
    ids = token_ids()
    return Reference(model, ids, model(torch.tensor([ids])).logits[0])


@torch.inference_mode()
def add_draft_layer(model: Any, folder: Path) -> Any:
    """transformers' own drafting layer of `model`, saved behind the model's layers in `folder`."""
    from safetensors.torch import load_file, save_file
    from transformers.modeling_layers import MtpModel

    model.config.num_mtp_layers = 1
    if getattr(model.config, "layer_types", None):
        # the sparse kind has no mask there yet; the layer chooses positions all the same
        model.config.mtp_layer_types = ["full_attention"]
    if getattr(model.config, "mlp_layer_types", None):
        model.config.mtp_mlp_layer_types = ["sparse"]
    drafting = MtpModel(model, 1).eval()
    randomise(drafting.layers)
    weights = load_file(folder / "model.safetensors")
    prefix = f"model.layers.{model.config.num_hidden_layers}."
    for name, tensor in drafting.layers[0].state_dict().items():
        name = name.replace("mtp_block.", "").replace("post_norm.", "shared_head.norm.")
        if name == "mlp.experts.gate_up_proj":
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                weights[f"{prefix}mlp.experts.{expert}.gate_proj.weight"] = gate.clone()
                weights[f"{prefix}mlp.experts.{expert}.up_proj.weight"] = up.clone()
        elif name == "mlp.experts.down_proj":
            for expert, down in enumerate(tensor):
                weights[f"{prefix}mlp.experts.{expert}.down_proj.weight"] = down.clone()
        else:
            weights[prefix + name] = tensor.clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return drafting


def to_fp8(folder: Path) -> None:
    """Store the projections of a saved model as block FP8, as DeepSeek's and GLM's repositories do."""
    from safetensors.torch import load_file, save_file

    from engine.weights.fp8 import quantise_blocks

    stored: dict[str, Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        wide = name.endswith(("eh_proj.weight", "weights_proj.weight", "lm_head.weight"))
        if name.endswith(("_proj.weight", "_mqa.weight", "wq_b.weight", "wk.weight")) and not wide:
            made = quantise_blocks(tensor)
            stored[name], stored[name + "_scale_inv"] = made.codes, made.scales
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    (folder / "config.json").write_text(json.dumps(config))
