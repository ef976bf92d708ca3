"""A folder with its tokenizer answers like any other model."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.engine import Engine
from engine.tokenizer import Tokenizer
from engine.types import Finished, GenerateRequest, ModelCard, ModelFileError
from engine.weights.opening import open_checkpoint, read_card

CONFIG = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 32,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
          "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": True}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, smollm2_card: ModelCard) -> Path:
    document = json.loads(smollm2_card.tokenizer_json)
    document["added_tokens"] = [
        {"id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for text, index in smollm2_card.special_tokens.items()
    ]  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2], "top_k": 20}')
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": {"content": "<|im_start|>"}}')
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    layer = "model.layers.0."
    shapes = {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)}
    tensors = {f"{layer}self_attn.{part}_proj.weight": shape for part, shape in shapes.items()}
    tensors |= {f"{layer}mlp.{part}_proj.weight": (32, 32) for part in ("gate", "up", "down")}
    tensors["model.embed_tokens.weight"] = (49152, 32)
    norms = ("model.norm", f"{layer}input_layernorm", f"{layer}post_attention_layernorm")
    weights = {name: torch.randn(shape) for name, shape in tensors.items()}
    save_file(
        weights | {f"{n}.weight": torch.ones(32) for n in norms}, tmp_path / "model.safetensors"
    )
    return tmp_path


def test_its_settings_and_control_tokens_are_read(folder: Path, smollm2_card: ModelCard):
    card = read_card(open_checkpoint(folder), name="tiny", numerics="label")
    assert card.context_tokens == 64
    assert {0, 2} <= set(card.stop_token_ids)
    assert (card.bos_token, card.defaults.top_k) == ("<|im_start|>", 20)
    assert card.chat_template == "{{ messages }}"
    assert card.special_tokens == smollm2_card.special_tokens
    ours, theirs = Tokenizer.from_card(card), Tokenizer.from_card(smollm2_card)
    for text in ("The capital of France is Paris.", "<|im_start|>user", "a  b\n\nc 123"):
        assert ours.encode(text) == theirs.encode(text)


def test_it_answers(folder: Path):
    engine = Engine.load(folder, level="fp32", device="cpu")
    *_, last = engine.generate(GenerateRequest((504, 3575), 3), threading.Event())
    engine.close()
    assert engine.card.name == folder.name
    assert isinstance(last, Finished)
    assert last.usage.completion_tokens >= 1


def test_another_kind_of_tokenizer_is_named(folder: Path):
    (folder / "tokenizer.json").write_text('{"model": {"type": "Unigram"}, "pre_tokenizer": {}}')
    with pytest.raises(ModelFileError, match="byte-level BPE"):
        read_card(open_checkpoint(folder), name="tiny", numerics="label")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match="damaged or missing"):
        read_card(open_checkpoint(folder), name="tiny", numerics="label")
