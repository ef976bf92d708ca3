"""Block FP8: kept as it is in memory, equal to transformers' dequantised model, rows apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.models import best_level
from engine.models.deepseek_v32 import DeepseekV32
from engine.weights.folder import FolderCheckpoint
from engine.weights.fp8 import quantise_blocks
from tests.engine.tiny_latent import reference, to_fp8, token_ids

pytest.importorskip("transformers", reason="transformers is the reference")

TOLERANCE = 5e-5
# 192 rows of latent and key: one and a half blocks
SIZES = {"hidden_size": 256, "kv_lora_rank": 160, "qk_rope_head_dim": 32, "index_head_dim": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fp8")
    reference("deepseek_v32", path, **SIZES)
    to_fp8(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> DeepseekV32:
    """With a head in float32: what is under test is the layers."""
    made = DeepseekV32(FolderCheckpoint.open(folder), "fp8", inner_eps=1e-6)
    exact = DeepseekV32(FolderCheckpoint.open(folder), "fp32", inner_eps=1e-6)
    made._head = exact._head
    return made


@torch.inference_mode()
def test_equals_transformers_with_dequantised_weights(folder: Path, model: DeepseekV32):
    from transformers import DeepseekV32ForCausalLM, FineGrainedFP8Config

    theirs = DeepseekV32ForCausalLM.from_pretrained(
        folder,
        quantization_config=FineGrainedFP8Config(dequantize=True),
        dtype=torch.float32,
        attn_implementation="eager",
    ).eval()
    ids = token_ids()
    expected = theirs(torch.tensor([ids])).logits[0]
    exact = DeepseekV32(FolderCheckpoint.open(folder), "fp32", inner_eps=1e-6)
    made = exact.logits(exact._forward(ids, exact.new_cache(), expanded=True))
    assert (made - expected).abs().max() < TOLERANCE
    # products on codes give what products on the dequantised weights give
    cache = model.new_cache()
    cache._latents, cache._index_keys = cache._latents.float(), cache._index_keys.float()
    kept = model.logits(model._forward(ids, cache, expanded=True))
    assert (kept - expected).abs().max() < TOLERANCE


def test_it_is_what_an_fp8_checkpoint_is_kept_as(folder: Path):
    assert best_level(FolderCheckpoint.open(folder)) == "fp8"


def test_layers_take_a_quarter_of_float32(folder: Path, model: DeepseekV32):
    exact = DeepseekV32(FolderCheckpoint.open(folder), "fp32")
    products = [layer.attention.out.size_bytes for layer in model._layers]
    full = [layer.attention.out.size_bytes for layer in exact._layers]
    assert sum(products) < 0.26 * sum(full)
    assert model.decode_bytes < exact.decode_bytes


@torch.inference_mode()
@pytest.mark.parametrize("level", ["fp8", "fp32", "bf16", "int8"])
def test_rows_of_one_pass_are_what_each_is_alone(folder: Path, level: str):
    model = DeepseekV32(FolderCheckpoint.open(folder), level)
    ids = token_ids()
    for rows in (2, 3, 8):
        alone, together = model.new_cache(), model.new_cache()
        model.prefill(ids[:20], alone)
        model.prefill(ids[:20], together)
        one_by_one = torch.cat([model.decode([i], alone) for i in ids[20 : 20 + rows]])
        at_once = model.decode(ids[20 : 20 + rows], together)
        assert torch.equal(one_by_one, at_once)
        expected = torch.cat([model.logits(row[None]) for row in one_by_one])
        assert torch.equal(expected, model.logits(at_once))


def test_codes_hold_a_weight_to_three_bits_and_edges_are_cropped():
    weight = torch.randn(300, 200, generator=torch.Generator().manual_seed(1))
    made = quantise_blocks(weight)
    assert made.scales.shape == (3, 2)
    assert ((made.float32() - weight).abs() <= weight.abs() / 16 + made.scales.max() * 2**-10).all()
    assert torch.equal(torch.log2(made.scales), torch.log2(made.scales).round())
