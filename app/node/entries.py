"""What the last entries of an answer say. Pure; shapes as in `app/relay/types.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from app.errors import AppError
from engine.types import (
    EngineError,
    Finished,
    GrammarError,
    ModelFileError,
    OutOfMemoryError,
    Piece,
    PromptTooLongError,
)


def done(
    finished: Finished, finish_reason: str, stop_reason: str | None, queued_ms: float
) -> dict[str, Any]:
    timing = {"queue_ms": queued_ms, **asdict(finished.timing)}
    return {
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "usage": asdict(finished.usage),
        "timing": {name: round(value, 3) for name, value in timing.items()},
        "tps": asdict(finished.speed),
        "accepted": asdict(finished.accepted),
    }


def held(finished: Finished | None, pieces: Sequence[Piece]) -> dict[str, Any] | None:
    """What waited for more tokens, as a `delta` without any; None where there is none."""
    if finished is None or not pieces:
        return None
    (channel, text), *tail = pieces
    t_ms = round(finished.timing.total_ms, 3)
    data: dict[str, Any] = {
        "text": text,
        "channel": channel,
        "n": 0,
        "ids": [],
        "t_ms": t_ms,
        "steps": [],
    }
    return data | {"tail": tail} if tail else data


def failure(error: EngineError | AppError) -> dict[str, Any]:
    """The error's own sentence, a code by its class."""
    match error:
        case AppError():
            code, retry = error.code, False
        case PromptTooLongError():
            code, retry = "prompt_too_long", False
        case GrammarError():
            code, retry = "invalid_grammar", False
        case ModelFileError():
            code, retry = "model_file", False
        case OutOfMemoryError():
            code, retry = "out_of_memory", True
        case _:
            code, retry = "engine_error", True
    return {"code": code, "message": str(error), "retry": retry}
