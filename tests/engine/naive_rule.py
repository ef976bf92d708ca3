"""The sampling rule once more, written down slowly in plain Python: sorted lists, no numpy tricks.

It shares nothing with the engine but the noise of single tokens.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np

from engine.noise import gumbel
from engine.types import SamplingParams


def as_float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def adjusted(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    answer: Sequence[int],
    end_ids: Sequence[int] = (),
) -> list[float]:
    """Steps 1, 2 and 4."""
    result = list(logits)
    biases = dict(params.logit_bias)
    for token_id, logit in enumerate(logits):
        value = logit
        if params.repetition_penalty != 1 and token_id in (*prompt, *answer):
            by = params.repetition_penalty
            value = value / by if value > 0 else value * by
        times = list(answer).count(token_id)
        value -= params.frequency_penalty * times
        if times:
            value -= params.presence_penalty
        value += biases.get(token_id, 0.0)
        result[token_id] = as_float32(value)
    if len(answer) < params.min_tokens:
        ends = {*params.stop_token_ids, *([] if params.ignore_eos else end_ids)}
        if set(range(len(result))) - ends:
            result = [-math.inf if i in ends else value for i, value in enumerate(result)]
    return result


def distribution(values: Sequence[float], params: SamplingParams) -> dict[int, float]:
    """Closed form: the probability of every token that can be chosen. temperature > 0."""
    x = {i: value / params.temperature for i, value in enumerate(values) if value > -math.inf}
    order = sorted(x, key=lambda i: (-x[i], i))
    if params.top_k:
        order = order[: params.top_k]
    weights = {i: math.exp(x[i] - x[order[0]]) for i in order}
    if params.top_p < 1:
        total, reached, kept = sum(weights.values()), 0.0, []
        for i in order:
            if kept and reached >= params.top_p * total:
                break
            kept.append(i)
            reached += weights[i]
        order = kept
    if params.min_p:
        order = [i for i in order if x[i] >= x[order[0]] + math.log(params.min_p)]
    total = sum(weights[i] for i in order)
    return {i: weights[i] / total for i in order}


def chosen(values: Sequence[float], params: SamplingParams, position: int) -> int:
    """Steps 5 to 10."""
    if params.temperature == 0:
        return max(range(len(values)), key=lambda i: (values[i], -i))
    kept = sorted(distribution(values, params))
    noise = gumbel(params.seed, position, np.array(kept))
    scores = {i: values[i] / params.temperature + g for i, g in zip(kept, noise, strict=True)}
    return max(kept, key=lambda i: (scores[i], -i))
