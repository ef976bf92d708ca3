"""Turns in SQL: what was asked, what was answered, what it cost.

A turn is written before its question joins the line and ended exactly once, by whoever takes its
end from the store first (`app/chat/scribe.py`). Texts of API and embed turns are never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from app.accounts.caller import Caller
from app.accounts.db import Database
from app.accounts.models import Conversation, Turn, TurnSource, new_id, now
from app.chat.conversations import own_conversation, title_from
from app.chat.sql import session_of, storable
from app.errors import NotFoundError
from app.relay.types import Record

LOST_CODE = "turn_lost"
LOST_MESSAGE = "This question was lost in a failure before it was answered. Ask again."


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A question on its way into SQL and then into the line."""

    generation: str
    source: TurnSource
    pool: str
    question: str
    params: Mapping[str, Any]
    # None: a chat turn begins a new conversation; API and embed turns have none
    conversation_id: str | None = None


async def find_turn(database: Database, caller: Caller, generation: str) -> Turn | None:
    """The caller's turn; None if there is none.

    Raises NotFoundError for a turn of somebody else, as if it did not exist.
    """
    async with session_of(database) as session:
        turn = await session.get(Turn, generation)
    if turn is not None and turn.seat != caller.seat:
        raise NotFoundError
    return turn


async def own_turn(database: Database, caller: Caller, generation: str) -> Turn:
    """Raises NotFoundError when the caller has no such turn."""
    turn = await find_turn(database, caller, generation)
    if turn is None:
        raise NotFoundError
    return turn


async def turn_by_id(database: Database, generation: str) -> Turn | None:
    """For the turn's own watcher, whose right to see it was checked before."""
    async with session_of(database) as session:
        return await session.get(Turn, generation)


async def begin(database: Database, caller: Caller, new: NewTurn) -> Turn:
    """Write an open turn; a chat turn without a conversation begins one.

    A repeat returns the turn as it is. Raises NotFoundError for a conversation or a turn that is
    somebody else's.
    """
    try:
        async with session_of(database) as session:
            conversation_id = new.conversation_id
            if new.source == "chat":
                conversation_id = await _conversation_for(session, caller, new)
            turn = Turn(
                generation=new.generation,
                conversation_id=conversation_id,
                user_id=caller.user_id,
                seat=caller.seat,
                key_id=caller.key_id,
                source=new.source,
                pool=new.pool,
                question=storable(new.question) if new.source == "chat" else "",
                params=dict(new.params),
            )
            session.add(turn)
        return turn
    except IntegrityError:
        return await own_turn(database, caller, new.generation)


async def _conversation_for(session: AsyncSession, caller: Caller, new: NewTurn) -> str:
    if new.conversation_id is None:
        conversation = Conversation(
            id=new_id(), user_id=caller.user_id, title=title_from(new.question)
        )
        session.add(conversation)
        await session.flush()
        return conversation.id
    conversation = await own_conversation(session, caller, new.conversation_id)
    conversation.updated_at = now()
    return conversation.id


async def withdraw(database: Database, turn: Turn) -> None:
    """Take back a turn that the line refused, and the conversation if it was its only turn."""
    async with session_of(database) as session:
        await session.execute(delete(Turn).where(Turn.generation == turn.generation))
        others = select(Turn.generation).where(Turn.conversation_id == turn.conversation_id)
        if turn.conversation_id and (await session.scalar(others.limit(1))) is None:
            await session.execute(
                delete(Conversation).where(Conversation.id == turn.conversation_id)
            )


async def finish(database: Database, record: Record) -> None:
    """Write a turn's end once; a turn that has ended, or is not ours, stays as it is."""
    data = record.last.data
    done = record.last.kind == "done"
    values: dict[str, Any] = {
        "status": "done" if done else "failed",
        "ended_at": datetime.fromtimestamp(record.ended_at_ms / 1000, UTC),
    }
    if done:
        values["finish_reason"] = data["finish_reason"]
        values["stop_reason"] = data.get("stop_reason")
        values["figures"] = {
            name: data.get(name) for name in ("usage", "timing", "tps", "accepted")
        }
    else:
        values["error_code"] = data["code"]
        values["error_message"] = storable(data["message"])
    if record.moved is not None:
        from_token, exact = record.moved
        moved = {"from": from_token, "exact": exact}
        values["figures"] = {**values.get("figures", {}), "moved": moved}
    still_open = (Turn.generation == record.generation, Turn.status == "open")
    async with session_of(database) as session:
        source = await session.scalar(select(Turn.source).where(*still_open))
        if source == "chat":
            values["answer"] = storable(record.text)
            values["reasoning"] = storable(record.reasoning)
        await session.execute(update(Turn).where(*still_open).values(**values))


async def lose(database: Database, generation: str) -> None:
    """End a turn of which the store knows nothing any more."""
    async with session_of(database) as session:
        await session.execute(
            update(Turn)
            .where(Turn.generation == generation, Turn.status == "open")
            .values(
                status="failed", error_code=LOST_CODE, error_message=LOST_MESSAGE, ended_at=now()
            )
        )


async def open_turns(
    database: Database, *, older_than_seconds: float, most: int
) -> list[tuple[str, str]]:
    """(pool, generation) of turns still open after so long, the oldest first."""
    until = now() - timedelta(seconds=older_than_seconds)
    query = (
        select(Turn.pool, Turn.generation)
        .where(Turn.status == "open", Turn.created_at < until)
        .order_by(Turn.created_at)
        .limit(most)
    )
    async with session_of(database) as session:
        return [(pool, generation) for pool, generation in (await session.execute(query)).all()]


async def open_turns_of_key(database: Database, key_id: str) -> list[tuple[str, str]]:
    """(pool, generation) of what an API key asked and what has not ended."""
    query = select(Turn.pool, Turn.generation).where(Turn.status == "open", Turn.key_id == key_id)
    async with session_of(database) as session:
        return [(pool, generation) for pool, generation in (await session.execute(query)).all()]


async def turns_in_store(
    database: Database, user_id: str, *, kept_seconds: float
) -> list[tuple[str, str]]:
    """(pool, generation) of an account's turns whose texts the store may still have."""
    since = now() - timedelta(seconds=kept_seconds)
    query = select(Turn.pool, Turn.generation).where(
        Turn.user_id == user_id, or_(Turn.ended_at.is_(None), Turn.ended_at >= since)
    )
    async with session_of(database) as session:
        return [(pool, generation) for pool, generation in (await session.execute(query)).all()]
