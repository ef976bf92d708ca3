"""SQL sessions of this room, with one error for "out of reach"."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession

from app.accounts.db import Database
from app.errors import AppError


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


def storable(text: str) -> str:
    """Postgres takes no NUL in a text."""
    return text.replace("\0", "\ufffd")
