"""Conversations in SQL: listed, shown, renamed, removed, and as messages for the next prompt.

Every function looks for the conversation together with its owner; another's is not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.accounts.caller import Caller
from app.accounts.db import Database
from app.accounts.models import Conversation, Turn
from app.chat.sql import session_of, storable
from app.errors import NotFoundError

Message = dict[str, Any]

TITLE_CHARACTERS = 60
MAX_TITLE_CHARACTERS = 200
MAX_LISTED = 500


async def messages_before(
    database: Database, caller: Caller, conversation_id: str, generation: str, *, most: int
) -> list[Message]:
    """What was said in a conversation, as chat messages; at most the last `most` turns.

    Turns without any answer are left out, question and all, because templates want the speakers
    to alternate; so is the turn `generation` itself, and what came after it. Raises NotFoundError.
    """
    async with session_of(database) as session:
        await own_conversation(session, caller, conversation_id)
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


async def listed(database: Database, caller: Caller) -> Sequence[Conversation]:
    """The caller's conversations, the latest first; at most `MAX_LISTED`."""
    query = (
        select(Conversation)
        .where(Conversation.user_id == caller.user_id)
        .order_by(Conversation.updated_at.desc(), Conversation.id)
        .limit(MAX_LISTED)
    )
    async with session_of(database) as session:
        return (await session.scalars(query)).all()


async def shown(
    database: Database, caller: Caller, conversation_id: str
) -> tuple[Conversation, Sequence[Turn]]:
    """One conversation and its turns, the oldest first. Raises NotFoundError."""
    query = select(Turn).where(Turn.conversation_id == conversation_id).order_by(Turn.created_at)
    async with session_of(database) as session:
        found = await own_conversation(session, caller, conversation_id)
        return found, (await session.scalars(query)).all()


async def rename(database: Database, caller: Caller, conversation_id: str, title: str) -> None:
    """Raises NotFoundError."""
    async with session_of(database) as session:
        found = await own_conversation(session, caller, conversation_id)
        found.title = _one_line(title)[:MAX_TITLE_CHARACTERS]


async def remove(database: Database, caller: Caller, conversation_id: str) -> list[tuple[str, str]]:
    """Delete a conversation with its turns. Returns (pool, generation) of those not yet ended, for
    the caller to cancel. Raises NotFoundError."""
    async with session_of(database) as session:
        found = await own_conversation(session, caller, conversation_id)
        running = await _open_turns_of(session, conversation_id)
        await session.delete(found)
    return running


async def own_conversation(
    session: AsyncSession, caller: Caller, conversation_id: str
) -> Conversation:
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
    return storable(" ".join(text.split()))


async def open_turns_of(database: Database, conversation_id: str) -> list[tuple[str, str]]:
    """(pool, generation) of a conversation's turns that have no end in SQL."""
    async with session_of(database) as session:
        return await _open_turns_of(session, conversation_id)


async def _open_turns_of(session: AsyncSession, conversation_id: str) -> list[tuple[str, str]]:
    query = select(Turn.pool, Turn.generation).where(
        Turn.conversation_id == conversation_id, Turn.status == "open"
    )
    return [(pool, generation) for pool, generation in (await session.execute(query)).all()]
