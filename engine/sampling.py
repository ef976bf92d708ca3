"""How the next token is chosen: one rule, the same on every machine and for every drafter.

At absolute position t (the number of tokens before the one to choose), from the model's logits
l [V] float32, the prompt p and the answer so far a (what is continued from included):

 1. Penalties, for the ids that occur (engine/adjusting.py): repetition_penalty r on ids of p and a,
    l / r where l > 0 and l * r elsewhere (Keskar et al. 2019, arXiv:1909.05858); then
    l - frequency_penalty * (times in a) - presence_penalty for ids of a. The prompt does not count
    in the latter two, as OpenAI defines them.
 2. logit_bias is added. Steps 1 and 2 are computed in float64 in this order, and rounded to float32
    once at their end; ids that they do not touch stay as they are.
 3. The grammar, where there is one: only tokens that it can go on with. Behind a prompt that ends
    within an open <think> block it begins after the token </think>.
 4. min_tokens: while a is shorter, tokens that would end the answer are left out, unless nothing
    else is left. The same while a grammar waits for its </think>.
 5. temperature 0: the largest logit; the lowest id among equals. Nothing below applies.
 6. x = l / temperature, in float64. What lies more than 45 below the largest x is left out: all
    together it has less than 1e-14 of the probability.
 7. top_k: keep the k largest x; among equals the lower id goes first. 0 keeps all.
 8. top_p: of those, the shortest run from the largest down whose probabilities (softmax over what
    step 7 kept) sum to at least top_p; never less than one token.
 9. min_p: of those, the ones with at least min_p times the probability of the likeliest:
    x >= (largest x) + ln(min_p). 0 keeps all.
10. The answer is the kept token with the largest x + g(seed, t, id); the lowest id among equals.

So temperature comes before the cuts, as in transformers and vLLM (llama.cpp applies it last). All of
it is a function of (p, a, l): a draft is right exactly when the rule would have chosen it, an
answer can be repeated, and it goes on at another node as it would have gone on at this one.

Adding Gumbel noise and taking the largest draws from softmax(x) exactly (Gumbel 1954; Maddison et
al. 2014, arXiv:1411.0030). g depends on nothing but its three arguments (engine/noise.py).

This file holds steps 5 to 10; `engine/chooser.py` puts all of them together for one answer.

Cost on one core, V = 49152: greedy 5 us; temperature 0.2 with top_p 0.9 0.2 ms; top_k 40 0.6 ms;
nothing cut 0.8 ms; temperature 1 with top_p 0.9, where thousands are kept, 1.5 ms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.noise import Floats, Ids, all_uniforms, gumbel
from engine.types import ModelFileError, SamplingParams

Logits = NDArray[np.float32]

# With g in -3.13 .. 22.9 a token that far below the largest could not win either.
_NEGLIGIBLE = 45.0
# Far more than the library's logarithm and ours can differ by in g.
_LOG_MARGIN = 1e-6


def choose(logits: Tensor, params: SamplingParams, position: int) -> int:
    """Steps 5 to 10 alone: the token at `position`. logits [V] float32.

    Raises ModelFileError when the logits are not numbers.
    """
    values: Logits = logits.numpy()
    check_numbers(values)
    return choose_adjusted(values, params, position)


def check_numbers(logits: Logits) -> None:
    """Raises ModelFileError where the model's logits are not numbers."""
    if not math.isfinite(logits[logits.argmax()]):
        raise ModelFileError("The model computes values that are not numbers; its file is damaged.")


def choose_adjusted(logits: Logits, params: SamplingParams, position: int) -> int:
    """Steps 5 to 10. logits [V]; what must not be chosen is -inf, and not everything is."""
    best = int(logits.argmax())  # the first among equals
    if params.temperature == 0:
        return best
    token_ids, scaled = _kept(logits, params)
    if len(token_ids) == 1:
        return best
    if len(token_ids) * 4 < len(logits):
        return _noisy_best(scaled, token_ids, params.seed, position)
    return _noisy_best_of_many(scaled, token_ids, params.seed, position, len(logits))


def kept_tokens(logits: Tensor, params: SamplingParams) -> set[int]:
    """Ids that can be chosen at all: what steps 7 to 9 leave over."""
    return set(_kept(logits.numpy(), params)[0].tolist())


def log_min_p(min_p: float) -> float:
    """How far below the largest x step 9 still keeps a token: ln(min_p), -inf for 0.

    One number, computed on the host for every device.
    """
    return math.log(min_p) if min_p > 0 else -math.inf


def _kept(logits: Logits, params: SamplingParams) -> tuple[Ids, Floats]:
    """Token ids and x of what steps 6 to 9 leave over."""
    least = float(logits.max()) - _NEGLIGIBLE * params.temperature
    token_ids = np.flatnonzero(logits >= least)  # ascending
    scaled = logits[token_ids].astype(np.float64) / params.temperature
    if 0 < params.top_k < len(token_ids):
        kept = _largest(scaled, params.top_k)
        token_ids, scaled = token_ids[kept], scaled[kept]
    if params.top_p < 1:
        kept = _nucleus(scaled, params.top_p)
        token_ids, scaled = token_ids[kept], scaled[kept]
    if params.min_p > 0:
        kept = np.flatnonzero(scaled >= scaled.max() + log_min_p(params.min_p))
        token_ids, scaled = token_ids[kept], scaled[kept]
    return token_ids, scaled


def _largest(scaled: Floats, count: int) -> Ids:
    """Places of the `count` largest; of those that equal the last, the first ones."""
    least = np.partition(scaled, -count)[-count]
    above, equal = np.flatnonzero(scaled > least), np.flatnonzero(scaled == least)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def _nucleus(scaled: Floats, top_p: float) -> Ids:
    """Places of the shortest run, from the largest down, that reaches `top_p`."""
    weights = np.exp(scaled - scaled.max())
    total = weights.sum()
    # All that are smaller than this sum to less than 1 - top_p, so the run ends before them.
    candidates = np.flatnonzero(weights >= total * (1 - top_p) / len(weights))
    order = candidates[np.argsort(-scaled[candidates], kind="stable")]
    reached = np.cumsum(weights[order])
    return order[: 1 + np.count_nonzero(reached[:-1] < top_p * total)]


def _noisy_best(scaled: Floats, token_ids: Ids, seed: int, position: int) -> int:
    """Step 10. scaled, token_ids [n]."""
    scores = scaled + gumbel(seed, position, token_ids)
    return int(token_ids[scores == scores.max()].min())


def _noisy_best_of_many(
    scaled: Floats, token_ids: Ids, seed: int, position: int, vocabulary: int
) -> int:
    """Step 10 over much of the vocabulary: a quick look first, the exact rule on what is close."""
    u = all_uniforms(seed, position, vocabulary)
    if len(token_ids) < vocabulary:
        u = u[token_ids]
    rough = scaled - np.log(-np.log(u))
    close = np.flatnonzero(rough >= rough.max() - _LOG_MARGIN)
    return _noisy_best(scaled[close], token_ids[close], seed, position)
