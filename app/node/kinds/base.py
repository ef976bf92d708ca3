"""What a node can be made of. A new kind is one file here and one line in `NODE_KINDS`."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from typing import Protocol

from app.work import Work
from engine.types import Event, ModelCard


class NodeKind(Protocol):
    """One backend. All methods run on the node's event loop and must not block it."""

    async def open(self) -> ModelCard:
        """Load what is needed and say what is served. Raises EngineError with a sentence."""
        ...

    def generate(self, work: Work, cancel: threading.Event) -> AsyncGenerator[Event, None]:
        """Reading.., Step.., exactly one Finished; or raises EngineError.

        `cancel` is looked at between steps: soon after it is set, Finished("cancelled") comes.
        With `work.resume_ids` the answer goes on behind them; `engine/types.py` says what then
        counts and what is told.
        """
        ...

    async def forget(self) -> None:
        """Wipe what was kept of the last seat (KV cache, texts)."""
        ...

    async def close(self) -> None: ...
