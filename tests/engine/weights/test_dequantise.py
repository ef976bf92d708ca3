from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.weights.dequantise import QUANT_TYPES, QuantType, dequantise, quant_type

ALL = [pytest.param(kind, id=kind.name) for kind in QUANT_TYPES.values()]


def random_blocks(kind: QuantType, n_blocks: int, seed: int) -> np.ndarray:
    bits = np.random.default_rng(seed).integers(0, 256, n_blocks * kind.block_bytes, dtype=np.uint8)
    return bits


@pytest.mark.parametrize("kind", ALL)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_any_bytes_become_the_floats_that_the_gguf_package_makes_bit_for_bit(
    kind: QuantType, seed: int
) -> None:
    raw = random_blocks(kind, 64, seed)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind.name])
    assert np.array_equal(dequantise(raw, kind).view(np.uint32), expected.view(np.uint32).ravel())


@pytest.mark.parametrize("kind", ALL)
def test_type_numbers_and_block_sizes_are_those_of_ggml(kind: QuantType) -> None:
    ggml = gguf.GGMLQuantizationType[kind.name]
    assert quant_type(int(ggml)) is kind
    assert gguf.GGML_QUANT_SIZES[ggml] == (kind.block_weights, kind.block_bytes)


def test_pieces_join_without_a_seam() -> None:
    kind = quant_type(3)
    raw = random_blocks(kind, 30_000, 1)
    whole = dequantise(raw, kind)
    middle = raw[13_000 * 20 : 13_200 * 20]
    expected = dequantise(middle, kind).view(np.uint32)
    assert np.array_equal(whole[13_000 * 32 : 13_200 * 32].view(np.uint32), expected)


def test_an_unknown_type_keeps_its_number_and_is_not_readable() -> None:
    kind = quant_type(23)
    assert kind.name == "ggml type 23"
    assert not kind.readable
    with pytest.raises(ValueError, match="ggml type 23"):
        dequantise(np.zeros(4, np.uint8), kind)
