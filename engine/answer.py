"""One answer while it is made: its tokens counted, its text spelled, its events and its end."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from torch import Tensor

from engine.chooser import Chooser
from engine.metrics import Gauge
from engine.stopping import StopText
from engine.tokenizer import IncrementalDecoder
from engine.types import Finished, FinishReason, GenerateRequest, Reading, Step, Timing, Usage


@dataclass(slots=True)
class Answer:
    """Every token of the answer, made elsewhere or here, passes through `take`, in order."""

    request: GenerateRequest
    cancel: threading.Event
    cached_tokens: int
    limit_tokens: int
    chooser: Chooser
    decoder: IncrementalDecoder
    stops: StopText
    gauge: Gauge = field(default_factory=Gauge)
    # of the whole answer, those made elsewhere included
    tokens: int = 0
    finish_reason: FinishReason = "length"

    def now_ms(self) -> float:
        return (time.perf_counter() - self.request.arrived_s) * 1000

    @property
    def is_over(self) -> bool:
        return self.finish_reason == "stop" or self.tokens >= self.limit_tokens

    def goes_on(self) -> bool:
        """Whether another token is wanted; looks at the end and at `cancel`."""
        if not self.is_over and self.cancel.is_set():
            self.finish_reason = "cancelled"
        return not self.is_over and self.finish_reason != "cancelled"

    def choose(self, logits: Tensor, position: int) -> int:
        """The next token by the request's own rule. logits [V] float32."""
        return self.chooser.choose(logits, position)

    def take(self, token_id: int) -> str:
        """Count one token. Returns the text that it sets free; one that ends the answer has none."""
        self.tokens += 1
        self.chooser.take(token_id)
        text, stopped = self._spell(token_id)
        if stopped or self.chooser.is_complete:
            self.finish_reason = "stop"
        return text

    def _spell(self, token_id: int) -> tuple[str, bool]:
        if token_id in self.chooser.end_ids:
            return "", True
        text = self.decoder.push((token_id,))
        if self.tokens <= self.request.sampling.min_tokens:
            # not looked at: what ends too early ends nothing
            return text, False
        return self.stops.push(text)

    def reading(self, done_tokens: int) -> Reading:
        total = len(self.request.prompt_ids) + len(self.request.resume_ids)
        return Reading(done_tokens, total, self.cached_tokens, self.now_ms())

    def step(self, token_ids: tuple[int, ...], text: str) -> Step:
        """The event of one pass that made these tokens, which are taken already."""
        t_ms = self.now_ms()
        self.gauge.add(t_ms, len(token_ids))
        return Step(token_ids, text, t_ms, logprobs=self.chooser.told())

    def finished(self, drafting_ms: float) -> Finished:
        """The last event. `drafting_ms`: of the time after the first token, what guesses took."""
        # without a token the whole time was spent on the prompt
        first_ms, last_ms = self.gauge.first_ms, self.gauge.last_ms
        prefill_ms = self.now_ms() if first_ms is None else first_ms
        total_ms = prefill_ms if last_ms is None else last_ms
        # cut off, an answer ends before the character that was not finished; a model that ends by
        # itself inside one wrote bytes that are none
        rest = self.decoder.flush() if self.finish_reason == "stop" else ""
        text, stopped = self.stops.push(rest)
        return Finished(
            finish_reason=self.finish_reason,
            usage=Usage(
                prompt_tokens=len(self.request.prompt_ids),
                cached_tokens=self.cached_tokens,
                completion_tokens=self.tokens,
                resumed_tokens=len(self.request.resume_ids),
            ),
            timing=Timing(prefill_ms, total_ms - prefill_ms, total_ms),
            speed=self.gauge.speed(),
            accepted=self.gauge.accepted(drafting_ms),
            text=text if stopped else text + self.stops.flush(),
        )
