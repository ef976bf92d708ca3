"""`baton convert`: the same weights in another shape, whatever interrupts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.converting import Conversion, ConversionError
from engine.weights.device_shards import open_folder
from engine.weights.folder import FolderCheckpoint
from engine.weights.fp8 import quantise_blocks

CONFIG = {
    "model_type": "glm_moe_dsa",
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}


def nothing(done: int, total: int) -> None:
    """Nobody watches."""


def source(path: Path) -> Path:
    """Weights of one layer and of the one that drafts, some in block FP8, in two files."""
    noise = torch.Generator().manual_seed(1)

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise)

    plain = {
        "model.embed_tokens.weight": made(40, 64).bfloat16(),
        "lm_head.weight": made(40, 64).bfloat16(),
        "model.norm.weight": made(64),
        "model.layers.0.self_attn.o_proj.weight": made(64, 512).bfloat16(),
        "model.layers.0.mlp.experts.0.down_proj.weight": made(64, 48).bfloat16(),
        "model.layers.0.mlp.gate.weight": made(4, 64).bfloat16(),
        "model.layers.1.eh_proj.weight": made(64, 128).bfloat16(),
        "model.layers.1.embed_tokens.weight": made(40, 64).bfloat16(),
        "model.layers.1.shared_head.head.weight": made(40, 64).bfloat16(),
    }
    quantised: dict[str, Tensor] = {}
    for name, shape in {
        "model.layers.0.self_attn.q_b_proj": (512, 64),  # blocks of rows divide among 2 and 4
        "model.layers.0.self_attn.kv_b_proj": (256, 64),  # among 2 only
        "model.layers.0.self_attn.kv_a_proj_with_mqa": (192, 64),  # stands everywhere
        "model.layers.0.mlp.experts.0.up_proj": (96, 64),  # less than a block: whole
    }.items():
        blocks = quantise_blocks(made(*shape))
        quantised[f"{name}.weight"] = blocks.codes
        quantised[f"{name}.weight_scale_inv"] = blocks.scales
    path.mkdir(parents=True)
    save_file(plain, path / "model-00001-of-00002.safetensors")
    save_file(quantised, path / "model-00002-of-00002.safetensors")
    places = dict.fromkeys(plain, "model-00001-of-00002.safetensors")
    places |= dict.fromkeys(quantised, "model-00002-of-00002.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text('{"a": 1}')
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source(tmp_path_factory.mktemp("source") / "model")


def assert_same_weights(saved: Path, model_dir: Path) -> None:
    made, original = open_folder(saved), FolderCheckpoint.open(model_dir)
    left_out = {"model.layers.1.embed_tokens.weight", "model.layers.1.shared_head.head.weight"}
    assert set(made.names()) == set(original.names()) - left_out
    for name in made.names():
        assert made.shape(name) == original.shape(name)
        assert made.stored_as(name) == original.stored_as(name)
        assert torch.equal(made.tensor(name), original.tensor(name)), name
        rows = [0, original.shape(name)[0] - 1]
        if len(original.shape(name)) == 2:
            assert torch.equal(made.rows(name)(rows), original.rows(name)(rows))


@pytest.mark.parametrize("shards", [1, 2, 4, 3])
def test_read_again_all_weights_are_the_sources(tmp_path: Path, model_dir: Path, shards: int):
    conversion = Conversion(model_dir, tmp_path / "out", shards)
    converted = conversion.run(nothing)
    conversion.verify(nothing)
    assert len(converted.files) == shards
    assert sum(path.stat().st_size for path in converted.files) == converted.size_bytes
    assert_same_weights(tmp_path / "out", model_dir)
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"a": 1}'
    assert (tmp_path / "out" / "chat_template.jinja").exists()


def test_each_device_has_its_own_part_of_what_can_be_cut(tmp_path: Path, model_dir: Path):
    files = Conversion(model_dir, tmp_path / "out", 2).run(nothing).files
    first, second = (load_file(path) for path in files)
    name = "model.layers.0.self_attn.q_b_proj.weight"
    assert first[name].shape == second[name].shape == (256, 64)
    assert first[name + "_scale_inv"].shape == (2, 1)
    assert first["model.layers.0.self_attn.o_proj.weight"].shape == (64, 256)
    assert first["model.layers.0.mlp.experts.0.up_proj.weight"].shape == (96, 64)
    assert second["model.layers.0.mlp.experts.0.down_proj.weight"].shape == (64, 24)
    assert "model.embed_tokens.weight" in first
    assert "model.embed_tokens.weight" not in second
    assert "model.norm.weight" in second


class Interrupted(Exception):
    pass


@given(st.integers(1, 300_000))
@settings(max_examples=30, deadline=None)
def test_an_interrupted_conversion_goes_on_where_it_stopped(model_dir: Path, stop_bytes: int):
    def stop(done: int, total: int) -> None:
        if done >= stop_bytes:
            raise Interrupted

    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "out"
        conversion = Conversion(model_dir, saved, 2)
        try:
            conversion.run(stop)
            return
        except Interrupted:
            pass
        with pytest.raises(ModelFileError):
            open_folder(saved)
        seen: list[int] = []
        converted = Conversion(model_dir, saved, 2).run(lambda done, _: seen.append(done))
        assert seen[0] == converted.resumed_bytes
        assert seen[-1] == converted.size_bytes
        conversion.verify(nothing)
        assert_same_weights(saved, model_dir)


KILLED = """
import os, signal, sys
from pathlib import Path
from engine.weights.converting import Conversion

def kill(done, total):
    if done > total * 3 // 4:
        os.kill(os.getpid(), signal.SIGKILL)

Conversion(Path(sys.argv[1]), Path(sys.argv[2]), 2).run(kill)
"""


def test_a_killed_conversion_goes_on_where_it_stopped(tmp_path: Path, model_dir: Path):
    saved = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(model_dir), str(saved)], env=environment, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    conversion = Conversion(model_dir, saved, 2)
    converted = conversion.run(nothing)
    assert converted.resumed_bytes > converted.size_bytes // 4
    conversion.verify(nothing)
    assert_same_weights(saved, model_dir)


def test_a_finished_conversion_writes_nothing_again(tmp_path: Path, model_dir: Path):
    Conversion(model_dir, tmp_path / "out", 2).run(nothing)
    again = Conversion(model_dir, tmp_path / "out", 2).run(nothing)
    assert again.resumed_bytes == again.size_bytes


def test_what_another_division_left_is_not_taken_over(tmp_path: Path, model_dir: Path):
    Conversion(model_dir, tmp_path / "out", 2).run(nothing)
    Conversion(model_dir, tmp_path / "out", 1).run(nothing)
    assert_same_weights(tmp_path / "out", model_dir)


def test_one_wrong_byte_is_found_and_named(tmp_path: Path, model_dir: Path):
    conversion = Conversion(model_dir, tmp_path / "out", 2)
    path = conversion.run(nothing).files[1]
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ConversionError, match=r"model-00002-of-00002.*norm.weight differs"):
        conversion.verify(nothing)


def test_a_missing_part_is_named(tmp_path: Path, model_dir: Path):
    files = Conversion(model_dir, tmp_path / "out", 2).run(nothing).files
    files[1].unlink()
    with pytest.raises(ModelFileError, match="1 of 2 parts"):
        open_folder(tmp_path / "out")


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path, model_dir: Path):
    files = Conversion(model_dir, tmp_path / "out", 2).run(nothing).files
    weights = load_file(files[1])
    del weights["model.layers.0.self_attn.o_proj.weight"]
    save_file(weights, files[1])
    with pytest.raises(ModelFileError, match="do not belong together"):
        open_folder(tmp_path / "out").tensor("model.layers.0.self_attn.o_proj.weight")


@pytest.mark.parametrize(
    "index",
    [
        {"device_files": ["../a.safetensors"], "divided": {}},
        {"device_files": [], "divided": {}},
        {"device_files": ["a"], "divided": {"x": 7}},
        {"device_files": "a", "divided": {}},
        {"device_files": ["a"]},
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, index: dict[str, object]):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="damaged"):
        open_folder(tmp_path)


def test_a_model_of_another_type_is_refused(tmp_path: Path, model_dir: Path):
    with pytest.raises(ModelFileError, match="glm_moe_dsa"):
        Conversion(model_dir, tmp_path / "out", 2, "deepseek-v32")
    with pytest.raises(ConversionError, match="deepseek-v32, glm-5, auto"):
        Conversion(model_dir, tmp_path / "out", 2, "gpt")
    Conversion(model_dir, tmp_path / "out", 2, "glm-5")


def test_the_source_is_never_the_target(model_dir: Path):
    with pytest.raises(ConversionError, match="folder of its own"):
        Conversion(model_dir, model_dir, 2)
