"""A turn's events in OpenAI's shapes: chunks of a stream, or one whole completion.

Beside `usage` stand two extensions: `pd_timing_ms` {queue, prefill, decode, total} and `tps`
{peak, average, e2e}; in a stream they are in the usage chunk, which comes only on request
(`stream_options.include_usage`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import orjson

from app.chat.events import Delta, Done, Failed
from app.chat.openai_calls import Calls
from app.chat.openai_logprobs import Entry, ShownLogprobs
from app.chat.sse import END_OF_V1, Body, encode_data
from app.chat.story import Told
from app.errors import AppError, to_body

_BY_CODE_STATUS = {"context_length_exceeded": 400, "prompt_too_long": 400, "invalid_grammar": 400}


class AnswerFailedError(AppError):
    """A turn's `failed` event, as an error of the request."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message, retry_after_seconds=5 if failed.retry else None)
        self.code = failed.code
        self.status = _BY_CODE_STATUS.get(failed.code, 503 if failed.retry else 500)
        self.kind = "invalid_request_error" if self.status == 400 else "server_error"


class ServerStoppingError(AppError):
    code = "server_stopping"
    status = 503
    message = "The server was restarted in the middle of this answer. Ask again."

    def __init__(self) -> None:
        super().__init__(retry_after_seconds=5)


class Completion:
    """What the objects of one answer have in common."""

    def __init__(self, generation: str, model: str, logprobs: ShownLogprobs | None = None) -> None:
        """logprobs: where the request asks for them."""
        self._logprobs = logprobs
        self._id = f"chatcmpl-{generation}"
        self._model = model
        self._created = int(time.time())
        self._calls = Calls(generation)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    async def stream(self, told: AsyncGenerator[Told], *, include_usage: bool) -> Body:
        """The chunks, the last one's data being `[DONE]`, also after an error."""
        blank: dict[str, Any] = {"usage": None} if include_usage else {}

        def chunk(delta: dict[str, Any], **ending: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} | ending
            made = self._object("chat.completion.chunk", [choice]) | blank
            return encode_data(orjson.dumps(made))

        first = True
        async for _, event in told:
            if isinstance(event, Delta | Done) and first:
                first = False
                yield chunk({"role": "assistant", "content": ""})
            if isinstance(event, Delta):
                logprobs = self._taken(event)
                for delta in self._deltas(event):
                    yield chunk(delta, logprobs=logprobs)
                    # told once, with the first
                    logprobs = None
            elif isinstance(event, Done):
                if self._logprobs is not None and (rest := self._logprobs.rest()):
                    yield chunk({"content": ""}, logprobs=_shaped(rest))
                reason = self._finish_reason(event)
                yield chunk({}, finish_reason=reason, stop_reason=event.stop_reason)
                if include_usage:
                    made = self._object("chat.completion.chunk", []) | figures(event)
                    yield encode_data(orjson.dumps(made))
            elif isinstance(event, Failed):
                yield _encode_error(AnswerFailedError(event))
        yield END_OF_V1

    async def whole(self, told: AsyncGenerator[Told]) -> dict[str, Any]:
        """The whole answer. Raises AnswerFailedError."""
        texts: dict[str, list[str]] = {"text": [], "reasoning": []}
        entries: list[Entry] = []
        async for _, event in told:
            if isinstance(event, Delta):
                for channel, text in event.pieces:
                    if channel == "tool_call":
                        self._calls.read(text)
                    else:
                        texts[channel].append(text)
                entries += self._logprobs.take(event) if self._logprobs is not None else []
            elif isinstance(event, Failed):
                raise AnswerFailedError(event)
            elif isinstance(event, Done):
                entries += self._logprobs.rest() if self._logprobs is not None else []
                joined = {k: "".join(v) for k, v in texts.items()}
                return self._completion(joined, event, entries)
        # the watcher promises a last event
        raise AppError

    def _deltas(self, piece: Delta) -> list[dict[str, Any]]:
        """What the piece adds to the message. An empty text is told too: its tokens were made."""
        made: list[dict[str, Any]] = []
        for channel, text in piece.pieces:
            if channel == "tool_call":
                made += [{"tool_calls": [call]} for call in self._calls.read(text)]
            elif text or not piece.tail:
                made.append({_FIELDS[channel]: text})
        return made

    def _finish_reason(self, done: Done) -> str:
        reason = finish_reason(done)
        return "tool_calls" if self._calls.made and reason == "stop" else reason

    def _taken(self, piece: Delta) -> dict[str, Any] | None:
        return None if self._logprobs is None else _shaped(self._logprobs.take(piece))

    def _completion(
        self, texts: dict[str, str], done: Done, entries: list[Entry]
    ) -> dict[str, Any]:
        # an answer of calls alone has no text, as OpenAI says it
        content = texts["text"] or (None if self._calls.made else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if texts["reasoning"]:
            message["reasoning_content"] = texts["reasoning"]
        if self._calls.made:
            message["tool_calls"] = self._calls.made
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None if self._logprobs is None else _shaped(entries),
            "finish_reason": self._finish_reason(done),
            "stop_reason": done.stop_reason,
        }
        return self._object("chat.completion", [choice]) | figures(done)


def _encode_error(error: AppError) -> bytes:
    return encode_data(orjson.dumps(to_body(error)))


_FIELDS = {"text": "content", "reasoning": "reasoning_content"}
# what a stream ends with when its server stops
FAREWELL = _encode_error(ServerStoppingError()) + END_OF_V1


def _shaped(entries: list[Entry]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}


def finish_reason(done: Done) -> str:
    """OpenAI knows no "cancelled": an answer cut by its slice is too long, any other has stopped."""
    if done.finish_reason != "cancelled":
        return done.finish_reason
    return "length" if done.stop_reason == "slice_ended" else "stop"


def figures(done: Done) -> dict[str, Any]:
    """`usage` and our two extensions."""
    usage, timing = done.usage, done.timing
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return {
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": usage.get("cached_tokens", 0)},
            "completion_tokens_details": {"reasoning_tokens": usage.get("reasoning_tokens", 0)},
        },
        "pd_timing_ms": {
            name: timing.get(f"{name}_ms", 0.0) for name in ("queue", "prefill", "decode", "total")
        },
        "tps": dict(done.tps),
    }
