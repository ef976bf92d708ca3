"""The decode forms of layers equal their prefill forms, and no row knows of its neighbours."""

from __future__ import annotations

import pytest
import torch

from engine.layers.attention import attend_chunk, attend_rows, causal_mask
from engine.layers.norm import rms_norm, rms_norm_rows
from engine.layers.rope import rope_frequencies, rope_table, rotate
from engine.layers.swiglu import swiglu

K, H, E = 3, 9, 64


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("start", [0, 1, 130, 600])
@pytest.mark.parametrize("positions", [1, 2, 7])
def test_attention_by_rows_equals_attention_by_chunk(start: int, positions: int):
    q = random(positions, H, E) * E**-0.5
    keys, values = random(2, K, start + positions, E, seed=1)
    rows = attend_rows(q, keys, values, start)
    torch.testing.assert_close(rows, attend_chunk(q, keys, values, start), rtol=0, atol=1e-5)


@pytest.mark.parametrize("start", [1, 130, 600])
def test_attention_of_a_row_does_not_depend_on_how_many_share_the_pass(start: int):
    q, (keys, values) = random(5, H, E), random(2, K, start + 5, E, seed=1)
    together = attend_rows(q, keys, values, start)
    for t in range(5):
        end = start + t + 1
        alone = attend_rows(q[t : t + 1], keys[:, :end], values[:, :end], start + t)
        assert torch.equal(together[t : t + 1], alone)


def test_a_row_sees_itself_and_what_came_before():
    assert causal_mask(2, 3).tolist() == [[True] * 4 + [False], [True] * 5]


def test_norm_by_rows_equals_norm_and_keeps_rows_apart():
    x, weight = random(5, 576) * 3, random(576, seed=1)
    rows = rms_norm_rows(x, weight, 1e-5)
    torch.testing.assert_close(rows, rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6)
    assert torch.equal(
        rows, torch.cat([rms_norm_rows(x[t : t + 1], weight, 1e-5) for t in range(5)])
    )


def test_norm_follows_its_formula():
    x, weight = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0])
    expected = torch.tensor([[3.0, 8.0]]) / (12.5 + 0.5) ** 0.5
    torch.testing.assert_close(rms_norm_rows(x, weight, 0.5), expected)
    torch.testing.assert_close(rms_norm(x, weight, 0.5), expected)


def test_rotation_turns_pairs_by_position_and_leaves_the_rest():
    table = rope_table(rope_frequencies(4, 10000.0), 3)
    x = torch.tensor([[1.0, 0.0, 1.0, 0.0, 5.0, 6.0]])
    rotate(x, table[2].repeat(1, 1))
    angle = torch.tensor([2.0, 0.02])
    pairs = torch.stack([angle.cos(), angle.sin()], dim=-1).flatten()
    torch.testing.assert_close(x, torch.cat([pairs, torch.tensor([5.0, 6.0])]).unsqueeze(0))


def test_gate_comes_first_in_swiglu():
    gate_up = torch.tensor([[0.0, 2.0, 3.0, 5.0]])
    silu_of_2 = 2 / (1 + torch.exp(torch.tensor(-2.0)))
    torch.testing.assert_close(
        swiglu(gate_up), torch.stack([torch.tensor(0.0), 5 * silu_of_2])[None]
    )
