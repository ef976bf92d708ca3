"""A request's choice of tokens against the rule written down anew, and against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.chooser import Chooser, logprobs_of, open_thought
from engine.types import ModelFileError, SamplingParams
from tests.engine import naive_rule

SIZE, ENDS = 24, (3, 7)
GREEDY = SamplingParams(temperature=0)


def chooser_behind(
    params: SamplingParams, prompt: list[int], answer: list[int], ends: tuple[int, ...] = ENDS
) -> Chooser:
    chooser = Chooser(params, prompt, ends)
    for token_id in answer:
        chooser.take(token_id)
    return chooser


IDS = st.integers(0, SIZE - 1)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.0]),
    top_k=st.sampled_from([0, 1, 5]),
    min_p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**63),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, 2.0, -1.0]),
    logit_bias=st.dictionaries(IDS, st.floats(-100, 100), max_size=3).map(
        lambda biases: tuple(biases.items())
    ),
    stop_token_ids=st.lists(IDS, max_size=2).map(tuple),
    ignore_eos=st.booleans(),
    min_tokens=st.sampled_from([0, 3]),
)


@given(
    PARAMS,
    st.lists(IDS, max_size=6),
    st.lists(IDS, max_size=8),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**20),
)
def test_every_choice_is_that_of_the_plain_rule(params, prompt, answer, which, position):
    row = np.random.default_rng(which).normal(0, 3, SIZE).astype(np.float32)
    values = naive_rule.adjusted(row.tolist(), params, prompt, answer, ENDS)
    chooser = chooser_behind(params, prompt, answer)
    if params.temperature and params.top_p < 1:
        # a sum of probabilities that comes within rounding of top_p may fall on either side
        near = [
            naive_rule.distribution(values, replace(params, top_p=params.top_p + d))
            for d in (-1e-9, 1e-9)
        ]
        assume(params.top_p == 0 or near[0].keys() == near[1].keys())
    assert chooser.choose(torch.from_numpy(row), position) == naive_rule.chosen(
        values, params, position
    )


OPTIONS = {
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "repetition": {"repetition_penalty": 1.6},
    "presence": {"presence_penalty": 0.8},
    "frequency": {"frequency_penalty": 0.4},
    "bias": {"logit_bias": ((1, 1.5), (4, -3.0))},
    "min_tokens": {"min_tokens": 9},
}
PAIRS = [(a, b) for a in OPTIONS for b in OPTIONS if a < b]


@pytest.mark.parametrize(
    "names", [(name,) for name in OPTIONS] + PAIRS + [tuple(OPTIONS)], ids="+".join
)
def test_draws_follow_the_closed_form_for_every_combination(names: tuple[str, ...]):
    options = {key: value for name in names for key, value in OPTIONS[name].items()}
    params = SamplingParams(seed=11, **options)
    row, prompt, answer = np.linspace(1.5, -1.0, 9, dtype=np.float32), [0, 2], [1, 1, 5]
    expected = naive_rule.distribution(
        naive_rule.adjusted(row.tolist(), params, prompt, answer, (3,)), params
    )
    chooser, draws = chooser_behind(params, prompt, answer, (3,)), 1500
    logits = torch.from_numpy(row)
    counts = np.bincount([chooser.choose(logits, t) for t in range(draws)], minlength=9)
    assert set(np.flatnonzero(counts)) <= set(expected)
    statistic = sum((counts[i] - draws * p) ** 2 / (draws * p) for i, p in expected.items())
    # chi-square at 1 in 100,000 (Wilson and Hilferty 1931); nothing may be drawn elsewhere
    freedom = max(1, len(expected) - 1)
    limit = freedom * (1 - 2 / (9 * freedom) + 4.265 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


L, M = [2.0, 1.5, 1.0, 0.5, 0.0], [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("logits", "params", "expected"),
    [
        (M, {"temperature": 0.5, "top_p": 0.8}, {0}),
        (L, {"temperature": 2.0, "min_p": 0.5}, {0, 1, 2}),
        (L, {"temperature": 0.5, "min_p": 0.3}, {0, 1}),
        (L, {"temperature": 1.5, "top_p": 0.6}, {0, 1, 2}),
        (L, {"top_k": 3, "top_p": 0.8}, {0, 1}),
        (L, {"top_p": 1e-8}, {0}),
        (L, {"min_p": 1.0}, {0}),
        (L, {"top_p": 0.0}, {0}),
        ([1.0, 1.0, 0.0], {"min_p": 1.0}, {0, 1}),
    ],
)
def test_temperature_comes_before_every_cut(
    logits: list[float], params: dict[str, Any], expected: set[int]
):
    row = torch.tensor(logits)
    chooser = [Chooser(SamplingParams(seed=seed, **params), ()) for seed in range(400)]
    assert {one.choose(row, 4) for one in chooser} == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cuts_hold_on_coarse_logits(dtype: torch.dtype):
    row = torch.tensor(L).to(dtype).float()
    for params in (SamplingParams(top_p=1e-8), SamplingParams(min_p=1.0)):
        assert Chooser(params, ()).choose(row, 4) == 0


def test_the_prompt_counts_for_repetition_alone():
    row = torch.tensor([2.0, 1.9, -1.0])
    for params in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert Chooser(replace(GREEDY, **params), [0, 0]).choose(row, 5) == 0
    assert Chooser(replace(GREEDY, repetition_penalty=1.2), [0, 0]).choose(row, 5) == 1


def test_a_repetition_penalty_pushes_negative_logits_down_too():
    row = torch.tensor([-1.0, -1.1])
    assert Chooser(replace(GREEDY, repetition_penalty=1.2), [0]).choose(row, 5) == 1


def test_min_tokens_and_ignore_eos_say_what_may_end():
    row = torch.tensor([0.0, 1.0, 2.0, 3.0])
    chooser = Chooser(replace(GREEDY, min_tokens=2, stop_token_ids=(2,)), (), (3,))
    assert chooser.end_ids == {2, 3}
    for expected in (1, 1, 3):
        assert chooser.choose(row, 0) == expected
        chooser.take(expected)
    ignoring = Chooser(
        replace(GREEDY, min_tokens=2, ignore_eos=True, stop_token_ids=(2,)), (), (3,)
    )
    assert ignoring.end_ids == {2}
    assert ignoring.choose(row, 0) == 3
    nothing_else = Chooser(replace(GREEDY, min_tokens=2, stop_token_ids=(0, 1, 2, 3)), ())
    assert nothing_else.choose(row, 0) == 3


def test_ids_beyond_the_model_s_head_are_nobody_s():
    chooser = Chooser(
        replace(GREEDY, logit_bias=((99, 50.0),), stop_token_ids=(77,), min_tokens=1), ()
    )
    assert chooser.choose(torch.tensor([0.0, 1.0]), 0) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_logits_are_named_also_where_a_penalty_would_hide_them(bad: float):
    chooser = Chooser(replace(GREEDY, stop_token_ids=(1,), min_tokens=5), ())
    with pytest.raises(ModelFileError, match="damaged"):
        chooser.choose(torch.tensor([1.0, bad, 2.0]), 0)


@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.booleans())
def test_logprobs_are_the_model_s_own(which: int, count: int, coarse: bool):
    row = np.random.default_rng(which).normal(0, 3, SIZE).astype(np.float32)
    row = np.round(row) if coarse else row
    params = SamplingParams(
        temperature=0.4, top_k=3, frequency_penalty=1.0, logit_bias=((2, 5.0),), top_logprobs=count
    )
    chooser = chooser_behind(params, [], [1, 1])
    token_id = chooser.choose(torch.from_numpy(row), 9)
    (told,) = chooser.told()
    expected = torch.log_softmax(torch.from_numpy(row).double(), 0)
    assert told.logprob == pytest.approx(expected[token_id].item(), abs=1e-9)
    order = sorted(range(SIZE), key=lambda i: (-row[i], i))[:count]
    assert [i for i, _ in told.top] == order
    assert [p for _, p in told.top] == pytest.approx(expected[order].tolist(), abs=1e-9)
    assert chooser.told() == ()


def test_the_logarithm_of_nothing_is_a_number():
    row = np.array([0.0, -np.inf], np.float32)
    assert logprobs_of(row, 1, 2).top == ((0, 0.0), (1, -9999.0))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [([1, 8, 2], 9), ([1, 8, 2, 9], None), ([9, 8], 9), ([1, 2], None), ([], None)],
)
def test_a_thought_is_open_from_its_last_mark_on(prompt: list[int], expected: int | None):
    marks = {"<think>": 8, "</think>": 9}
    assert open_thought(prompt, marks) == expected
    assert open_thought(prompt, {"<think>": 8}) is None
