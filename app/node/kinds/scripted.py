"""Tokens at a given rate, without a model: for tests, front-end work and trying the line out.

Free of torch. Steps are scheduled by absolute time, so the rate does not drift however long the
answer is and however late a single step comes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from app.node.kinds import scripted_model
from app.work import Work
from engine.metrics import Gauge
from engine.stopping import StopText
from engine.types import (
    EngineError,
    Event,
    Finished,
    FinishReason,
    ModelCard,
    PromptTooLongError,
    Reading,
    Step,
    Timing,
    Usage,
)

# how long a wait goes on after `cancel` was set, at most
_CANCEL_LOOK_SECONDS = 0.02
# prompt tokens read between two Readings
_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Script:
    """What a scripted node plays."""

    model: str = "scripted"
    context_tokens: int = 8192
    tokens_per_second: float = 600.0
    # most tokens of one step; each step takes 1..this many, chosen by `seed`
    tokens_per_step: int = 4
    prefill_ms_per_token: float = 0.2
    # the chat format; it says whether the model has thoughts and calls tools
    template: str = scripted_model.TEMPLATE
    # the answer; None: paragraphs that depend on the prompt, `answer_tokens` long
    text: str | None = None
    answer_tokens: int = 600
    # raise an EngineError instead of token number n (the first is 0)
    fail_at: int | None = None
    # make n tokens, then nothing more until cancelled
    stall_at: int | None = None
    seed: int = 0


class ScriptedKind:
    """A node kind whose tokens come from a script. See `app/node/kinds/base.py`."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        # what a real node would have in its KV cache
        self._kept_ids: tuple[int, ...] = ()

    @property
    def keeps_something(self) -> bool:
        """Whether anything of the last prompt is still held."""
        return bool(self._kept_ids)

    async def open(self) -> ModelCard:
        script = self.script
        return scripted_model.card(script.model, script.context_tokens, script.template)

    async def generate(self, work: Work, cancel: threading.Event) -> AsyncGenerator[Event, None]:
        """Raises PromptTooLongError, and EngineError where the script says so."""
        room = self.script.context_tokens - len(work.prompt_ids)
        if room < 1:
            raise PromptTooLongError(
                f"The prompt has {len(work.prompt_ids)} tokens and the model reads "
                f"{self.script.context_tokens}. Shorten the conversation or start a new one."
            )
        limit = min(work.max_tokens, room)
        play = _Play(self.script, work, cancel, self._take_cached(work.prompt_ids))
        async with aclosing(play.read(limit)) as readings:
            async for reading in readings:
                yield reading
        async with aclosing(play.write(limit)) as steps:
            async for step in steps:
                yield step
        self._kept_ids = (*work.prompt_ids, *play.written)
        yield play.finished()

    async def forget(self) -> None:
        self._kept_ids = ()

    async def close(self) -> None:
        self._kept_ids = ()

    def _take_cached(self, prompt_ids: Sequence[int]) -> int:
        """How many prompt tokens are kept from before; the last one is always read again."""
        kept, self._kept_ids = self._kept_ids, ()
        count = 0
        for old, new in zip(kept, prompt_ids[:-1], strict=False):
            if old != new:
                break
            count += 1
        return count


class _Play:
    """One answer on its way out."""

    def __init__(
        self, script: Script, work: Work, cancel: threading.Event, cached_tokens: int
    ) -> None:
        self._script = script
        self._work = work
        self._cancel = cancel
        self._cached_tokens = cached_tokens
        self._started_s = time.perf_counter()
        self._decoder = scripted_model.tokenizer().decoder(work.prompt_ids)
        self._stop = StopText(work.stop)
        self._gauge = Gauge()
        self._last_ms = 0.0
        self._reason: FinishReason = "length"
        self.written: list[int] = []
        for token_id in work.resume_ids:
            self._spell([token_id])

    async def read(self, max_tokens: int) -> AsyncGenerator[Reading, None]:
        """The prefill, chunk by chunk; nothing where the answer is over already."""
        total = self._total_tokens
        done = self._cached_tokens
        yield self._reading(done)
        while done < total and not self._is_over(max_tokens):
            done = min(done + _CHUNK_TOKENS, total)
            due_ms = (done - self._cached_tokens) * self._script.prefill_ms_per_token
            if not await self._until(due_ms):
                return
            yield self._reading(done)

    async def write(self, max_tokens: int) -> AsyncGenerator[Step, None]:
        """The decode: the first step at once, then each when its tokens are due."""
        sizes = random.Random(f"{self._script.seed}-{scripted_model.digest(self._work.prompt_ids)}")
        tokens = scripted_model.answer_ids(
            self._work.prompt_ids, self._script.text, self._script.answer_tokens
        )
        tokens = itertools.islice(tokens, len(self.written), None)
        first_ms = self._now_ms()
        due_tokens = 0
        while not self._is_over(max_tokens):
            if not await self._obey_script():
                return
            size = min(sizes.randint(1, self._script.tokens_per_step), self._room(max_tokens))
            if self._gauge.steps:
                due_tokens += size
            if not await self._until(first_ms + due_tokens * 1000 / self._script.tokens_per_second):
                return
            yield self._step(list(itertools.islice(tokens, size)))

    def finished(self) -> Finished:
        first_ms = self._gauge.first_ms
        prefill_ms = self._last_ms if first_ms is None else first_ms
        held = "" if self._stop.stopped else self._stop.push(self._decoder.flush())[0]
        return Finished(
            finish_reason=self._reason,
            usage=Usage(
                prompt_tokens=len(self._work.prompt_ids),
                cached_tokens=self._cached_tokens,
                completion_tokens=len(self.written),
                resumed_tokens=len(self._work.resume_ids),
            ),
            timing=Timing(
                prefill_ms=prefill_ms,
                decode_ms=self._last_ms - prefill_ms,
                total_ms=self._last_ms,
            ),
            speed=self._gauge.speed(),
            accepted=self._gauge.accepted(),
            text=held + self._stop.flush(),
        )

    def _reading(self, done_tokens: int) -> Reading:
        self._last_ms = self._now_ms()
        return Reading(
            done_tokens=done_tokens,
            total_tokens=self._total_tokens,
            cached_tokens=self._cached_tokens,
            t_ms=self._last_ms,
        )

    def _step(self, ids: list[int]) -> Step:
        self._last_ms = self._now_ms()
        self._gauge.add(self._last_ms, len(ids))
        return Step(token_ids=tuple(ids), text=self._spell(ids), t_ms=self._last_ms)

    def _spell(self, ids: list[int]) -> str:
        """The text that these tokens set free."""
        self.written += ids
        text, stopped = self._stop.push(self._decoder.push(ids))
        if stopped or ids[-1] == scripted_model.end_token():
            self._reason = "stop"
        return text

    @property
    def _total_tokens(self) -> int:
        """To read: the prompt, and what the answer is continued from."""
        return len(self._work.prompt_ids) + len(self._work.resume_ids)

    def _is_over(self, max_tokens: int) -> bool:
        return self._reason != "length" or len(self.written) >= max_tokens

    def _room(self, max_tokens: int) -> int:
        """Tokens until the next point where something happens."""
        points = (max_tokens, self._script.fail_at, self._script.stall_at)
        written = len(self.written)
        return min(point - written for point in points if point is not None and point > written)

    async def _obey_script(self) -> bool:
        """Fail or stall here if the script says so; False once a stall is cancelled."""
        if len(self.written) == self._script.fail_at:
            raise EngineError(
                f"The script fails at token {self._script.fail_at}. "
                "Start the node without --fail-at to get whole answers."
            )
        if len(self.written) == self._script.stall_at:
            return await self._until(math.inf)
        return True

    async def _until(self, due_ms: float) -> bool:
        """Wait for that moment of the answer; False once it is cancelled."""
        while not self._cancel.is_set():
            left_seconds = (due_ms - self._now_ms()) / 1000
            # a step that is due still lets others run, or a fast script would starve the loop
            await asyncio.sleep(min(max(left_seconds, 0), _CANCEL_LOOK_SECONDS))
            if left_seconds <= _CANCEL_LOOK_SECONDS:
                return True
        self._reason = "cancelled"
        return False

    def _now_ms(self) -> float:
        return (time.perf_counter() - self._started_s) * 1000
