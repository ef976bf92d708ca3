from __future__ import annotations

import contextlib
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.types import ModelFileError
from engine.weights.gguf import GgufFile
from tests.tiny_gguf import write_gguf

METADATA: dict[str, Any] = {
    "llama.context_length": 64,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.add_bos_token": True,
    "general.name": "Größe 🌶",
    "texts": ["a", "", "ü"],
    "numbers": [1, -2, 3],
}
F32, Q8_0 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = np.arange(96, dtype=np.float32).reshape(3, 32) / 7
    vector = np.arange(5, dtype=np.float32)
    tensors = {"matrix.weight": (weights, Q8_0), "vector.weight": (vector, F32)}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", METADATA, tensors)


def test_metadata_and_tensors_are_what_was_written(tiny: Path) -> None:
    file = GgufFile.open(tiny)
    for key, value in METADATA.items():
        assert file.metadata[key] == value
    matrix, vector = file.tensors["matrix.weight"], file.tensors["vector.weight"]
    assert (matrix.shape, matrix.quant_type.name, matrix.size_bytes) == ((3, 32), "Q8_0", 102)
    assert (vector.shape, vector.quant_type.name, vector.size_bytes) == ((5,), "F32", 20)
    assert file.dequantised("vector.weight").tolist() == [0, 1, 2, 3, 4]
    expected = np.arange(96, dtype=np.float32).reshape(3, 32) / 7
    assert np.abs(file.dequantised("matrix.weight") - expected).max() < 0.06
    assert file.raw("matrix.weight").shape == (102,)


def test_every_scalar_type_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "scalars.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float64("f64", 0.1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = GgufFile.open(tmp_path / "scalars.gguf").metadata
    assert [found[key] for key in ("u8", "i8", "u16", "i16", "i32", "u64", "i64", "f64")] == [
        200, -100, 60_000, -30_000, -2_000_000_000, 2**63, -(2**62), 0.1,
    ]  # fmt: skip


def test_the_demo_model_opens_and_equals_the_gguf_package(smollm2_path: Path) -> None:
    smollm2 = GgufFile.open(smollm2_path)
    assert len(smollm2.tensors) == 272
    assert smollm2.tensors["token_embd.weight"].shape == (49152, 576)
    assert smollm2.tensors["blk.0.ffn_down.weight"].shape == (576, 1536)
    assert len(smollm2.metadata["tokenizer.ggml.tokens"]) == 49152  # type: ignore[arg-type]  # an object by its type
    for name in ("token_embd.weight", "blk.29.ffn_up.weight", "output_norm.weight"):
        kind = gguf.GGMLQuantizationType[smollm2.tensors[name].quant_type.name]
        expected = gguf.quants.dequantize(smollm2.raw(name), kind).ravel()
        assert np.array_equal(smollm2.dequantised(name).ravel(), expected)


def test_equal_files_have_equal_hashes_and_one_byte_changes_it(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    data = bytearray(tiny.read_bytes())
    other.write_bytes(data)
    assert GgufFile.open(other).sha256() == GgufFile.open(tiny).sha256()
    data[-1] ^= 1
    other.write_bytes(data)
    assert GgufFile.open(other).sha256() != GgufFile.open(tiny).sha256()


@pytest.mark.parametrize("name", ["no-such-file.gguf", "."])
def test_a_path_without_a_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match=str(tmp_path)):
        GgufFile.open(tmp_path / name)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"),
        (b"GG", "ends in the middle of its header"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "absurd"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "absurd"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60) + bytes(40), "absurd"),
    ],
)
def test_a_file_that_is_no_gguf_says_why(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=what) as caught:
        GgufFile.open(path)
    assert str(path) in str(caught.value)


def _header(*entries: bytes, tensors: tuple[bytes, ...] = ()) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    return head + b"".join(entries) + b"".join(tensors)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _tensor(name: str, *dimensions: int, kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return _text(name) + shape + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (_header(_text("k") + struct.pack("<IB", 99, 0)), "unknown type 99"),
        (_header(_text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(8)), "unknown type 9"),
        (_header(_text("k") + struct.pack("<IIQ", 9, 0, 2**40)), "claims"),
        (_header(*[_text("k") + struct.pack("<IB", 0, 1)] * 2), "twice"),
        (_header(_text("general.alignment") + struct.pack("<II", 4, 24)), "power of two"),
        (_header(tensors=(_tensor("t", 8, offset=0),)), "cut short"),
        (_header(tensors=(_tensor("t", 1, offset=8),)) + bytes(100), "multiple of 32"),
        (_header(tensors=(_tensor("t", 2**40, 2**40),)), "impossible"),
        (_header(tensors=(_tensor("t", 0),)), "impossible"),
        (_header(tensors=(_tensor("t", 31, kind=8),)), "no whole Q8_0 blocks"),
        (_header(tensors=(_tensor("t", 1, 1, 1, 1, 1),)), "5 dimensions"),
        (_header(tensors=(_tensor("t", 1), _tensor("t", 1))) + bytes(100), "two tensors"),
    ],
)
def test_a_contradiction_in_the_header_is_said(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=what):
        GgufFile.open(path)


def test_only_using_a_tensor_of_an_unknown_type_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(_header(tensors=(_tensor("t", 256, kind=16),)) + bytes(200))
    file = GgufFile.open(path)
    with pytest.raises(ModelFileError, match="ggml type 16"):
        file.dequantised("t")
    with pytest.raises(ModelFileError, match="no tensor 'u'"):
        file.raw("u")


FUZZ = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(data=st.data())
@FUZZ
def test_a_file_cut_anywhere_is_refused(tiny: Path, tmp_path: Path, data: st.DataObject) -> None:
    tensors = GgufFile.open(tiny).tensors.values()
    end = max(tensor.offset_bytes + tensor.size_bytes for tensor in tensors)
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.read_bytes()[: data.draw(st.integers(0, end - 1))])
    with pytest.raises(ModelFileError, match="cut.gguf"):
        GgufFile.open(path)


def _open_or_refuse(path: Path) -> None:
    with contextlib.suppress(ModelFileError):
        file = GgufFile.open(path)
        for name in file.tensors:
            file.dequantised(name)


@given(
    flips=st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), min_size=1, max_size=6)
)
@FUZZ
def test_flipped_bytes_give_a_file_or_a_refusal_and_cost_little_memory(
    tiny: Path, tmp_path: Path, flips: list[tuple[int, int]]
) -> None:
    damaged = bytearray(tiny.read_bytes())
    for position, bits in flips:
        damaged[position % len(damaged)] ^= bits
    path = tmp_path / "flipped.gguf"
    path.write_bytes(damaged)
    tracemalloc.start()
    try:
        _open_or_refuse(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5_000_000
