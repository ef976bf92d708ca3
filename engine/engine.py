"""The loop: read the prompt in chunks, write token by token, say what it took.

    generate -> _read_prompt (prefill, Reading events) -> _write (decode, Step events) -> Finished

_write goes round: choose from the rows of the last pass, tell, draft, run the next pass. A pass is
the token that was chosen last and the drafts behind it, a row each (engine/speculation).

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
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from engine import loading
from engine.answer import Answer
from engine.chooser import Chooser
from engine.loading import CHUNK_TOKENS
from engine.matching import Grammars
from engine.memory import memory_for
from engine.models import Model, Writer
from engine.speculation.director import Director
from engine.stopping import StopText
from engine.tokenizer import Tokenizer
from engine.types import (
    EngineError,
    Event,
    GenerateRequest,
    ModelCard,
    PromptTooLongError,
    Reading,
    Step,
)


class Engine:
    """A loaded model with the cache of one lease. Use `load`."""

    def __init__(
        self,
        model: Model,
        card: ModelCard,
        chunk_tokens: int = CHUNK_TOKENS,
        director: Director | None = None,
    ) -> None:
        self.card = card
        self.model = model
        self._chunk_tokens = chunk_tokens
        self._director = (director if model.pass_rows > 1 else None) or Director()
        self._tokenizer = Tokenizer.from_card(card)
        self._vocabulary = self._tokenizer.vocab_size
        self._grammars = Grammars(self._tokenizer, card.stop_token_ids)
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
        speculation: bool = True,
        drafter: str | Path | None = None,
    ) -> Engine:
        """Open a GGUF file and pack its weights.

        `level` is one of `engine.kernels.LEVELS`, or "auto" for `best_level`. `threads` is torch's,
        for the whole process (see `default_threads`), and the native level's own (all cores by
        default). `context_tokens` shortens the model's context, never lengthens it. `device` is one
        of `engine.runtime.device.DEVICES`; "auto" takes the GPU if there is one that can serve this
        model at this level. `drafter` is the file of a smaller model with the same vocabulary that
        guesses tokens ahead (engine/speculation); without `speculation` nobody does.

        Raises ModelFileError (missing, damaged, unknown), OutOfMemoryError,
        NativeUnavailableError, EngineError for a device that cannot or a drafter of another
        vocabulary, and ValueError for a level or device that does not exist.
        """
        loaded = loading.load(
            path,
            level=level,
            threads=threads,
            context_tokens=context_tokens,
            name=name,
            device=device,
        )
        director = loading.director(loaded, drafter, threads) if speculation else None
        return cls(loaded.model, loaded.card, chunk_tokens or loaded.chunk_tokens, director)

    def generate(
        self, request: GenerateRequest, cancel: threading.Event
    ) -> Generator[Event, None, None]:
        """Answer one request: Reading at least once, Step per pass, one Finished last.

        `cancel` is looked at between chunks and between steps; a cancelled answer ends with what
        was made. Raises PromptTooLongError, GrammarError, OutOfMemoryError, and EngineError when the engine is
        busy or closed, or the tokens are none of this model; the engine stays usable.
        """
        self._take()
        try:
            answer = self._admit(request, cancel)
            if answer.is_over:
                # the other node died between the last token and the end
                yield answer.reading(answer.cached_tokens)
                yield answer.finished(self._director.drafting_ms)
                return
            hidden = yield from self._read_prompt(answer)
            if hidden is not None:
                hidden = yield from self._reread(answer, hidden)
            if hidden is not None:
                yield from self._write(answer, hidden)
            yield answer.finished(self._director.drafting_ms)
        finally:
            self._in_use.release()

    def forget(self) -> None:
        """Wipe the cache: what the next seat asks must find nothing of this one."""
        self._take()
        try:
            with torch.inference_mode():
                self._cache.wipe()
                self._director.forget()
        finally:
            self._in_use.release()

    def close(self) -> None:
        """Wipe the cache and refuse further work."""
        if not self._closed:
            self.forget()
            self._closed = True
            self._director.close()
            self.model.close()

    def _take(self) -> None:
        if self._closed:
            raise EngineError("The engine is closed. Load the model again.")
        if not self._in_use.acquire(blocking=False):
            raise EngineError("The engine answers one request at a time. Wait for the other one.")

    def _admit(self, request: GenerateRequest, cancel: threading.Event) -> Answer:
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
        answer = Answer(
            request,
            cancel,
            cached_tokens=self._cache.keep_prefix(request.prompt_ids),
            limit_tokens=min(request.max_tokens, context - prompt_tokens),
            chooser=Chooser.of(request, self.card, self._grammars),
            decoder=self._tokenizer.decoder(request.prompt_ids),
            stops=StopText(request.stop),
        )
        for token_id in request.resume_ids:
            if answer.finish_reason == "stop" or not 0 <= token_id < self._vocabulary:
                raise EngineError(
                    "What is written of this answer does not come from this model, so it cannot be "
                    "continued here. Ask again."
                )
            answer.take(token_id)
        return answer

    def _read_prompt(self, answer: Answer) -> Generator[Reading, None, Tensor | None]:
        """Prefill what is not cached. Returns the last token's hidden state, None if cancelled."""
        prompt_ids = answer.request.prompt_ids
        yield answer.reading(answer.cached_tokens)
        hidden = None
        for start in range(answer.cached_tokens, len(prompt_ids), self._chunk_tokens):
            if not answer.goes_on():
                return None
            hidden = self._prefill(prompt_ids[start : start + self._chunk_tokens])
            yield answer.reading(self._cache.length)
        self._director.begin(prompt_ids, answer.request.sampling)
        return hidden

    def _reread(self, answer: Answer, hidden: Tensor) -> Generator[Reading, None, Tensor | None]:
        """Decode the tokens to continue from. Returns like `_read_prompt`."""
        for token_id in answer.request.resume_ids:
            if not answer.goes_on():
                return None
            self._director.extend((token_id,), hidden)
            hidden = self._decode((token_id,))
            yield answer.reading(self._cache.length)
        return hidden

    def _write(self, answer: Answer, hidden: Tensor) -> Iterator[Step]:
        """Decode until a stop token, a stop text, the limit, or cancel."""
        if not answer.goes_on():
            return
        if isinstance(self.model, Writer) and answer.chooser.is_plain:
            yield from self._follow(self.model, answer, hidden)
            return
        drafts: list[int] = []
        logits = self._score(hidden)
        while True:
            step = self._choose(answer, logits, drafts)
            yield step
            if not answer.goes_on():
                return
            self._director.extend(step.token_ids, hidden[: len(step.token_ids)])
            # never more than the answer can still take
            most = min(self.model.pass_rows, answer.limit_tokens - answer.tokens) - 1
            drafts = self._director.draft(most)
            start = time.perf_counter()
            hidden = self._decode((step.token_ids[-1], *drafts))
            logits = self._score(hidden)
            self._director.passed(len(hidden), (time.perf_counter() - start) * 1000)

    def _follow(self, model: Writer, answer: Answer, hidden: Tensor) -> Iterator[Step]:
        """The tokens of a model that chooses them itself, in the same way."""
        most = answer.limit_tokens - answer.tokens
        written = model.write(hidden, self._cache, answer.request.sampling, most)
        with closing(written) as tokens:
            for token_id in tokens:
                yield answer.step((token_id,), answer.take(token_id))
                if not answer.goes_on():
                    return

    def _choose(self, answer: Answer, logits: Tensor, drafts: list[int]) -> Step:
        """The tokens that one pass gives: row by row, while the next row's draft was right.

        logits [1 + K, V] behind the last token and each draft. The cache keeps what was right.
        """
        position = self._cache.length - len(drafts)
        chosen: list[int] = []
        text = ""
        with torch.inference_mode():
            for row in logits:
                token_id = answer.choose(row, position + len(chosen))
                text += answer.take(token_id)
                chosen.append(token_id)
                if answer.is_over or drafts[len(chosen) - 1 : len(chosen)] != [token_id]:
                    break
        self._cache.truncate(position + len(chosen) - 1)
        return answer.step(tuple(chosen), text)

    def _prefill(self, token_ids: Sequence[int]) -> Tensor:
        with memory_for("the prompt"), torch.inference_mode():
            return self.model.prefill(token_ids, self._cache)

    def _decode(self, token_ids: Sequence[int]) -> Tensor:
        with memory_for("the next token"), torch.inference_mode():
            return self.model.decode(token_ids, self._cache)

    def _score(self, hidden: Tensor) -> Tensor:
        """hidden [T, D] -> [T, V] float32."""
        with memory_for("the next token"), torch.inference_mode():
            return self.model.logits(hidden)
