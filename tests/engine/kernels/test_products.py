"""Every packed product equals the plain float32 product on its own codes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels.cpu.int4 import int4_reference, pack_int4
from engine.kernels.cpu.int8 import pack_int8
from engine.types import ModelFileError
from engine.weights.gguf_checkpoint import GgufCheckpoint
from engine.weights.rows import Rows, quantise_4bit

N, K = 96, 128
# bfloat16 keeps 8 bits: a result is right to half of the last one
BFLOAT16 = 2**-8


def rows(path: Path, kind: str = "F32", seed: int = 0) -> Rows:
    """A matrix of two tensors, [N / 3 + 2 N / 3, K], with a row of zeros in each."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "test")
    quant_type = gguf.GGMLQuantizationType[kind]
    for name, count in (("a", N // 3), ("b", N - N // 3)):
        weight = random.normal(0.1, 1, (count, K)).astype(np.float32)
        weight[3] = 0
        packed = gguf.quantize(weight, quant_type)
        writer.add_tensor(name, packed, raw_dtype=quant_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Rows(GgufCheckpoint.open(path), ["a", "b"], (N, K))


def inputs(count: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(count, K)).astype(np.float32))


@pytest.mark.parametrize("count", [1, 3, 130])
def test_8_bit_product_equals_its_reference(tmp_path: Path, count: int):
    product = pack_int8(rows(tmp_path / "m.gguf"))
    expected = product.reference(inputs(count))
    torch.testing.assert_close(product(inputs(count)).float(), expected, rtol=BFLOAT16, atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("count", [1, 3, 130])
def test_4_bit_product_equals_its_reference(tmp_path: Path, kind: str, count: int):
    matrix = rows(tmp_path / "m.gguf", kind)
    expected = int4_reference(matrix, inputs(count))
    actual = pack_int4(matrix)(inputs(count)).float()
    torch.testing.assert_close(actual, expected, rtol=BFLOAT16, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_4_bit_files_keep_their_own_codes(tmp_path: Path, kind: str):
    matrix = rows(tmp_path / "m.gguf", kind)
    groups = matrix.groups_4bit()
    codes = groups.codes.unflatten(-1, (-1, 32)).float()
    values = codes * groups.scale.unsqueeze(-1) + groups.minimum.unsqueeze(-1)
    torch.testing.assert_close(values.flatten(-2), matrix.float32(), rtol=0, atol=1e-6)


def test_rounding_to_4_bits_is_off_by_half_a_step_at_most():
    weight = torch.from_numpy(np.random.default_rng(4).normal(size=(8, 64)).astype(np.float32))
    groups = quantise_4bit(weight)
    codes = groups.codes.unflatten(-1, (-1, 32)).float()
    values = codes * groups.scale.unsqueeze(-1) + groups.minimum.unsqueeze(-1)
    steps = (values - weight.unflatten(-1, (-1, 32))).abs() / groups.scale.unsqueeze(-1)
    assert float(steps.max()) <= 0.501


def test_8_bit_weights_are_off_by_half_a_step_at_most(tmp_path: Path):
    matrix = rows(tmp_path / "m.gguf")
    identity = torch.eye(K)
    weight = matrix.float32()
    error = (pack_int8(matrix).reference(identity).T - weight).abs().amax(-1)
    assert bool((error <= weight.abs().amax(-1) / 127 * 0.51).all())


@pytest.mark.parametrize("pack", [pack_int8, pack_int4])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_a_row_s_result_does_not_depend_on_how_many_share_the_pass(
    tmp_path: Path, pack, count: int
):
    product = pack(rows(tmp_path / "m.gguf"))
    x = inputs(count)
    alone = torch.cat([product(x[t : t + 1]) for t in range(count)])
    assert torch.equal(product(x), alone)


def test_bytes_are_what_the_kernel_reads(tmp_path: Path):
    matrix = rows(tmp_path / "m.gguf")
    assert pack_int8(matrix).size_bytes == N * K + 2 * N
    assert pack_int4(matrix).size_bytes == N * K // 2 + 4 * N * K // 32


def test_tensors_that_do_not_make_the_matrix_are_refused(tmp_path: Path):
    rows(tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match="a, b"):
        Rows(GgufCheckpoint.open(tmp_path / "m.gguf"), ["a", "b"], (N, K + 32))
