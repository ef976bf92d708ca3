"""One answer's speculation: who guesses next, what came of it, and what it took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.speculation.drafter import Drafter
from engine.speculation.pace import Pace
from engine.types import SamplingParams


@dataclass(frozen=True, slots=True)
class _Guess:
    kind: str
    drafts: int
    took_ms: float


class Director:
    """Asks its drafters in order; the first that promises to pay is the one.

    Without drafters it costs nothing and proposes nothing.
    """

    def __init__(self, drafters: Sequence[Drafter] = (), pace: Pace | None = None) -> None:
        self._drafters = tuple(drafters)
        self._pace = pace or Pace()
        self._guess: _Guess | None = None
        # time that went into guessing and into following the text, of this answer
        self.drafting_ms = 0.0

    def begin(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> None:
        self._guess, self.drafting_ms = None, 0.0
        self._pace.begin()
        with torch.inference_mode():
            for drafter in self._drafters:
                drafter.begin(prompt_ids, sampling)

    def extend(self, token_ids: Sequence[int], hidden: Tensor) -> None:
        """What the last pass gave: every draft that was right, and one token more."""
        if not self._drafters:
            return
        start = time.perf_counter()
        if self._guess is not None:
            guess, self._guess = self._guess, None
            self._pace.checked(guess.kind, guess.drafts, len(token_ids) - 1, guess.took_ms)
        with torch.inference_mode():
            for drafter in self._drafters:
                drafter.extend(token_ids, hidden)
        self.drafting_ms += (time.perf_counter() - start) * 1000

    def draft(self, most: int) -> list[int]:
        """Tokens to check in the next pass; often none."""
        if most < 1 or not self._drafters:
            return []
        start = time.perf_counter()
        drafts: list[int] = []
        for drafter in self._drafters:
            kind = drafter.kind()
            depth = self._pace.depth(kind, most) if kind is not None else 0
            if kind is not None and depth:
                with torch.inference_mode():
                    drafts = list(drafter.propose(depth))[:depth]
                took_ms = (time.perf_counter() - start) * 1000
                self._guess = _Guess(kind, len(drafts), took_ms) if drafts else None
                break
        self.drafting_ms += (time.perf_counter() - start) * 1000
        return drafts

    def passed(self, rows: int, took_ms: float) -> None:
        """A pass is over; the next `extend` says what came of it."""
        self._pace.passed(rows, took_ms)

    def close(self) -> None:
        with torch.inference_mode():
            for drafter in self._drafters:
                drafter.close()

    def forget(self) -> None:
        self._guess = None
        self._pace.forget()
        for drafter in self._drafters:
            drafter.forget()
