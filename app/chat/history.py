"""Conversations and turns in SQL: what was asked, what was answered, what it cost.

A turn is written before its question joins the line and ended exactly once, by whoever takes its
end from the store first (`app/chat/scribe.py`). Texts of API and embed turns are never stored.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession

from app.accounts.caller import Caller
from app.accounts.db import Database
from app.accounts.models import Conversation, Turn, TurnSource, new_id, now
from app.errors import AppError, NotFoundError
from app.relay.types import Record

Message = dict[str, Any]

TITLE_CHARACTERS = 60
MAX_TITLE_CHARACTERS = 200
MAX_LISTED = 500

LOST_CODE = "turn_lost"
LOST_MESSAGE = "This question was lost in a failure before it was answered. Ask again."


class DatabaseUnavailableError(AppError):
    code = "database_unavailable"
    status = 503
    message = "The database is out of reach for a moment. Try again in a few seconds."

    def __init__(self) -> None:
        super().__init__(retry_after_seconds=5)


@asynccontextmanager
async def session_of(database: Database) -> AsyncGenerator[AsyncSession]:
    """One transaction. Raises DatabaseUnavailableError, and IntegrityError as SQLAlchemy's own."""
    try:
        async with database.session() as session:
            yield session
    except IntegrityError:
        raise
    except (DBAPIError, PoolTimeoutError, OSError) as error:
        raise DatabaseUnavailableError from error


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


# -- turns ----------------------------------------------------------------------------------------
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
                source=new.source,
                pool=new.pool,
                question=_storable(new.question) if new.source == "chat" else "",
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
    conversation = await _own(session, caller, new.conversation_id)
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
        values["error_message"] = data["message"]
    still_open = (Turn.generation == record.generation, Turn.status == "open")
    async with session_of(database) as session:
        source = await session.scalar(select(Turn.source).where(*still_open))
        if source == "chat":
            values["answer"] = _storable(record.text)
            values["reasoning"] = _storable(record.reasoning)
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


async def open_turns_of(database: Database, conversation_id: str) -> list[tuple[str, str]]:
    """(pool, generation) of a conversation's turns that have no end in SQL."""
    async with session_of(database) as session:
        return await _open_turns_of(session, conversation_id)


async def _open_turns_of(session: AsyncSession, conversation_id: str) -> list[tuple[str, str]]:
    query = select(Turn.pool, Turn.generation).where(
        Turn.conversation_id == conversation_id, Turn.status == "open"
    )
    return [(pool, generation) for pool, generation in (await session.execute(query)).all()]


# -- conversations --------------------------------------------------------------------------------
async def messages_before(
    database: Database, caller: Caller, conversation_id: str, generation: str, *, most: int
) -> list[Message]:
    """What was said in a conversation, as chat messages; at most the last `most` turns.

    Turns without any answer are left out, question and all, because templates want the speakers
    to alternate; so is the turn `generation` itself, and what came after it. Raises NotFoundError.
    """
    async with session_of(database) as session:
        await _own(session, caller, conversation_id)
        query = (
            select(Turn)
            .where(Turn.conversation_id == conversation_id, Turn.answer != "")
            .order_by(Turn.created_at.desc())
            .limit(most)
        )
        this = await session.get(Turn, generation)
        if this is not None:
            query = query.where(Turn.created_at < this.created_at)
        turns = (await session.scalars(query)).all()
    messages: list[Message] = []
    for turn in reversed(turns):
        messages.append({"role": "user", "content": turn.question})
        messages.append({"role": "assistant", "content": turn.answer})
    return messages


async def conversations(database: Database, caller: Caller) -> Sequence[Conversation]:
    """The caller's conversations, the latest first; at most `MAX_LISTED`."""
    query = (
        select(Conversation)
        .where(Conversation.user_id == caller.user_id)
        .order_by(Conversation.updated_at.desc(), Conversation.id)
        .limit(MAX_LISTED)
    )
    async with session_of(database) as session:
        return (await session.scalars(query)).all()


async def conversation(
    database: Database, caller: Caller, conversation_id: str
) -> tuple[Conversation, Sequence[Turn]]:
    """One conversation and its turns, the oldest first. Raises NotFoundError."""
    query = select(Turn).where(Turn.conversation_id == conversation_id).order_by(Turn.created_at)
    async with session_of(database) as session:
        found = await _own(session, caller, conversation_id)
        return found, (await session.scalars(query)).all()


async def rename(database: Database, caller: Caller, conversation_id: str, title: str) -> None:
    """Raises NotFoundError."""
    async with session_of(database) as session:
        found = await _own(session, caller, conversation_id)
        found.title = _one_line(title)[:MAX_TITLE_CHARACTERS]


async def remove(database: Database, caller: Caller, conversation_id: str) -> list[tuple[str, str]]:
    """Delete a conversation with its turns. Returns (pool, generation) of those not yet ended, for
    the caller to cancel. Raises NotFoundError."""
    async with session_of(database) as session:
        found = await _own(session, caller, conversation_id)
        running = await _open_turns_of(session, conversation_id)
        await session.delete(found)
    return running


async def _own(session: AsyncSession, caller: Caller, conversation_id: str) -> Conversation:
    found = await session.scalar(
        select(Conversation).where(
            Conversation.id == conversation_id, Conversation.user_id == caller.user_id
        )
    )
    if found is None:
        raise NotFoundError("There is no such conversation.")
    return found


def title_from(question: str) -> str:
    """The first words of a question, for the list of conversations."""
    line = _one_line(question)
    if len(line) <= TITLE_CHARACTERS:
        return line
    cut = line[:TITLE_CHARACTERS]
    # at a space if one is near: Chinese and Japanese have none
    words = cut.rpartition(" ")[0]
    return (words if len(words) > TITLE_CHARACTERS // 2 else cut) + "…"


def _one_line(text: str) -> str:
    return _storable(" ".join(text.split()))


def _storable(text: str) -> str:
    """Postgres takes no NUL in a text."""
    return text.replace("\0", "\ufffd")
