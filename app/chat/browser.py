"""What the page calls: ask, watch, stop, the line, conversations. The caller is the session's user.

Every id that comes in is looked up together with its owner; somebody else's is not found.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Response
from pydantic import Field, StringConstraints

from app.accounts.caller import Caller, counted_user, signed_in
from app.accounts.models import Turn
from app.bodies import StrictBody
from app.chat import conversations, history
from app.chat.prompt import AnswerSettings
from app.chat.scribe import settle
from app.chat.sse import Body, SseResponse, encode_event
from app.chat.story import START, Told
from app.chat.turn import Ask, Submitted, cancel, submit, watching
from app.errors import StoreUnavailableError
from app.line.types import SeatView
from app.parts import Parts, get_parts

router = APIRouter(prefix="/api", tags=["chat"])

MAX_QUESTION_CHARACTERS = 200_000
MAX_SYSTEM_CHARACTERS = 50_000
MAX_SEED = 2**63 - 1

Id = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
PathId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]
Position = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,19}-[0-9]{1,19}$")]
CallerOf = Annotated[Caller, Depends(signed_in)]
CountedOf = Annotated[Caller, Depends(counted_user)]
PartsOf = Annotated[Parts, Depends(get_parts)]


class SettingsIn(StrictBody):
    """How to answer; whatever is left out is the model's own recommendation."""

    system: str | None = Field(default=None, max_length=MAX_SYSTEM_CHARACTERS)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=1_000_000)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)

    def for_answer(self) -> AnswerSettings:
        return AnswerSettings(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.max_tokens,
        )


class QuestionIn(StrictBody):
    # chosen by the page, so that sending it again asks nothing twice
    id: Id
    conversation_id: Id | None = None
    question: str = Field(min_length=1, max_length=MAX_QUESTION_CHARACTERS, pattern=r"\S")
    pool: str | None = Field(default=None, max_length=200)
    # the same question once more, at an idle node of another pool; its answer is not kept
    race: bool = False
    settings: SettingsIn = SettingsIn()


class TitleIn(StrictBody):
    title: str = Field(min_length=1, max_length=conversations.MAX_TITLE_CHARACTERS, pattern=r"\S")


# -- asking and watching --------------------------------------------------------------------------
@router.post("/chat")
async def ask(asked: QuestionIn, caller: CountedOf, parts: PartsOf) -> Response:
    """Put a question in line and stream what becomes of it. The same id again resumes."""
    submitted = await submit(parts, caller, await _ask_of(parts, caller, asked))
    return turn_response(parts, submitted)


async def _ask_of(parts: Parts, caller: Caller, asked: QuestionIn) -> Ask:
    earlier = await history.find_turn(parts.database, caller, asked.id)
    conversation_id = earlier.conversation_id if earlier else asked.conversation_id
    messages: list[conversations.Message] = []
    if asked.settings.system:
        messages.append({"role": "system", "content": asked.settings.system})
    if conversation_id:
        # a quick second question must not miss the answer that has just ended
        await settle(parts, conversation_id)
        messages += await conversations.messages_before(
            parts.database,
            caller,
            conversation_id,
            asked.id,
            most=parts.settings.max_messages // 2,
        )
    messages.append({"role": "user", "content": asked.question})
    return Ask(
        generation=asked.id,
        model=asked.pool,
        messages=messages,
        settings=asked.settings.for_answer(),
        source="race" if asked.race else "chat",
        hold=not asked.race,
        race=asked.race,
        question=asked.question,
        conversation_id=None if asked.race else conversation_id,
        params={"system": asked.settings.system} if asked.settings.system else None,
    )


@router.get("/turns/{generation}/events")
async def events(
    generation: PathId,
    caller: CallerOf,
    parts: PartsOf,
    after: Annotated[Position | None, Query()] = None,
    last_event_id: Annotated[Position | None, Header()] = None,
) -> Response:
    """Watch a turn from a position on: `Last-Event-ID`, else `after`, else its beginning."""
    turn = await history.own_turn(parts.database, caller, generation)
    # an EventSource that reconnects keeps its URL and sends the header
    return turn_response(parts, submitted_of(turn), last_event_id or after or START)


@router.post("/turns/{generation}/stop", status_code=204)
async def stop(generation: PathId, caller: CallerOf, parts: PartsOf) -> None:
    """End the answer, or leave the line with this question. What was written stays."""
    turn = await history.own_turn(parts.database, caller, generation)
    if turn.status == "open":
        await cancel(parts, turn.pool, generation, "stopped")


def submitted_of(turn: Turn) -> Submitted:
    return Submitted(turn.generation, turn.pool, turn.conversation_id)


def turn_response(parts: Parts, submitted: Submitted, after: str = START) -> SseResponse:
    """A turn's events as SSE. The reader may leave and come back: the turn does not notice."""

    @asynccontextmanager
    async def open_body() -> AsyncGenerator[Body]:
        async with (
            watching(parts, submitted.pool, submitted.generation, after) as told,
            aclosing(_encoded(told)) as body,
        ):
            yield body

    headers = {"X-Generation-Id": submitted.generation}
    if submitted.conversation_id:
        headers["X-Conversation-Id"] = submitted.conversation_id
    return SseResponse(open_body, parts.settings, headers=headers)


async def _encoded(told: AsyncGenerator[Told]) -> Body:
    async for position, event in told:
        yield encode_event(position, event)


# -- the line -------------------------------------------------------------------------------------
@router.get("/line")
async def line(caller: CallerOf, parts: PartsOf) -> dict[str, Any]:
    """What the caller has in the line, and the lines there are."""
    seat = await parts.line.seat(caller.seat)
    pools = await parts.line.pools()
    return {
        "seat": _seat(seat),
        "pools": [
            {
                "name": pool.name,
                "nodes": pool.nodes,
                "idle_nodes": pool.idle_nodes,
                "waiting": pool.waiting,
            }
            for pool in pools
        ],
    }


def _seat(seat: SeatView) -> dict[str, Any]:
    node = {"name": seat.node.name, "hardware": seat.node.hardware} if seat.node else None
    return {
        "state": seat.state,
        "pool": seat.pool,
        "generation": seat.generation,
        "node": node,
        "slice_left_seconds": seat.slice_left_seconds,
        "idle_left_seconds": seat.idle_left_seconds,
        "certain_seconds": seat.certain_seconds,
        "may_extend": seat.may_extend,
    }


@router.post("/line/extend")
async def extend(caller: CallerOf, parts: PartsOf) -> dict[str, Any]:
    """A new slice for the caller's node, from now on; what the caller has then."""
    await parts.line.extend(caller.seat)
    return {"seat": _seat(await parts.line.seat(caller.seat))}


class PresenceIn(StrictBody):
    hidden: bool


@router.post("/line/presence", status_code=204)
async def presence(body: PresenceIn, caller: CallerOf, parts: PartsOf) -> None:
    """Say whether the page is in front (`hidden: false` also takes a turn that was called)."""
    await parts.line.presence(caller.seat, hidden=body.hidden)


@router.post("/line/leave", status_code=204)
async def leave(caller: CallerOf, parts: PartsOf) -> None:
    """Leave the line, or give the node back."""
    await parts.line.leave(caller.seat)


# -- conversations --------------------------------------------------------------------------------
@router.get("/conversations")
async def list_conversations(caller: CallerOf, parts: PartsOf) -> dict[str, Any]:
    found = await conversations.listed(parts.database, caller)
    return {
        "conversations": [
            {"id": one.id, "title": one.title, "updated_at": one.updated_at.isoformat()}
            for one in found
        ]
    }


@router.get("/conversations/{conversation_id}")
async def show_conversation(
    conversation_id: PathId, caller: CallerOf, parts: PartsOf
) -> dict[str, Any]:
    found, turns = await conversations.shown(parts.database, caller, conversation_id)
    return {"id": found.id, "title": found.title, "turns": [_shown(turn) for turn in turns]}


def _shown(turn: Turn) -> dict[str, Any]:
    error = None
    if turn.error_code:
        error = {"code": turn.error_code, "message": turn.error_message}
    return {
        "generation": turn.generation,
        "pool": turn.pool,
        "question": turn.question,
        "answer": turn.answer,
        "reasoning": turn.reasoning,
        "status": turn.status,
        "finish_reason": turn.finish_reason,
        "stop_reason": turn.stop_reason,
        "error": error,
        "figures": turn.figures,
        "created_at": turn.created_at.isoformat(),
    }


@router.patch("/conversations/{conversation_id}", status_code=204)
async def rename(conversation_id: PathId, title: TitleIn, caller: CallerOf, parts: PartsOf) -> None:
    await conversations.rename(parts.database, caller, conversation_id, title.title)


@router.delete("/conversations/{conversation_id}", status_code=204)
async def remove(conversation_id: PathId, caller: CallerOf, parts: PartsOf) -> None:
    """Delete a conversation with its answers; those still on their way are stopped first."""
    for pool, generation in await conversations.remove(parts.database, caller, conversation_id):
        await _stop_quietly(parts, pool, generation)


async def _stop_quietly(parts: Parts, pool: str, generation: str) -> None:
    """The conversation is deleted already; a node that goes on writes for nobody, and ends."""
    try:
        await cancel(parts, pool, generation, "stopped")
    except StoreUnavailableError:
        return
