"""The first administrator: a token printed at the start, good for one sign-up."""

from __future__ import annotations

from sqlalchemy import delete, exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.accounts.db import Database, insert_or_ignore
from app.accounts.models import FirstStart, User
from app.accounts.secrets import digest, new_token
from app.errors import ForbiddenError


async def first_start_token(database: Database) -> str | None:
    """A fresh token while there is no administrator, None once there is one.

    Only its hash is stored; each call makes the token of the call before worthless.
    """
    async with database.session() as session:
        if await session.scalar(select(exists().where(User.is_admin))):
            await session.execute(delete(FirstStart))
            return None
        token = new_token()
        # two processes may start at once: the row is made by one, the hash is the last one's
        await insert_or_ignore(session, FirstStart, [{"id": 1, "token_hash": digest(token)}])
        await session.execute(update(FirstStart).values(token_hash=digest(token)))
        return token


async def use_token(session: AsyncSession, token: str) -> None:
    """Use the token up within the caller's transaction.

    Raises ForbiddenError if it is not valid, or if there is an administrator already.
    """
    used = delete(FirstStart).where(FirstStart.token_hash == digest(token))
    is_valid = bool((await session.execute(used.returning(FirstStart.id))).all())
    if not is_valid or await session.scalar(select(exists().where(User.is_admin))):
        raise ForbiddenError(
            "This administrator link is not valid any more. While there is no "
            "administrator, Baton prints a new one at each start."
        )


async def forget_token(session: AsyncSession) -> None:
    """There is an administrator from this transaction on, so the printed link must open nothing."""
    await session.execute(delete(FirstStart))
