"""The OpenAI-shaped API: `/v1/models` and `/v1/chat/completions`.

A caller here cannot come back, so going away (hanging up, streaming or not) ends the answer at
once and frees the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Depends, Header, Path, Request, Response
from starlette.responses import JSONResponse

from app.accounts.caller import Caller, api_caller, counted_api_caller
from app.chat.admission import admit
from app.chat.openai_answer import FAREWELL, Completion, ServerStoppingError
from app.chat.openai_logprobs import ShownLogprobs
from app.chat.openai_request import CompletionIn, chat_messages, refuse_unsupported
from app.chat.prompt import model_of, resolve_pool
from app.chat.sse import Body, SseResponse
from app.chat.stopping import stop_grace_over
from app.chat.turn import Ask, Submitted, abandoning, submit
from app.errors import InvalidRequestError, ModelNotFoundError
from app.parts import Parts, get_parts
from engine.chat_template import template_stop_texts

router = APIRouter(prefix="/v1", tags=["openai"])

CallerOf = Annotated[Caller, Depends(api_caller)]
CountedOf = Annotated[Caller, Depends(counted_api_caller)]
PartsOf = Annotated[Parts, Depends(get_parts)]
_SESSION = r"^[A-Za-z0-9._-]{1,64}$"
SessionHeader = Annotated[str | None, Header(pattern=_SESSION)]
SessionName = Annotated[str, Path(pattern=_SESSION)]
# nobody reads it; the code is nginx's for "the client closed the request"
CLIENT_CLOSED = 499


@router.get("/models")
async def models(_: CallerOf, parts: PartsOf) -> dict[str, Any]:
    return {"object": "list", "data": [_model(name) for name in await _served(parts)]}


@router.get("/models/{name:path}")
async def model(name: str, _: CallerOf, parts: PartsOf) -> dict[str, Any]:
    if name not in await _served(parts):
        raise ModelNotFoundError(param="model")
    return _model(name)


async def _served(parts: Parts) -> list[str]:
    """The models that a node serves, or that somebody still waits for."""
    return [pool.name for pool in await parts.line.pools() if pool.nodes or pool.waiting]


def _model(name: str) -> dict[str, Any]:
    # a pool has no birthday; clients only want a number there
    return {"id": name, "object": "model", "created": 0, "owned_by": "baton"}


@router.post("/chat/completions")
async def complete(
    body: CompletionIn,
    request: Request,
    caller: CountedOf,
    parts: PartsOf,
    x_baton_comments: Annotated[str | None, Header()] = None,
    x_baton_session: SessionHeader = None,
) -> Response:
    """Streaming or blocking. `X-Baton-Comments: off` leaves out the comments that keep a waiting
    stream alive, for clients that cannot skip them. `X-Baton-Session` keeps the node between
    requests of one name; `end` gives it back after this one."""
    refuse_unsupported(body, most_messages=parts.settings.max_messages)
    ask = Ask(
        generation=uuid4().hex,
        model=body.model,
        messages=chat_messages(body.messages),
        settings=body.for_answer(),
        source="api",
        hold=False,
        session=x_baton_session or "",
    )
    if caller.origin is not None and x_baton_session is not None:
        raise InvalidRequestError(
            "All scripts of a site share its publishable key's one seat, so none may keep the node. "
            "Leave X-Baton-Session out, or use a secret key on your server.",
            param="X-Baton-Session",
        )
    if caller.origin is not None:
        await admit(parts, caller)
    logprobs = await _logprobs(parts, ask)
    submitted = await submit(parts, caller, ask)
    completion = Completion(submitted.generation, submitted.pool, logprobs)
    if not body.stream:
        return await _whole(parts, request, submitted, completion)
    include_usage = body.stream_options is not None and body.stream_options.include_usage

    @asynccontextmanager
    async def open_body() -> AsyncGenerator[Body]:
        async with (
            abandoning(parts, submitted) as told,
            aclosing(completion.stream(told, include_usage=include_usage)) as chunks,
        ):
            yield chunks

    return SseResponse(
        open_body, parts.settings, comments=x_baton_comments != "off", farewell=FAREWELL
    )


@router.delete("/sessions/{name}", status_code=204)
async def end_session(name: SessionName, caller: CallerOf, parts: PartsOf) -> None:
    """Give back the node that a session keeps. A session that is over already is no fault."""
    await parts.line.end_session(caller.seat, name)


async def _logprobs(parts: Parts, ask: Ask) -> ShownLogprobs | None:
    """None where the request wants none. Raises like `submit`."""
    choice = ask.settings.choice
    if choice.top_logprobs is None:
        return None
    pool = await resolve_pool(parts.line, ask.model)
    model = await model_of(parts.line, pool)
    stop = (*ask.settings.stop, *template_stop_texts(model.card))
    return ShownLogprobs(model.tokenizer, choice, stop, model.card.stop_token_ids)


async def _whole(
    parts: Parts, request: Request, submitted: Submitted, completion: Completion
) -> Response:
    """Wait for the answer, for the caller to hang up, or for the server's stop, whichever is first.

    Raises ServerStoppingError.
    """
    async with abandoning(parts, submitted) as told:
        answer = asyncio.create_task(completion.whole(told))
        gone = asyncio.create_task(_hung_up(request))
        stopping = asyncio.create_task(stop_grace_over(parts.settings))
        try:
            await asyncio.wait({answer, gone, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return JSONResponse(answer.result())
            if gone.done():
                return Response(status_code=CLIENT_CLOSED)
            raise ServerStoppingError
        finally:
            for task in (answer, gone, stopping):
                task.cancel()
            await asyncio.gather(answer, gone, stopping, return_exceptions=True)


async def _hung_up(request: Request) -> None:
    # the body was read before, so all that can come is the end of the connection
    while (await request.receive())["type"] != "http.disconnect":
        pass
