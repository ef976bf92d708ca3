"""Qwen3 with experts: from GGUF, where they are stacked, and in packed levels."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import save_file

from engine.models import load_model
from engine.types import ModelFileError
from engine.weights.opening import open_checkpoint
from tests.tiny_gguf import write_gguf

F32 = gguf.GGMLQuantizationType.F32
EXPERTS, WIDTH, EXPERT_WIDTH, HEAD_WIDTH, VOCABULARY = 8, 64, 32, 32, 96
CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD_WIDTH,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_WIDTH,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
METADATA = {
    "embedding_length": WIDTH,
    "feed_forward_length": 96,
    "block_count": 1,
    "attention.head_count": 2,
    "attention.head_count_kv": 1,
    "attention.key_length": HEAD_WIDTH,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
    "context_length": 64,
    "expert_count": EXPERTS,
    "expert_used_count": 2,
    "expert_feed_forward_length": EXPERT_WIDTH,
}
# GGUF's name -> Hugging Face's and the shape
PLAIN = {
    "token_embd": ("model.embed_tokens", (VOCABULARY, WIDTH)),
    "output_norm": ("model.norm", (WIDTH,)),
    "output": ("lm_head", (VOCABULARY, WIDTH)),
    "blk.0.attn_norm": ("model.layers.0.input_layernorm", (WIDTH,)),
    "blk.0.ffn_norm": ("model.layers.0.post_attention_layernorm", (WIDTH,)),
    "blk.0.attn_q": ("model.layers.0.self_attn.q_proj", (2 * HEAD_WIDTH, WIDTH)),
    "blk.0.attn_k": ("model.layers.0.self_attn.k_proj", (HEAD_WIDTH, WIDTH)),
    "blk.0.attn_v": ("model.layers.0.self_attn.v_proj", (HEAD_WIDTH, WIDTH)),
    "blk.0.attn_output": ("model.layers.0.self_attn.o_proj", (WIDTH, 2 * HEAD_WIDTH)),
    "blk.0.attn_q_norm": ("model.layers.0.self_attn.q_norm", (HEAD_WIDTH,)),
    "blk.0.attn_k_norm": ("model.layers.0.self_attn.k_norm", (HEAD_WIDTH,)),
    "blk.0.ffn_gate_inp": ("model.layers.0.mlp.gate", (EXPERTS, WIDTH)),
}
STACKED = {
    "blk.0.ffn_gate_exps": ("gate_proj", (EXPERTS, EXPERT_WIDTH, WIDTH)),
    "blk.0.ffn_up_exps": ("up_proj", (EXPERTS, EXPERT_WIDTH, WIDTH)),
    "blk.0.ffn_down_exps": ("down_proj", (EXPERTS, WIDTH, EXPERT_WIDTH)),
}
TOKEN_IDS = [3, 50, 7, 90, 11, 2, 64, 33, 5, 80]


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    """By GGUF's names."""
    generator = torch.Generator().manual_seed(11)
    shapes = {name: shape for name, (_, shape) in (PLAIN | STACKED).items()}
    return {
        name: torch.randn(shape, generator=generator) * shape[-1] ** -0.5
        if len(shape) > 1
        else 1 + 0.2 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


@pytest.fixture
def folder(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Path:
    tensors = {f"{theirs}.weight": weights[ours] for ours, (theirs, _) in PLAIN.items()}
    for ours, (theirs, _) in STACKED.items():
        for expert, weight in enumerate(weights[ours]):
            name = f"model.layers.0.mlp.experts.{expert}.{theirs}.weight"
            tensors[name] = weight.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@torch.inference_mode()
def logits(path: Path, level: str, together: int = 1) -> torch.Tensor:
    """Behind the prompt's half and each token of the rest, `together` of them in one pass."""
    model = load_model(open_checkpoint(path), level)
    cache = model.new_cache()
    rows = [model.logits(model.prefill(TOKEN_IDS[:6], cache))]
    for start in range(6, len(TOKEN_IDS), together):
        rows.append(model.logits(model.decode(TOKEN_IDS[start : start + together], cache)))
    return torch.cat(rows)


def test_stacked_experts_of_a_gguf_file_equal_those_of_a_folder(
    tmp_path: Path, folder: Path, weights: dict[str, torch.Tensor]
):
    file = write_gguf(
        tmp_path / "tiny.gguf",
        {f"qwen3moe.{key}": value for key, value in METADATA.items()},
        {f"{name}.weight": (weight.numpy(), F32) for name, weight in weights.items()},
        architecture="qwen3moe",
    )
    assert torch.equal(logits(file, "fp32"), logits(folder, "fp32"))


def test_packed_experts_stay_near_and_keep_rows_apart(folder: Path):
    exact, packed = logits(folder, "fp32"), logits(folder, "int8")
    assert exact.std() > 0.3
    assert (packed - exact).abs().mean() < 0.05
    assert torch.equal(logits(folder, "int8", together=4), packed)


def test_more_experts_for_a_token_than_there_are_is_refused(folder: Path):
    config = CONFIG | {"num_experts_per_tok": EXPERTS + 1}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="num_experts_per_tok"):
        load_model(open_checkpoint(folder), "fp32")
