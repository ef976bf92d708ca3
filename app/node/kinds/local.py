"""The engine on this machine, in a thread of its own.

Everything that touches the engine runs on that one thread: loading, generating, forgetting and
closing never overlap, and the event loop stays free. Torch is imported there too, when the node
opens.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from app.node.kinds.feed import Feed, settled
from app.work import Work
from engine.types import EngineError, Event, GenerateRequest, ModelCard

if TYPE_CHECKING:
    from engine.engine import Engine

T = TypeVar("T")

log = structlog.get_logger(__name__)

# stands for the model that comes with Baton, whose file name says more than people want to read
DEMO = "demo"
DEMO_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class LocalModel:
    """What the engine loads."""

    # a GGUF file; "demo": the small model that comes with Baton
    path: str = DEMO
    # which kernels: "auto" chooses the fastest that this machine has
    level: str = "auto"
    # "cpu", "cuda", or "auto": a CUDA device if there is one
    device: str = "auto"
    # CPU threads; None: as many as the machine has cores
    threads: int | None = None
    # public name; None: the one that the file states
    name: str | None = None
    # a smaller model's file, same vocabulary: it guesses tokens ahead for this one to check
    drafter: str | None = None


class LocalKind:
    """A node kind that runs our own engine. See `app/node/kinds/base.py`."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._engine: Engine | None = None

    async def open(self) -> ModelCard:
        """Raises ModelFileError, OutOfMemoryError or another EngineError."""
        self._engine = await self._on_thread(self._load)
        return self._engine.card

    def generate(self, work: Work, cancel: threading.Event) -> AsyncGenerator[Event, None]:
        request = GenerateRequest(
            prompt_ids=work.prompt_ids,
            max_tokens=work.max_tokens,
            sampling=work.sampling,
            stop=work.stop,
            resume_ids=work.resume_ids,
        )
        return self._generate(request, cancel)

    async def forget(self) -> None:
        await self._on_thread(self._opened().forget)

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await self._on_thread(engine.close)
        self._thread.shutdown(wait=False)

    async def _generate(
        self, request: GenerateRequest, cancel: threading.Event
    ) -> AsyncGenerator[Event, None]:
        engine = self._opened()

        def make() -> Iterator[Event]:
            return engine.generate(request, cancel)

        feed = Feed(self._thread, make, cancel)
        try:
            async with aclosing(feed.read()) as events:
                async for event in events:
                    yield event
        except EngineError:
            raise
        except Exception as error:
            raise _unexpected(error) from error

    def _load(self) -> Engine:
        # torch comes in here, and takes seconds
        from engine.demo_model import demo_model_path
        from engine.engine import Engine
        from engine.kernels import LEVELS
        from engine.runtime.device import DEVICES

        model = self._model
        if model.device not in DEVICES:
            raise EngineError(
                f"There is no device {model.device!r}. Choose one of {', '.join(DEVICES)}."
            )
        if model.level not in ("auto", *LEVELS):
            raise EngineError(
                f"There is no kernel level {model.level!r}. Choose auto, {', '.join(LEVELS)}."
            )
        path, name = model.path, model.name
        if path == DEMO:
            path, name = str(demo_model_path()), name or DEMO_NAME
        return Engine.load(
            path,
            level=model.level,
            threads=model.threads,
            name=name,
            device=model.device,
            drafter=model.drafter,
        )

    def _opened(self) -> Engine:
        if self._engine is None:
            raise EngineError("The model is not loaded. Restart this node.")
        return self._engine

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """Run `work` on the engine's thread, to its end even if the caller is cancelled."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        await settled(running)
        try:
            return running.result()
        except EngineError:
            raise
        except Exception as error:
            raise _unexpected(error) from error


def _unexpected(error: Exception) -> EngineError:
    """A fault nobody foresaw: the whole story for the log, a sentence for the person."""
    log.error("engine fault", exc_info=error)
    return EngineError(
        "The engine met an unexpected fault. Trying again may help; "
        "the node's log holds the details for its operator."
    )
