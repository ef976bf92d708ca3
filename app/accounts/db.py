"""The SQL database of one process: opened, migrated, and lent out as short sessions.

SQLite (WAL) serves several processes of one machine; Postgres serves many machines. Nothing outside
this file knows which of the two it is.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)

from app.accounts.models import Base
from app.accounts.mounts import network_filesystem
from app.errors import AppError

BUSY_TIMEOUT_MS = 10_000
# any number, the same in every process: it names "Baton's migrations" among advisory locks
_MIGRATION_LOCK = 0x6261746F6E
_DAMAGED = ("SQLITE_NOTADB", "SQLITE_CORRUPT")
_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
}


class DatabaseRefusedError(AppError):
    """The database cannot be used as configured; the process must not start."""

    code = "database_refused"


class Database:
    """Lends sessions. Every session is one transaction: committed at its end, or rolled back."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sessions = async_sessionmaker(engine, expire_on_commit=False)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator[Database]:
        """Make the engine (nothing is read yet) and close all connections at the end.

        Raises DatabaseRefusedError for a URL that cannot be used, e.g. of a SQLite file on a
        network file system.
        """
        engine = _engine(_url(url))
        try:
            yield cls(engine)
        finally:
            await engine.dispose()

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[AsyncSession]:
        """One transaction. Objects stay readable after it."""
        async with self._sessions.begin() as session:
            yield session

    async def forget_deleted(self) -> None:
        """Let what was deleted leave SQLite's files now, not with the next thousand pages written.

        Readers of other processes may put that off for a while. Postgres has its own vacuum.
        """
        if self._engine.dialect.name == "sqlite":
            async with self._engine.connect() as connection:
                await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")

    async def migrate(self) -> None:
        """Bring the tables to this version, one process at a time; does nothing when they are.

        Raises DatabaseRefusedError when a newer version of Baton has migrated this database, or
        when it is a SQLite file that is damaged.
        """
        try:
            async with self._engine.connect() as connection:
                await connection.run_sync(_migrate)
                await connection.commit()
        except (DatabaseError, sqlite3.DatabaseError) as error:
            # as SQLite prepares a connection its errors come bare
            cause = error.orig if isinstance(error, DatabaseError) else error
            if getattr(cause, "sqlite_errorname", None) not in _DAMAGED:
                raise
            raise DatabaseRefusedError(
                f"The database file {self._engine.url.database} is damaged, or is no SQLite database. "
                "Put a backup in its place, or move it away and start with an empty one."
            ) from error


async def insert_or_ignore(
    session: AsyncSession, model: type[Base], rows: Sequence[Mapping[str, Any]]
) -> int:
    """Insert `rows`; those whose key exists already are left as they are. Returns how many were new.

    Both databases spell it `ON CONFLICT DO NOTHING`, each in its own dialect of SQLAlchemy.
    """
    if not rows:
        return 0
    postgres = session.get_bind().dialect.name == "postgresql"
    insert = postgresql.insert(model) if postgres else sqlite.insert(model)
    key = next(iter(model.__table__.primary_key))
    statement = insert.values(list(rows)).on_conflict_do_nothing().returning(key)
    return len((await session.execute(statement)).all())


def _url(text: str) -> URL:
    """With the driver that we use, where the URL names only the database."""
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise DatabaseRefusedError(
            "BATON_DATABASE_URL is no database URL. Write for example "
            "postgresql://user:password@host/baton."
        ) from error
    driver = _DRIVERS.get(url.drivername)
    return url.set(drivername=driver) if driver else url


def _engine(url: URL) -> AsyncEngine:
    if url.get_backend_name() != "sqlite":
        try:
            return create_async_engine(url, pool_pre_ping=True)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            raise DatabaseRefusedError(
                f"The driver for {url.drivername} is not installed. For Postgres: pip install asyncpg."
            ) from error
    if url.database and url.database != ":memory:":
        path = Path(url.database)
        kind = network_filesystem(path)
        if kind:
            raise DatabaseRefusedError(
                f"The database file {path} lies on a network file system ({kind}), where SQLite "
                "cannot lock safely. Put it on a local disk, or set BATON_DATABASE_URL to a "
                "Postgres database."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        # it holds password hashes; the files that SQLite puts beside it get the same mode
        path.touch(mode=0o600)
    engine = create_async_engine(url)
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Per connection: wait for locks, readers beside one writer, foreign keys and deletions that
    mean it (SQLite leaves deleted text in the pages that it frees)."""
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    switch_to_wal(cursor)
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA secure_delete = ON")
    cursor.close()


def switch_to_wal(cursor: Any) -> None:
    """Of two connections that switch a new file at once, one is told "locked" without waiting: the
    busy timeout does not hold for this. The other needs a moment of its own thread, so a short
    sleep here ends it. Later connections find the file switched."""
    deadline_s = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(0.005)
        else:
            return


def _migrate(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        # the write lock of the file is the migrators' lock, and it goes with a killed process
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
    config = Config()
    folder = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    found = set(MigrationContext.configure(connection).get_current_heads())
    if found - known:
        raise DatabaseRefusedError(
            "This database was migrated by a newer version of Baton "
            f"(revision {', '.join(sorted(found - known))}). Install that version, or use a copy "
            "of the database made before the upgrade."
        )
    command.upgrade(config, "head")
