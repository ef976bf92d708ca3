"""The one definition of every speed figure that Baton shows, in the page, the API and the bench.

live     tokens in the last 1.0 s / 1.0 s; in the first second / elapsed, shown from 0.25 s on
peak     the largest full 1.0 s window of the answer; a shorter answer's peak is its average;
         never below the average
average  (completion tokens - tokens of the first step) / (last token - first token)
e2e      completion tokens / (last token - the request reached the node)

Tokens are counted, never chunks. Times are milliseconds on one clock.

Conventions, the same in all of them:

* The first step starts the clock of an answer at t0; `elapsed` counts from there. Its tokens were
  made before t0, so live, peak and average leave them out (a rate is tokens per interval, and n
  evenly spaced steps have n - 1 intervals). e2e counts every token from the request on.
* A window is half-open, (t - 1000, t]: a token exactly 1.0 s old has left it. A full window lies
  inside the answer: t0 <= t - 1000 and t <= the last step. In the first second live counts every
  step after the first.
* Where no time passed (one step, or all steps at one moment) a rate is not measurable: 0.0.
* Of an answer that another node began, a node measures its own steps only, from the moment the
  question reached it; `Usage.resumed_tokens` says how many tokens were made before.
* A step that comes with an earlier time than the one before it counts at that one's time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.types import Accepted, Finished, Speed

WINDOW_MS = 1000.0
LIVE_FROM_MS = 250.0


def _per_second(tokens: int, duration_ms: float) -> float:
    return tokens * 1000.0 / duration_ms if duration_ms > 0 else 0.0


class Gauge:
    """Measures one answer, step by step. `add` costs O(1) amortised.

    Memory is bounded by the steps of one second.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.steps = 0
        self._first_tokens = 0
        self._first_ms = 0.0
        self._last_ms = 0.0
        # steps of the window that ends at the last one: (time, tokens), and their sum
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_tokens = 0
        self._most_in_window: int | None = None
        self._min_tokens = 0
        self._max_tokens = 0

    def add(self, t_ms: float, n_tokens: int) -> None:
        """A step that made `n_tokens` tokens at `t_ms` since the request reached the node.

        A step without tokens is none. Raises ValueError for a negative number.
        """
        if n_tokens < 0:
            raise ValueError("a step cannot take tokens back")
        if n_tokens == 0:
            return
        self.tokens += n_tokens
        self.steps += 1
        self._max_tokens = max(self._max_tokens, n_tokens)
        if self.steps == 1:
            self._first_tokens = self._min_tokens = n_tokens
            self._first_ms = self._last_ms = t_ms
            return
        self._min_tokens = min(self._min_tokens, n_tokens)
        self._slide(max(t_ms, self._last_ms), n_tokens)

    def _slide(self, t_ms: float, n_tokens: int) -> None:
        """Move the window's end to this step. Only windows that end at a step, and the first full
        one, can be the largest: any other holds no more than the one that ends at the step before.
        """
        first_full_ms = self._first_ms + WINDOW_MS
        if self._most_in_window is None and t_ms > first_full_ms:
            self._forget_until(self._first_ms)
            self._most_in_window = self._recent_tokens
        self._last_ms = t_ms
        self._recent.append((t_ms, n_tokens))
        self._recent_tokens += n_tokens
        self._forget_until(t_ms - WINDOW_MS)
        if t_ms >= first_full_ms:
            self._most_in_window = max(self._most_in_window or 0, self._recent_tokens)

    def _forget_until(self, t_ms: float) -> None:
        while self._recent and self._recent[0][0] <= t_ms:
            self._recent_tokens -= self._recent.popleft()[1]

    @property
    def first_ms(self) -> float | None:
        """When the first token came: the time to first token (TTFT); None before it."""
        return self._first_ms if self.steps else None

    @property
    def last_ms(self) -> float | None:
        """When the last token came; None before the first."""
        return self._last_ms if self.steps else None

    def live(self, now_ms: float) -> float | None:
        """Tokens per second now; None while it is not shown. A `now_ms` in the past counts as the
        time of the last step."""
        now_ms = max(now_ms, self._last_ms)
        elapsed_ms = now_ms - self._first_ms
        if not self.steps or elapsed_ms < LIVE_FROM_MS:
            return None
        gone = 0
        for t_ms, n_tokens in self._recent:
            if t_ms > now_ms - WINDOW_MS:
                break
            gone += n_tokens
        return _per_second(self._recent_tokens - gone, min(WINDOW_MS, elapsed_ms))

    def peak(self) -> float:
        average = self.average()
        if self._most_in_window is None:
            return average
        return max(average, _per_second(self._most_in_window, WINDOW_MS))

    def average(self) -> float:
        return _per_second(self.tokens - self._first_tokens, self._last_ms - self._first_ms)

    def e2e(self) -> float:
        return _per_second(self.tokens, self._last_ms)

    def speed(self) -> Speed:
        return Speed(peak=self.peak(), average=self.average(), e2e=self.e2e())

    def accepted(self, drafting_ms: float = 0.0) -> Accepted:
        """Tokens per step; zeros for an answer without steps.

        `drafting_ms` is what guessing took between first and last token.
        """
        mean = self.tokens / self.steps if self.steps else 0.0
        decode_ms = self._last_ms - self._first_ms
        share = min(1.0, drafting_ms / decode_ms) if decode_ms > 0 else 0.0
        return Accepted(mean, self._min_tokens, self._max_tokens, share)


@dataclass(slots=True)
class SessionTotals:
    """Several answers together: sums over sums, and the highest peak. All fields only grow."""

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    # completion tokens without those of each answer's first step, and the time that they took
    decode_tokens: int = 0
    decode_ms: float = 0.0
    # completion tokens that were made in `total_ms`: all but those an answer was resumed with
    measured_tokens: int = 0
    total_ms: float = 0.0
    peak: float = 0.0

    def add(self, finished: Finished) -> None:
        usage, timing = finished.usage, finished.timing
        self.answers += 1
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        self.measured_tokens += usage.completion_tokens - usage.resumed_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        # the average was made from a whole number of tokens, so this gives it back exactly
        self.decode_tokens += round(finished.speed.average * timing.decode_ms / 1000.0)
        self.decode_ms += timing.decode_ms
        self.total_ms += timing.total_ms
        self.peak = max(self.peak, finished.speed.peak)

    def speed(self) -> Speed:
        average = _per_second(self.decode_tokens, self.decode_ms)
        return Speed(
            peak=max(self.peak, average),
            average=average,
            e2e=_per_second(self.measured_tokens, self.total_ms),
        )
