"""HTTP of the embedded chat: the script, its check, the framed page, the visitor's own API."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import Field

from app.accounts.caller import Caller, address_of, check_origin
from app.accounts.limits import Budget
from app.accounts.models import ApiKey
from app.accounts.origins import site_origin
from app.accounts.wiring import accounts
from app.bodies import Bounded, StrictBody
from app.chat import history
from app.chat.admission import admit
from app.chat.browser import (
    Id,
    PathId,
    Position,
    PresenceIn,
    SettingsIn,
    submitted_of,
    turn_response,
)
from app.chat.story import START
from app.chat.turn import Ask, cancel, submit
from app.embed.page import ROOT, best_language, render
from app.embed.tokens import LASTS_SECONDS
from app.embed.visitors import counted_visitor, renewed, site_key, tokens, visitor
from app.errors import AppError, ForbiddenError, InvalidRequestError, to_response
from app.parts import Parts, get_parts

router = APIRouter(tags=["embed"])

MOST_CHARACTERS = 20_000
VisitorOf = Annotated[Caller, Depends(visitor)]
CountedOf = Annotated[Caller, Depends(counted_visitor)]
PartsOf = Annotated[Parts, Depends(get_parts)]
KeyText = Annotated[str, Query(max_length=200)]


class SessionIn(StrictBody):
    key: str = Field(max_length=200)


class MessageIn(StrictBody):
    role: Literal["user", "assistant"]
    content: str = Field(min_length=1, max_length=MOST_CHARACTERS * 10)


class QuestionIn(StrictBody):
    id: Id
    # the whole conversation, which nobody but the visitor's page keeps; the question last
    messages: Bounded[MessageIn] = Field(min_length=1)
    pool: str | None = Field(default=None, max_length=200)
    settings: SettingsIn = SettingsIn()


# -- for the embedding page -----------------------------------------------------------------------
@router.api_route("/embed.js", methods=["GET", "HEAD"], include_in_schema=False)
async def script() -> Response:
    headers = {
        "Cache-Control": "public, max-age=300",
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    file = ROOT / "static" / "js" / "embed.js"
    return FileResponse(file, media_type="text/javascript", headers=headers)


@router.get("/api/embed/check")
async def check(request: Request, key: KeyText) -> Response:
    """Whether this key works on the asking page. Every page may read the answer, to show it."""
    response = Response(status_code=204)
    try:
        check_origin(await site_key(request, key), _origin(request))
    except AppError as error:
        response = to_response(error)
    response.headers["Access-Control-Allow-Origin"] = "*"
    response.headers["Cache-Control"] = "no-store"
    return response


@router.get("/embed", include_in_schema=False)
async def page(
    request: Request, key: KeyText, lang: Annotated[str, Query(max_length=35)] = ""
) -> Response:
    found = await site_key(request, key)
    origins = [bound.origin for bound in found.origins]
    return render(key, found.name, origins, best_language(lang))


# -- for the page in the frame --------------------------------------------------------------------
@router.post("/api/embed/session")
async def session(body: SessionIn, request: Request, response: Response) -> dict[str, Any]:
    """A token for a visitor; one sent as a bearer is renewed and stays the same visitor."""
    per_minute = get_parts(request).settings.requests_per_minute
    await accounts(request).limits.spend(Budget("embed-session", per_minute), address_of(request))
    key = await site_key(request, body.key)
    _check_asker(request, key)
    claims = await renewed(request, key)
    token = (await tokens(request)).make(claims, time.time())
    response.headers["Cache-Control"] = "no-store"
    return {"token": token, "expires_seconds": LASTS_SECONDS}


@router.post("/api/embed/chat")
async def ask(asked: QuestionIn, caller: CountedOf, parts: PartsOf) -> Response:
    """Put the question in line and stream what becomes of it. The same id again resumes."""
    question = _ask_of(asked, parts.settings.max_messages)
    await admit(parts, caller)
    return turn_response(parts, await submit(parts, caller, question))


@router.get("/api/embed/turns/{generation}/events")
async def events(
    generation: PathId,
    caller: VisitorOf,
    parts: PartsOf,
    after: Annotated[Position | None, Query()] = None,
    last_event_id: Annotated[Position | None, Header()] = None,
) -> Response:
    turn = await history.own_turn(parts.database, caller, generation)
    return turn_response(parts, submitted_of(turn), last_event_id or after or START)


@router.post("/api/embed/turns/{generation}/stop", status_code=204)
async def stop(generation: PathId, caller: VisitorOf, parts: PartsOf) -> None:
    turn = await history.own_turn(parts.database, caller, generation)
    if turn.status == "open":
        await cancel(parts, turn.pool, generation, "stopped")


@router.post("/api/embed/line/presence", status_code=204)
async def presence(body: PresenceIn, caller: VisitorOf, parts: PartsOf) -> None:
    """As for the page's own users."""
    await parts.line.presence(caller.seat, hidden=body.hidden)


def _ask_of(asked: QuestionIn, most_messages: int) -> Ask:
    question = asked.messages[-1]
    if len(asked.messages) > most_messages:
        raise InvalidRequestError(
            f"A conversation has at most {most_messages} messages. Begin a new one.",
            param="messages",
        )
    if question.role != "user" or not question.content.strip():
        raise InvalidRequestError("The last message is the question.", param="messages")
    if len(question.content) > MOST_CHARACTERS:
        raise InvalidRequestError(
            f"A question has at most {MOST_CHARACTERS:,} characters.", param="messages"
        )
    system = asked.settings.system
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": one.role, "content": one.content} for one in asked.messages]
    return Ask(
        generation=asked.id,
        model=asked.pool,
        messages=messages,
        settings=asked.settings.for_answer(),
        source="embed",
        # a visitor asks now and then: the node goes back at once
        hold=False,
    )


def _origin(request: Request) -> str:
    """Where the asking page is from; browsers leave Origin out only when it is our own."""
    return request.headers.get("origin") or _own(request)


def _own(request: Request) -> str:
    return site_origin(request.scope, get_parts(request).settings.public_url)


def _check_asker(request: Request, key: ApiKey) -> None:
    """Our own framed page, or a page of the key's sites. Raises ForbiddenError."""
    origin = request.headers.get("origin")
    may_be_own = origin is None or get_parts(request).settings.public_url is None
    if may_be_own and request.headers.get("sec-fetch-site") == "same-origin":
        return
    if origin is None:
        raise ForbiddenError("Visitors come from the chat's own page.")
    if origin != _own(request):
        check_origin(key, origin)
