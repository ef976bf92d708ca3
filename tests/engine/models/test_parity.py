"""Every dense family against transformers, on random weights, in float32."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.models import MODELS
from engine.models.llama import Llama
from engine.models.qwen2 import Qwen2
from engine.weights.folder import FolderCheckpoint
from engine.weights.opening import open_checkpoint

TOLERANCE = 5e-5
TOKENS = 40
VOCABULARY = 128

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False}),
    "llama 3": ("LlamaConfig", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama, linear": ("LlamaConfig", {"rope_parameters": LINEAR}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2, windows": (
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "tie_word_embeddings": False}),
    "qwen3 moe": (
        "Qwen3MoeConfig",
        {
            "num_hidden_layers": 4,
            "head_dim": 32,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3 moe, weights as they are": (
        "Qwen3MoeConfig",
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 7,
            "head_dim": 16,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
        },
    ),
}


@torch.no_grad()
def randomised(model: Any, seed: int = 5) -> None:
    """Logits of about 1, and nothing that is constant by default: it would hide faults."""
    generator = torch.Generator().manual_seed(seed)
    gemma = model.config.model_type.startswith("gemma")
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 1:
            centre = 0.0 if gemma or name.endswith("bias") else 1.0
            weight.copy_(centre + 0.2 * noise)
        else:
            weight.copy_(noise * weight.shape[1] ** -0.5)


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=list(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Ours in float32, and transformers' logits of TOKENS random tokens."""
    transformers = importlib.import_module("transformers")  # slow to import, so only here
    name, changes = request.param
    config = getattr(transformers, name)(**(COMMON | changes))
    with torch.random.fork_rng():
        theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomised(theirs)
    path: Path = tmp_path_factory.mktemp("parity")
    theirs.eval().save_pretrained(path)
    token_ids = np.random.default_rng(1).integers(0, VOCABULARY, TOKENS).tolist()
    with torch.inference_mode():
        expected = theirs(torch.tensor([token_ids])).logits[0]
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, FolderCheckpoint)
    model: Callable[..., Any] = MODELS[checkpoint.architecture]
    return model(checkpoint, "fp32", None), token_ids, expected


@pytest.mark.parametrize("prefilled", [1, 17, TOKENS])
@torch.inference_mode()
def test_prefill_and_decode_equal_transformers(
    pair: tuple[Llama, list[int], torch.Tensor], prefilled: int
):
    model, token_ids, expected = pair
    cache = model.new_cache()
    rows = [model.logits(model.prefill(token_ids[:prefilled], cache))]
    rows += [model.logits(model.decode([token], cache)) for token in token_ids[prefilled:]]
    assert float(expected.std()) > 0.3
    assert (torch.cat(rows) - expected[prefilled - 1 :]).abs().max() < TOLERANCE


@torch.inference_mode()
def test_a_prompt_in_chunks_equals_the_prompt_in_one(
    pair: tuple[Llama, list[int], torch.Tensor],
):
    model, token_ids, expected = pair
    cache = model.new_cache()
    for start in range(0, TOKENS - 5, 7):
        hidden = model.prefill(token_ids[start : start + 7], cache)
    hidden = model.prefill(token_ids[cache.length :], cache)
    assert (model.logits(hidden)[0] - expected[-1]).abs().max() < TOLERANCE


@torch.inference_mode()
def test_norms_and_attention_keep_rows_apart(pair: tuple[Llama, list[int], torch.Tensor]):
    """fp32's matrix products do not (engine/kernels/cpu/dense.py), so this is up to rounding."""
    model, token_ids, expected = pair
    cache = model.new_cache()
    model.prefill(token_ids[:10], cache)
    together = model.logits(model.decode(token_ids[10:14], cache))
    assert (together - expected[10:14]).abs().max() < TOLERANCE


def test_windows_of_qwen2_without_a_list_of_layers_begin_where_the_config_says(tmp_path: Path):
    config = COMMON | {"model_type": "qwen2", "rms_norm_eps": 1e-6, "use_sliding_window": True}
    config |= {"sliding_window": 8, "max_window_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": torch.ones(64)}, tmp_path / "model.safetensors")
    assert Qwen2.read_config(open_checkpoint(tmp_path)).windows == (None, 8, 8)
