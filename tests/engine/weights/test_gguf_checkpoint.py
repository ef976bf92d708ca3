"""GGUF files in Hugging Face's terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.types import ModelFileError
from engine.weights.gguf_checkpoint import GgufCheckpoint
from engine.weights.rotary import Neighbours, halves_order, neighbours_order
from tests.engine.tiny_llama import TinyLlama


def test_names_settings_and_the_order_of_rows_are_those_of_hugging_face(tmp_path: Path):
    tiny = TinyLlama(layers=1, rope_base=5e5)
    checkpoint = GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf"))
    assert checkpoint.architecture == "llama"
    assert checkpoint.config["hidden_size"] == tiny.width
    assert checkpoint.config["head_dim"] == tiny.head_width
    assert checkpoint.config["rope_theta"] == 5e5
    # the tiny model keeps its weights as Hugging Face does, and writes them as converters do
    for ours, theirs in {
        "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q",
        "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down",
        "model.embed_tokens.weight": "token_embd",
    }.items():
        assert np.array_equal(checkpoint.tensor(ours).numpy(), tiny.weights[theirs])
    assert "lm_head.weight" not in checkpoint
    with pytest.raises(ModelFileError, match=r"lm_head\.weight"):
        checkpoint.tensor("lm_head.weight")


def test_neighbours_are_what_the_file_has(tmp_path: Path):
    tiny = TinyLlama(layers=1)
    checkpoint = GgufCheckpoint.open(tiny.write(tmp_path / "tiny.gguf"))
    paired = Neighbours(checkpoint, tiny.head_width)
    name = "model.layers.0.self_attn.q_proj.weight"
    in_file = torch.from_numpy(checkpoint.file.dequantised("blk.0.attn_q.weight"))
    assert torch.equal(paired.tensor(name), in_file)
    assert np.array_equal(
        paired.packed(name).ravel(), np.asarray(checkpoint.file.raw("blk.0.attn_q.weight"))
    )
    down = "model.layers.0.mlp.down_proj.weight"
    assert torch.equal(paired.tensor(down), checkpoint.tensor(down))


def test_the_two_orders_undo_each_other():
    assert neighbours_order(8, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert neighbours_order(6, 6).tolist() == [0, 3, 1, 4, 2, 5]
    assert neighbours_order(6, 6)[halves_order(6, 6)].tolist() == [*range(6)]
    with pytest.raises(ModelFileError, match="no whole heads"):
        halves_order(10, 4)
