"""The loop: read the prompt in chunks, write token by token, say what it took.

    generate -> _read_prompt (prefill, Reading events) -> _write (decode, Step events) -> Finished

An answer that another node began goes on behind its tokens (`resume_ids`): _read_prompt -> _reread
-> _write. They run through decode, as they did when they were made, so that the cache, and with it
every further token, is what it would have been. Their text is spelled again without being shown.

One generation at a time. Everything between two yields runs under `torch.inference_mode`; the
generator itself does not hold it, because a suspended generator would leave it switched on for
its caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.card import card_from_gguf
from engine.kernels import NATIVE
from engine.machine import core_count, processor
from engine.memory import memory_for
from engine.metrics import Gauge
from engine.models import Model, Writer, best_level, load_model
from engine.runtime.device import CUDA_LEVEL, choose_device
from engine.runtime.native import native_label
from engine.sampling import choose
from engine.stopping import StopText
from engine.tokenizer import IncrementalDecoder, Tokenizer
from engine.types import (
    EngineError,
    Event,
    Finished,
    FinishReason,
    GenerateRequest,
    ModelCard,
    PromptTooLongError,
    Reading,
    Step,
    Timing,
    Usage,
)
from engine.weights.gguf import GgufFile

# Prompt tokens per pass; cancel is looked at between two. Time for 512 tokens of SmolLM2 against
# 128 at once: 64 takes 1.2 of it, 256 and 512 take 0.93.
CHUNK_TOKENS = 128
CUDA_CHUNK_TOKENS = 2048


@dataclass(slots=True)
class _Answer:
    """One generation while it runs."""

    request: GenerateRequest
    cancel: threading.Event
    cached_tokens: int
    limit_tokens: int
    decoder: IncrementalDecoder
    stops: StopText
    gauge: Gauge = field(default_factory=Gauge)
    finish_reason: FinishReason = "length"

    def now_ms(self) -> float:
        return (time.perf_counter() - self.request.arrived_s) * 1000

    @property
    def tokens(self) -> int:
        """Of the whole answer, those made elsewhere included."""
        return len(self.request.resume_ids) + self.gauge.tokens

    @property
    def is_over(self) -> bool:
        return self.finish_reason == "stop" or self.tokens >= self.limit_tokens

    def reading(self, done_tokens: int) -> Reading:
        total = len(self.request.prompt_ids) + len(self.request.resume_ids)
        return Reading(done_tokens, total, self.cached_tokens, self.now_ms())

    def spell(self, token_id: int, *, ends: bool) -> str:
        """The text that one more token sets free; a token that ends the answer prints nothing."""
        text, stopped = ("", True) if ends else self.stops.push(self.decoder.push((token_id,)))
        if stopped:
            self.finish_reason = "stop"
        return text

    def step(self, token_id: int, *, ends: bool) -> Step:
        """Count one token and make its event."""
        t_ms = self.now_ms()
        self.gauge.add(t_ms, 1)
        return Step((token_id,), self.spell(token_id, ends=ends), t_ms)

    def finished(self) -> Finished:
        # without a token the whole time was spent on the prompt
        first_ms, last_ms = self.gauge.first_ms, self.gauge.last_ms
        prefill_ms = self.now_ms() if first_ms is None else first_ms
        total_ms = prefill_ms if last_ms is None else last_ms
        text, stopped = self.stops.push(self.decoder.flush())
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
            accepted=self.gauge.accepted(),
            text=text if stopped else text + self.stops.flush(),
        )


class Engine:
    """A loaded model with the cache of one lease. Use `load`."""

    def __init__(self, model: Model, card: ModelCard, chunk_tokens: int = CHUNK_TOKENS) -> None:
        self.card = card
        self.model = model
        self._chunk_tokens = chunk_tokens
        self._tokenizer = Tokenizer.from_card(card)
        self._vocabulary = self._tokenizer.vocab_size
        self._stop_ids = frozenset(card.stop_token_ids)
        self._cache = model.new_cache()
        self._in_use = threading.Lock()
        self._closed = False

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        level: str = "auto",
        threads: int | None = None,
        chunk_tokens: int | None = None,
        context_tokens: int | None = None,
        name: str | None = None,
        device: str = "auto",
    ) -> Engine:
        """Open a GGUF file and pack its weights.

        `level` is one of `engine.kernels.LEVELS`, or "auto" for `best_level`. `threads` is torch's,
        for the whole process (see `default_threads`), and the native level's own (all cores by
        default). `context_tokens` shortens the model's context, never lengthens it. `device` is one
        of `engine.runtime.device.DEVICES`; "auto" takes the GPU if there is one that can serve this
        model at this level.

        Raises ModelFileError (missing, damaged, unknown), OutOfMemoryError,
        NativeUnavailableError, EngineError for a device that cannot, and ValueError for a level or
        device that does not exist.
        """
        torch.set_num_threads(threads or default_threads())
        file = GgufFile.open(path)
        name = name or Path(path).stem
        if choose_device(device, level, file) == "cuda":
            return cls._load_cuda(file, chunk_tokens, context_tokens, name)
        if level == "auto":
            level = best_level(file)
        with memory_for("the model's weights"), torch.inference_mode():
            model = load_model(file, level, context_tokens)
        if threads:
            model.use_threads(threads)
        card = card_from_gguf(file, name=name, numerics=numerics(file, level, processor()))
        card = replace(card, context_tokens=model.context_tokens)
        return cls(model, card, chunk_tokens or CHUNK_TOKENS)

    @classmethod
    def _load_cuda(
        cls, file: GgufFile, chunk_tokens: int | None, context_tokens: int | None, name: str
    ) -> Engine:
        # only a machine with a GPU has what this imports
        from engine.runtime.cuda_llama import CudaLlama

        with memory_for("the model's weights"), torch.inference_mode():
            model = CudaLlama.load(file, context_tokens)
        label = numerics(file, CUDA_LEVEL, torch.cuda.get_device_name())
        card = card_from_gguf(file, name=name, numerics=label)
        card = replace(card, context_tokens=model.context_tokens)
        return cls(model, card, chunk_tokens or CUDA_CHUNK_TOKENS)

    def generate(
        self, request: GenerateRequest, cancel: threading.Event
    ) -> Generator[Event, None, None]:
        """Answer one request: Reading at least once, Step per token, one Finished last.

        `cancel` is looked at between chunks and between steps; a cancelled answer ends with what
        was made. Raises PromptTooLongError, OutOfMemoryError, and EngineError when the engine is
        busy or closed, or the tokens are none of this model; the engine stays usable.
        """
        self._take()
        try:
            answer = self._admit(request, cancel)
            if answer.is_over:
                # the other node died between the last token and the end
                yield answer.reading(answer.cached_tokens)
                yield answer.finished()
                return
            hidden = yield from self._read_prompt(answer)
            if hidden is not None:
                hidden = yield from self._reread(answer, hidden)
            if hidden is not None:
                yield from self._write(answer, hidden)
            yield answer.finished()
        finally:
            self._in_use.release()

    def forget(self) -> None:
        """Wipe the cache: what the next seat asks must find nothing of this one."""
        self._take()
        try:
            with torch.inference_mode():
                self._cache.wipe()
        finally:
            self._in_use.release()

    def close(self) -> None:
        """Wipe the cache and refuse further work."""
        if not self._closed:
            self.forget()
            self._closed = True
            self.model.close()

    def _take(self) -> None:
        if self._closed:
            raise EngineError("The engine is closed. Load the model again.")
        if not self._in_use.acquire(blocking=False):
            raise EngineError("The engine answers one request at a time. Wait for the other one.")

    def _admit(self, request: GenerateRequest, cancel: threading.Event) -> _Answer:
        prompt_tokens, context = len(request.prompt_ids), self.card.context_tokens
        if prompt_tokens >= context:
            raise PromptTooLongError(
                f"The prompt has {prompt_tokens} tokens, and prompt and answer together may have "
                f"{context}. Shorten the prompt or begin a new conversation."
            )
        if (
            not prompt_tokens
            or not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocabulary
        ):
            raise EngineError("The prompt is empty or holds tokens that the model does not have.")
        answer = _Answer(
            request,
            cancel,
            cached_tokens=self._cache.keep_prefix(request.prompt_ids),
            limit_tokens=min(request.max_tokens, context - prompt_tokens),
            decoder=self._tokenizer.decoder(request.prompt_ids),
            stops=StopText(request.stop),
        )
        for token_id in request.resume_ids:
            if answer.finish_reason == "stop" or not 0 <= token_id < self._vocabulary:
                raise EngineError(
                    "What is written of this answer does not come from this model, so it cannot be "
                    "continued here. Ask again."
                )
            answer.spell(token_id, ends=token_id in self._stop_ids)
        return answer

    def _read_prompt(self, answer: _Answer) -> Generator[Reading, None, Tensor | None]:
        """Prefill what is not cached. Returns the last token's hidden state, None if cancelled."""
        prompt_ids = answer.request.prompt_ids
        yield answer.reading(answer.cached_tokens)
        hidden = None
        for start in range(answer.cached_tokens, len(prompt_ids), self._chunk_tokens):
            if answer.cancel.is_set():
                answer.finish_reason = "cancelled"
                return None
            hidden = self._prefill(prompt_ids[start : start + self._chunk_tokens])
            yield answer.reading(self._cache.length)
        return hidden

    def _reread(self, answer: _Answer, hidden: Tensor) -> Generator[Reading, None, Tensor | None]:
        """Decode the tokens to continue from. Returns like `_read_prompt`."""
        for token_id in answer.request.resume_ids:
            if answer.cancel.is_set():
                answer.finish_reason = "cancelled"
                return None
            hidden = self._decode(token_id)
            yield answer.reading(self._cache.length)
        return hidden

    def _write(self, answer: _Answer, hidden: Tensor) -> Iterator[Step]:
        """Decode until a stop token, a stop text, the limit, or cancel."""
        with closing(self._tokens(answer, hidden)) as tokens:
            while not answer.is_over:
                if answer.cancel.is_set():
                    answer.finish_reason = "cancelled"
                    return
                token_id = next(tokens)
                yield answer.step(token_id, ends=token_id in self._stop_ids)

    def _tokens(self, answer: _Answer, hidden: Tensor) -> Generator[int, None, None]:
        """The tokens of an answer without an end; each runs when the next is asked for."""
        sampling = answer.request.sampling
        if isinstance(self.model, Writer):
            most = answer.limit_tokens - answer.tokens
            yield from self.model.write(hidden, self._cache, sampling, most)
            return
        while True:
            with torch.inference_mode():
                token_id = choose(self.model.logits(hidden), sampling, self._cache.length)
            yield token_id
            hidden = self._decode(token_id)

    def _prefill(self, token_ids: tuple[int, ...]) -> Tensor:
        with memory_for("the prompt"), torch.inference_mode():
            return self.model.prefill(token_ids, self._cache)

    def _decode(self, token_id: int) -> Tensor:
        with memory_for("the next token"), torch.inference_mode():
            return self.model.decode((token_id,), self._cache)


def default_threads() -> int:
    """One core less than this process may use, so the rest of Baton has one; from 1 to 8.

    It is for torch's: the native level has its own, which share a busy core well, and uses all.
    torch's meet after every product and wait for the slowest. Measured on two cores with
    SmolLM2 at int4: on a quiet machine two threads are 1.5 times as fast as one, on a busy one
    (docs/results/2026-11-30-offline-cpu.json) nine times as slow. A node that has a machine to
    itself should be given all its cores.
    """
    return max(1, min(8, core_count() - 1))


def numerics(file: GgufFile, level: str, hardware: str) -> str:
    """Equal labels promise equal texts: the weights, the level, and what computes.

    The processor's or GPU's name is in it because the libraries choose their kernels by it. The
    number of threads is not: results were equal to the bit with one and with two.
    """
    if level == NATIVE:
        level = native_label()
    return f"{file.sha256()[:16]}/{level}/{hardware}/torch {torch.__version__}"
