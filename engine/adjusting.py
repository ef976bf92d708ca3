"""Penalties and biases: steps 1 and 2 of the rule in `engine/sampling.py`.

It holds what they depend on, the ids that occur in prompt and answer, and touches only those.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.types import SamplingParams

Logits = NDArray[np.float32]
Counts = NDArray[np.int32]
Floats = NDArray[np.float64]

ABSENT = -1
_GROWTH = 1 << 16


class Adjustment:
    """The adjustments of one answer."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int]) -> None:
        self._params = params
        repeats = params.repetition_penalty != 1
        self._counts = repeats or bool(params.presence_penalty or params.frequency_penalty)
        self._times: Counts = np.empty(0, np.int32)
        self._biases: Floats = np.empty(0)
        if repeats and prompt_ids:
            prompt = np.array(prompt_ids, np.intp)
            self._reach(int(prompt.max()) + 1)
            self._times[prompt] = 0
        for token_id, bias in params.logit_bias:
            self._reach(token_id + 1)
            self._biases[token_id] = bias

    @property
    def is_none(self) -> bool:
        """Whether it changes nothing, whatever the answer becomes."""
        return not self._counts and not self._params.logit_bias

    def take(self, token_id: int) -> None:
        """The answer has one token more."""
        if self._counts:
            self._reach(token_id + 1)
            self._times[token_id] = max(self._times[token_id], 0) + 1

    def times(self, vocabulary: int) -> Counts:
        """[V]: how often each id stands in the answer; ABSENT where it does not occur at all.

        An id of the prompt occurs if repetition_penalty asks for it.
        """
        self._reach(vocabulary)
        return self._times[:vocabulary]

    def biases(self, vocabulary: int) -> Floats:
        """[V]"""
        self._reach(vocabulary)
        return self._biases[:vocabulary]

    def apply(self, logits: Logits) -> Logits:
        """The adjusted logits [V], a copy."""
        times, biases = self.times(len(logits)), self.biases(len(logits))
        ids = np.flatnonzero((times >= 0) | (biases != 0))
        adjusted = logits.copy()
        adjusted[ids] = self._adjusted(logits[ids].astype(np.float64), times[ids], biases[ids])
        return adjusted

    def _adjusted(self, values: Floats, times: Counts, biases: Floats) -> Logits:
        p = self._params
        r = p.repetition_penalty
        if r != 1:
            values = np.where(times >= 0, np.where(values > 0, values / r, values * r), values)
        values = values - p.frequency_penalty * np.maximum(times, 0)
        values = values - np.where(times > 0, p.presence_penalty, 0.0)
        return (values + biases).astype(np.float32)

    def _reach(self, vocabulary: int) -> None:
        """Have room for ids below `vocabulary`, which a model's head may exceed its tokenizer's."""
        missing = vocabulary - len(self._times)
        if missing > 0:
            missing += _GROWTH
            self._times = np.concatenate([self._times, np.full(missing, ABSENT, np.int32)])
            self._biases = np.concatenate([self._biases, np.zeros(missing)])
