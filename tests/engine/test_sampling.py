"""The sampling rule: which tokens can be chosen, how often, and the same ones for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine import noise as engine_noise
from engine.noise import gumbel, natural_log, philox4x32, uniforms
from engine.sampling import choose, kept_tokens
from engine.types import ModelFileError, SamplingParams

L = [2.0, 1.5, 1.0, 0.5, 0.0]
M = [3.0, 2.0, 1.0]
ONES = 0xFFFFFFFF


def word(value: int) -> np.ndarray:
    return np.array([value], dtype=np.uint64)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    words = philox4x32(tuple(word(c) for c in counter), key)  # type: ignore[arg-type]
    assert tuple(int(w[0]) for w in words) == expected


def test_noise_is_a_function_of_seed_position_and_token_alone():
    some = gumbel(5, 9, np.array([7, 2, 49151]))
    assert some[0] == gumbel(5, 9, np.array([7]))[0]
    assert np.array_equal(
        engine_noise.all_uniforms(5, 9, 49152)[[7, 2, 49151]],
        uniforms(5, 9, np.array([7, 2, 49151])),
    )
    different = [
        gumbel(6, 9, np.array([7])),
        gumbel(5, 8, np.array([7])),
        gumbel(5, 9, np.array([6])),
    ]
    high_half_of_the_seed = gumbel(5 + (1 << 32), 9, np.array([7]))
    assert all(other[0] != some[0] for other in [*different, high_half_of_the_seed])


def test_noise_values_stay_as_specified():
    """Golden values: a change here changes every seeded answer."""
    assert gumbel(42, 100, np.array([0, 1, 2, 49151])).tolist() == [
        0.8144159504114657,
        0.24304251262013807,
        2.3043645561044217,
        0.6444051082943613,
    ]


def test_the_logarithm_is_the_natural_one():
    x = np.concatenate(
        [np.random.default_rng(0).random(10_000), [2.0**-33, 1 - 2.0**-33, 1.0, 23.0]]
    )
    assert np.abs(natural_log(x) - np.log(x)).max() < 1e-14
    near_one = 1 - np.arange(1, 100, dtype=np.float64) * 2.0**-32
    assert np.allclose(natural_log(near_one), np.log(near_one), rtol=1e-15, atol=0)


def seen(logits: list[float], **params: float) -> set[int]:
    """Tokens chosen over 1,000 seeds; the rarest allowed one here has a chance of 1 in 30."""
    row = torch.tensor(logits)
    return {choose(row, SamplingParams(seed=seed, **params), 3) for seed in range(1000)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("logits", "params", "expected"),
    [
        (M, {"temperature": 0.5, "top_p": 0.8}, {0}),
        (L, {"temperature": 1.5, "top_p": 0.6}, {0, 1, 2}),
        (L, {"top_k": 3, "top_p": 0.8}, {0, 1}),
        (L, {"top_p": 1e-8}, {0}),
        (L, {"top_p": 0.0}, {0}),
        (L, {"top_k": 1}, {0}),
        (L, {"top_k": 9}, {0, 1, 2, 3, 4}),
        ([1.0, 1.0, 1.0], {"top_k": 2}, {0, 1}),
    ],
)
def test_temperature_comes_first_then_top_k_then_top_p(logits, params, expected):
    assert kept_tokens(torch.tensor(logits), SamplingParams(**params)) == expected
    assert seen(logits, **params) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_tiny_top_p_keeps_the_best_token_of_coarse_logits(dtype: torch.dtype):
    row = torch.tensor(L).to(dtype).float()
    assert kept_tokens(row, SamplingParams(top_p=1e-8)) == {0}


def noise(seed: int, positions: int, vocabulary: int) -> np.ndarray:
    """g at positions 0..positions - 1 for ids 0..vocabulary - 1 <= 4, all at once."""
    zero, places = np.zeros((1, 1), np.uint64), np.arange(positions, dtype=np.uint64)[:, None]
    words = philox4x32((zero, places, zero, zero), (seed, 0))
    u = (np.concatenate(words, axis=1)[:, :vocabulary].astype(np.float64) + 0.5) * 2.0**-32
    return -natural_log(-natural_log(u))


def test_choices_are_the_largest_sum_of_logit_and_noise():
    logits = np.array(L[:4], np.float32)
    expected = (logits / 0.7 + noise(77, 300, 4)).argmax(1)
    params = SamplingParams(temperature=0.7, seed=77)
    assert [choose(torch.from_numpy(logits), params, t) for t in range(300)] == expected.tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float):
    draws, x = 1_000_000, np.array(L[:4]) / temperature
    counts = np.bincount((x + noise(3, draws, 4)).argmax(1))
    expected = np.exp(x) / np.exp(x).sum() * draws
    # 3 degrees of freedom, 1 in 10,000
    assert float(((counts - expected) ** 2 / expected).sum()) < 21.1


def test_neighbouring_positions_give_independent_draws():
    draws = 160_000
    tokens = noise(1, draws + 1, 4).argmax(1)
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
    # 15 degrees of freedom, 1 in 10,000
    assert float(((pairs - draws / 16) ** 2 / (draws / 16)).sum()) < 44.3


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**20), st.floats(0.05, 3), st.integers(0, 2**32 - 1)
)
def test_the_quick_way_over_the_whole_vocabulary_equals_the_rule(
    seed, position, temperature, which
):
    row = torch.from_numpy(np.random.default_rng(which).normal(8, 4, 4096).astype(np.float32))
    scores = row.numpy().astype(np.float64) / temperature + gumbel(seed, position, np.arange(4096))
    params = SamplingParams(temperature=temperature, seed=seed)
    assert choose(row, params, position) == int(scores.argmax())


@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**32 - 1), st.booleans())
def test_cuts_equal_the_plain_rule(top_k: int, top_p: float, which: int, coarse: bool):
    values = np.random.default_rng(which).normal(0, 2, 64).astype(np.float32)
    if coarse:  # many ties
        values = np.round(values)
    order = sorted(range(64), key=lambda i: (-values[i], i))[:top_k]
    weights = np.exp(values[order].astype(np.float64) - values.max())
    kept, reached = set(), 0.0
    for token_id, weight in zip(order, weights, strict=True):
        if kept and reached >= top_p * weights.sum():
            break
        kept.add(token_id)
        reached += weight
    found = kept_tokens(torch.from_numpy(values), SamplingParams(top_k=top_k, top_p=top_p))
    if top_p < 1:
        assert found == kept
    else:
        assert found == set(order)


def test_greedy_takes_the_lowest_id_among_equals_and_no_noise():
    row = torch.tensor([0.0, 3.0, 3.0, 1.0])
    assert {choose(row, SamplingParams(temperature=0, seed=s), s) for s in range(50)} == {1}


def test_greedy_ignores_the_cuts():
    assert choose(torch.tensor(L), SamplingParams(temperature=0, top_k=2, top_p=0.1), 0) == 0


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others():
    row = torch.from_numpy(np.random.default_rng(0).normal(0, 1, 2000).astype(np.float32))

    def text(seed: int) -> list[int]:
        return [choose(row, SamplingParams(seed=seed), position) for position in range(20)]

    assert text(1) == text(1)
    assert text(1) != text(2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_name_the_file(bad: float):
    with pytest.raises(ModelFileError, match="damaged"):
        choose(torch.tensor([1.0, bad, 2.0]), SamplingParams(), 0)
