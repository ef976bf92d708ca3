"""The key that signs visitors' tokens: 32 random bytes in the database, made once.

There, because every replica must read the tokens of every other, also on another machine.
"""

from __future__ import annotations

import secrets

from sqlalchemy import select

from app.accounts.db import Database, insert_or_ignore
from app.accounts.models import SharedSecret

SECRET_BYTES = 32
NAME = "embed"


async def load_secret(database: Database) -> bytes:
    """Read the secret, or make it; processes that start at once agree on one."""
    read = select(SharedSecret.value).where(SharedSecret.name == NAME)
    async with database.session() as session:
        found = await session.scalar(read)
    if found is None:
        fresh = {"name": NAME, "value": secrets.token_bytes(SECRET_BYTES)}
        async with database.session() as session:
            await insert_or_ignore(session, SharedSecret, [fresh])
        # another process may have been first
        async with database.session() as session:
            found = (await session.scalars(read)).one()
    return found
