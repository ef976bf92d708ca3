"""Folders of safetensors: what they hold, and every way in which they can be broken."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from engine.types import ModelFileError
from engine.weights.block_fp8 import dequantise_blocks
from engine.weights.folder import FolderCheckpoint
from engine.weights.opening import open_checkpoint
from engine.weights.safetensors import SafetensorsFile

FP8_CONFIG = {"model_type": "tiny", "quantization_config": {"weight_block_size": [128, 128]}}


def folder(path: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or {"model_type": "tiny"}))
    save_file(tensors, path / "model.safetensors")
    return path


def some_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "model.norm.weight": torch.randn(6, generator=generator),
        "model.a.weight": torch.randn(4, 6, generator=generator).bfloat16(),
        "model.b.weight": torch.randn(5, 6, generator=generator).half(),
    }


def sharded(path: Path) -> Path:
    tensors = some_tensors()
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text('{"model_type": "tiny"}')
    places = {name: f"model-0000{n}-of-00003.safetensors" for n, name in enumerate(tensors, 1)}
    for name, file in places.items():
        save_file({name: tensors[name]}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path


@pytest.mark.parametrize("make", [lambda path: folder(path, some_tensors()), sharded])
def test_whole_or_in_shards_every_weight_is_read(tmp_path: Path, make: Callable[[Path], Path]):
    checkpoint = open_checkpoint(make(tmp_path / "m"))
    assert checkpoint.architecture == "tiny"
    assert set(checkpoint.names()) == set(some_tensors())
    for name, expected in some_tensors().items():
        assert name in checkpoint
        assert checkpoint.shape(name) == tuple(expected.shape)
        found = checkpoint.tensor(name)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected.float())
    assert checkpoint.stored_as("model.a.weight") == "BF16"
    assert torch.equal(
        checkpoint.rows("model.b.weight")([3, 0]), some_tensors()["model.b.weight"][[3, 0]].float()
    )


def test_a_weight_that_was_read_can_be_written_to_and_the_file_stays(tmp_path: Path):
    checkpoint = open_checkpoint(folder(tmp_path / "m", some_tensors()))
    checkpoint.tensor("model.norm.weight").zero_()
    assert torch.equal(checkpoint.tensor("model.norm.weight"), some_tensors()["model.norm.weight"])


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (192, 130), (7, 300), (1, 1)])
def test_fp8_blocks_are_multiplied_by_their_scales_at_the_edges_too(
    tmp_path: Path, shape: tuple[int, int]
):
    generator = torch.Generator().manual_seed(2)
    codes = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    grid = (-(-shape[0] // 128), -(-shape[1] // 128))
    scales = torch.rand(grid, generator=generator) + 0.5
    tensors = {"w.weight": codes, "w.weight_scale_inv": scales}
    checkpoint = FolderCheckpoint.open(folder(tmp_path / "m", tensors, FP8_CONFIG))
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[: shape[0], : shape[1]]
    expected = codes.float() * wide
    assert list(checkpoint.names()) == ["w.weight"]
    assert checkpoint.stored_as("w.weight") == "F8_E4M3"
    assert torch.equal(checkpoint.tensor("w.weight"), expected)
    some = [shape[0] - 1, 0]
    assert torch.equal(checkpoint.rows("w.weight")(some), expected[some])
    assert torch.equal(checkpoint.stored("w.weight_scale_inv"), scales)


def test_fp8_scales_of_another_shape_are_refused(tmp_path: Path):
    tensors = {
        "w.weight": torch.zeros(256, 128).to(torch.float8_e4m3fn),
        "w.weight_scale_inv": torch.ones(1, 1),
    }
    checkpoint = open_checkpoint(folder(tmp_path / "m", tensors, FP8_CONFIG))
    with pytest.raises(ModelFileError, match=r"\(1, 1\) instead of \(2, 1\)"):
        checkpoint.tensor("w.weight")


def test_fp8_without_blocks_of_a_known_size_is_refused(tmp_path: Path):
    tensors = {
        "w.weight": torch.zeros(8, 8).to(torch.float8_e4m3fn),
        "w.weight_scale_inv": torch.ones(1, 1),
    }
    checkpoint = open_checkpoint(folder(tmp_path / "m", tensors))
    with pytest.raises(ModelFileError, match="blocks of None"):
        checkpoint.tensor("w.weight")


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(1, 16), st.integers(1, 16)),
)
@settings(deadline=None, max_examples=50)
def test_blocks_of_any_size_cover_a_matrix_of_any_size(
    shape: tuple[int, int], block: tuple[int, int]
):
    codes = torch.ones(shape).to(torch.float8_e4m3fn)
    grid = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    scales = torch.arange(grid[0] * grid[1], dtype=torch.float32).view(grid)
    found = dequantise_blocks(codes, scales, block)
    for row in range(shape[0]):
        for column in range(shape[1]):
            assert found[row, column] == scales[row // block[0], column // block[1]]


def test_the_label_changes_with_a_weight_and_with_a_setting(tmp_path: Path):
    first = open_checkpoint(folder(tmp_path / "a", some_tensors())).sha256()
    assert open_checkpoint(folder(tmp_path / "b", some_tensors())).sha256() == first
    changed = some_tensors()
    changed["model.norm.weight"][5] += 1
    assert open_checkpoint(folder(tmp_path / "c", changed)).sha256() != first
    other = folder(tmp_path / "d", some_tensors(), {"model_type": "tiny", "rms_norm_eps": 1e-5})
    assert open_checkpoint(other).sha256() != first


def whole(path: Path) -> Path:
    return folder(path, some_tensors())


def cut_header(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:20])


def cut_data(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])


def header(path: Path, value: Any) -> None:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]} | changes}


def write(name: str, text: str) -> Callable[[Path], Any]:
    return lambda path: (path / name).write_text(text)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda path: (path / "config.json").unlink(), "no config.json"),
    "config of no JSON": (write("config.json", "{"), "config.json is not JSON"),
    "config of no object": (write("config.json", "[1]"), "no JSON object"),
    "config too deep": (write("config.json", "[" * 100_000), "is not JSON"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "no weights"),
    "empty weights": (write("model.safetensors", ""), "is empty"),
    "cut in the header": (cut_header, "middle of its header"),
    "cut in the data": (cut_data, "cut short"),
    "no JSON in the header": (lambda path: header(path, b"\xff\xfe"), "not JSON"),
    "header of no object": (lambda path: header(path, [1]), "no list of tensors"),
    "a shape too large": (lambda path: header(path, entry(shape=[4, 5])), "does not match"),
    "a shape beyond all": (lambda path: header(path, entry(shape=[1 << 50, 1 << 50])), "match"),
    "a negative shape": (lambda path: header(path, entry(shape=[-4, -4])), "'a' is wrong"),
    "a shape of words": (lambda path: header(path, entry(shape=["4"])), "'a' is wrong"),
    "offsets beyond the file": (lambda path: header(path, entry(data_offsets=[0, 99])), "outside"),
    "offsets backwards": (lambda path: header(path, entry(data_offsets=[64, 0])), "outside"),
    "no offsets": (lambda path: header(path, {"a": {"dtype": "F32"}}), "'a' is wrong"),
    "an index of no JSON": (write("model.safetensors.index.json", "x"), "is not JSON"),
    "an empty index": (write("model.safetensors.index.json", "{}"), "lists no weights"),
    "a part outside the folder": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "../m/model.safetensors"}}'),
        "parts of the model .* are missing",
    ),
}


@pytest.mark.parametrize(("damage", "what"), BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_named_with_what_is_wrong(
    tmp_path: Path, damage: Callable[[Path], Any], what: str
):
    path = whole(tmp_path / "m")
    damage(path)
    with pytest.raises(ModelFileError, match=what) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)


def test_a_missing_shard_is_counted_and_named(tmp_path: Path):
    path = sharded(tmp_path / "m")
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"1 of 3 .* model-00002-of-00003\.safetensors"):
        open_checkpoint(path)


def test_a_weight_in_a_format_that_is_none_is_refused_when_read(tmp_path: Path):
    path = folder(tmp_path / "m", {"a": torch.zeros(4, dtype=torch.int32)})
    checkpoint = open_checkpoint(path)
    with pytest.raises(ModelFileError, match="I32"):
        checkpoint.tensor("a")
    header(path, entry(dtype="F4_E2M1"))
    with pytest.raises(ModelFileError, match="F4_E2M1"):
        open_checkpoint(path).tensor("a")
    with pytest.raises(ModelFileError, match="no tensor 'b'"):
        open_checkpoint(path).shape("b")


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_whatever_the_bytes_are_it_opens_or_says_why(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    path = tmp_path_factory.mktemp("f") / "model.safetensors"
    save_file(some_tensors(), path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(1, len(raw)))])
    try:
        file = SafetensorsFile.open(path)
        for name in file.tensors:
            file.stored(name)
    except ModelFileError as error:
        assert str(path) in str(error)  # noqa: PT017 - both outcomes are right


def test_numbers_at_odd_places_are_read(tmp_path: Path):
    values = np.arange(3, dtype=np.float32)
    text = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [1, 13]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" + values.tobytes())
    assert SafetensorsFile.open(path).stored("a").tolist() == [0, 1, 2]
