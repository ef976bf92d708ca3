"""Every operation of the native step equals its plain twin, at odd sizes, with poison behind them."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.kernels.cpu.native import reference
from engine.kernels.cpu.native.library import Library, Sizes
from engine.layers.attention import attend_rows
from engine.layers.norm import rms_norm
from engine.layers.swiglu import swiglu
from engine.weights.gguf_checkpoint import GgufCheckpoint
from engine.weights.rows import Rows
from tests.engine.native import native_or_skip

Floats = NDArray[np.float32]
POISON = np.float32(np.nan)
GUARD = 40  # values behind every buffer that must not be used or changed
KINDS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8, "F32": 8}


@pytest.fixture(scope="module")
def native() -> Library:
    return native_or_skip()


@pytest.fixture
def holder(native: Library) -> Iterator[int]:
    """A model of which only the head is used: a place for one matrix."""
    model = native.open(byref(Sizes(1, 32, 1, 1, 2, 32, 1, 1, 1e-5)))
    yield model
    native.close(model)


def values(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def poisoned(x: Floats) -> Floats:
    """The same with poison behind it."""
    return np.concatenate([x, np.full(GUARD, POISON)]).astype(np.float32)


def guarded(count: int, dtype: type = np.float32) -> NDArray:
    return np.full(count + GUARD, 77, dtype=dtype)


def intact(buffer: NDArray, count: int) -> bool:
    return bool((buffer[count:] == 77).all())


def side_by_side(native: Library, x: Floats, rows: int) -> list[NDArray]:
    """x [rows * K] as a pass holds it: planes, scale, sum, total."""
    groups = len(x) // 32
    sizes = (64 * groups, groups, groups, groups)
    types = (np.int8, np.float32, np.float32, np.int32)
    buffers = [guarded(n, kind) for n, kind in zip(sizes, types, strict=True)]
    source = poisoned(x)
    native.quantise(source.ctypes.data, len(x) // rows, rows, *(b.ctypes.data for b in buffers))
    assert all(intact(b, n) for b, n in zip(buffers, sizes, strict=True))
    return [b[:n] for b, n in zip(buffers, sizes, strict=True)]


def quantised(native: Library, x: Floats) -> reference.Activations:
    planes, *rest = side_by_side(native, x, 1)
    high, low = planes.reshape(-1, 2, 32).transpose(1, 0, 2).reshape(2, -1)
    return reference.Activations(high, low, *rest)


@pytest.mark.parametrize("k", [32, 96, 576])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_activations_become_the_integers_of_the_twin(native: Library, k: int, size: float):
    x = values(k) * np.float32(size)
    for actual, expected in zip(quantised(native, x), reference.quantise(x), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_activations_are_off_by_half_a_step_at_most(native: Library):
    x = values(320)
    a = quantised(native, x)
    steps = 256 * a.high.astype(np.float64) + a.low
    error = np.abs(steps.reshape(-1, 32) * a.scale[:, None] - x.reshape(-1, 32))
    assert (error <= np.abs(x.reshape(-1, 32)).max(-1)[:, None] / 32512 * 0.51).all()


@pytest.mark.parametrize("tiny", [0.0, 1e-36, 1e-44])
def test_a_group_too_small_to_divide_by_is_zeros(native: Library, tiny: float):
    x = np.concatenate([np.full(32, tiny, np.float32), values(32)])
    a = quantised(native, x)
    assert not a.high[:32].any()
    assert not a.low[:32].any()
    assert a.sum[0] == 0
    assert a.high[32:].any()


def test_what_is_not_a_number_stays_so(native: Library, holder: int, tmp_path: Path):
    rows = matrix(tmp_path / "m.gguf", "Q4_1", 16, 64)
    packed(native, holder, rows, 4)
    x = values(64)
    x[5:] = np.nan
    assert np.isnan(multiplied(native, holder, x, 16)).all()


def matrix(path: Path, kind: str, n: int, k: int) -> Rows:
    writer = gguf.GGUFWriter(path, "test")
    quant_type = gguf.GGMLQuantizationType[kind]
    weight = np.random.default_rng(3).normal(0.1, 1, (n, k)).astype(np.float32)
    weight[n // 2] = 0
    writer.add_tensor("w", gguf.quantize(weight, quant_type), raw_dtype=quant_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Rows(GgufCheckpoint.open(path), ["w"], (n, k))


def packed(native: Library, holder: int, rows: Rows, kind: int) -> None:
    ((file_type, raw),) = rows.blocks()
    number = {"Q4_0": 0, "Q4_1": 1, "Q8_0": 2}[file_type]
    assert native.matrix(holder, -1, 0, kind, *rows.shape) == 0
    native.pack(holder, -1, 0, number, raw.ctypes.data, 0, len(raw))


def multiplied(native: Library, holder: int, x: Floats, n: int, rows: int = 1) -> Floats:
    """x [rows * K] -> [rows, n]."""
    y = guarded(rows * n)
    parts = side_by_side(native, x, rows)
    native.product(holder, -1, 0, *(part.ctypes.data for part in parts), rows, y.ctypes.data)
    assert intact(y, rows * n)
    return y[: rows * n].reshape(rows, n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 32), (16, 96), (50, 64), (97, 576)])
def test_the_product_equals_the_twin(
    native: Library, holder: int, tmp_path: Path, kind: str, n: int, k: int
):
    rows = matrix(tmp_path / "m.gguf", kind, n, k)
    packed(native, holder, rows, KINDS[kind])
    x = values(k, seed=1)
    expected = reference.product(rows, quantised(native, x))
    # float32 sums of k products of about 1
    np.testing.assert_allclose(
        multiplied(native, holder, x, n)[0], expected, rtol=1e-5, atol=1e-6 * k
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", range(2, 9))
def test_rows_that_share_a_pass_are_to_the_bit_what_each_is_alone(
    native: Library, holder: int, tmp_path: Path, kind: str, rows: int
):
    n, k = 50, 96
    packed(native, holder, matrix(tmp_path / "m.gguf", kind, n, k), KINDS[kind])
    x = values(rows * k, seed=rows) * np.geomspace(1e-3, 1e3, rows * k, dtype=np.float32)
    together = multiplied(native, holder, x, n, rows)
    alone = [multiplied(native, holder, row, n)[0] for row in x.reshape(rows, k)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_files_of_few_bits_keep_their_exact_values(
    native: Library, holder: int, tmp_path: Path, kind: str
):
    n, k = 35, 96
    rows = matrix(tmp_path / "m.gguf", kind, n, k)
    packed(native, holder, rows, KINDS[kind])
    weight = rows.float32().numpy()
    for row in range(n):
        y = guarded(k)
        native.unpack(holder, -1, 0, row, y.ctypes.data)
        assert intact(y, k)
        # scale * code + minimum may be rounded once or, fused, not in between
        np.testing.assert_allclose(y[:k], weight[row], rtol=1e-6, atol=1e-6)


def test_other_files_are_rounded_to_8_bits(tmp_path: Path):
    rows = matrix(tmp_path / "m.gguf", "F32", 20, 64)
    weight = rows.float32().numpy()
    identity = [reference.quantise(row) for row in np.eye(64, dtype=np.float32)]
    kept = np.stack([reference.product(rows, column) for column in identity], axis=1)
    largest = np.abs(weight).reshape(20, -1, 32).max(-1).repeat(32, axis=1)
    assert (np.abs(kept - weight) <= largest / 127 * 0.51).all()


@pytest.mark.parametrize("n", [16, 48, 576])
def test_the_norm_equals_the_layer(native: Library, n: int):
    x, weight, y = poisoned(values(n)), poisoned(values(n, 1)), guarded(n)
    native.rms_norm(x.ctypes.data, weight.ctypes.data, n, 1e-5, y.ctypes.data)
    expected = rms_norm(torch.from_numpy(x[:n]).view(1, -1), torch.from_numpy(weight[:n]), 1e-5)
    assert intact(y, n)
    np.testing.assert_allclose(y[:n], expected[0], rtol=1e-5)


def test_swiglu_equals_the_layer_far_out_too(native: Library):
    gate = np.concatenate([values(32) * 10, np.linspace(-200, 200, 32, dtype=np.float32)])
    up, y = values(64, 1), guarded(64)
    native.swiglu(gate.ctypes.data, up.ctypes.data, 64, y.ctypes.data)
    expected = swiglu(torch.from_numpy(np.concatenate([gate, up])).view(1, -1))
    assert intact(y, 64)
    np.testing.assert_allclose(y[:64], expected[0], rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("positions", [1, 3, 16, 17, 100])
@pytest.mark.parametrize("width", [2, 10, 16, 64, 80, 128])
def test_attention_equals_the_layer(native: Library, positions: int, width: int):
    def cached(seed: int) -> Floats:
        return poisoned(values(positions * width, seed))

    q, keys, held = values(width), cached(1), cached(2)
    room = -(-positions // 16) * 16
    scores, out = guarded(room), guarded(width)
    scores[:room] = POISON
    addresses = (part.ctypes.data for part in (q, keys, held))
    native.attend(*addresses, positions, width, scores.ctypes.data, out.ctypes.data)
    assert intact(scores, room)
    assert intact(out, width)
    expected = attend_rows(
        torch.from_numpy(q).view(1, 1, width),
        *(torch.from_numpy(x[: positions * width]).view(1, -1, width) for x in (keys, held)),
        start=positions - 1,
    )
    np.testing.assert_allclose(out[:width], expected[0], rtol=1e-5, atol=1e-6)


def test_attention_survives_scores_that_lie_far_apart(native: Library):
    q = np.full(16, 30, np.float32)
    keys = np.concatenate([np.full(16, size, np.float32) for size in (-1, 1, 0.5)])
    held, scores, out = values(48), guarded(16), guarded(16)
    addresses = (part.ctypes.data for part in (q, keys, held))
    native.attend(*addresses, 3, 16, scores.ctypes.data, out.ctypes.data)
    np.testing.assert_allclose(out[:16], held[16:32], rtol=1e-6)
