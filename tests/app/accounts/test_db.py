"""The database: migrations, transactions, times, rows that go together."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import sys
from datetime import UTC, datetime, timedelta, timezone
from importlib.resources import files
from io import StringIO
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, func, select
from sqlalchemy.exc import StatementError

from app.accounts.db import Database, DatabaseRefusedError, insert_or_ignore, switch_to_wal
from app.accounts.models import (
    ApiKey,
    Base,
    Conversation,
    FirstStart,
    KeyOrigin,
    SignIn,
    Turn,
    User,
    now,
)
from app.accounts.mounts import network_filesystem

MIGRATE = """
import asyncio, sys
from app.accounts.db import Database
async def main():
    async with Database.open(sys.argv[1]) as database:
        await database.migrate()
asyncio.run(main())
"""


def url(folder: Path) -> str:
    return f"sqlite+aiosqlite:///{folder}/baton.db"


def a_user(name: str = "eva") -> User:
    return User(name=name, name_key=name, password_hash="-")


async def test_migrating_an_empty_database_makes_exactly_the_tables_of_the_models(tmp_path: Path):
    async with Database.open(url(tmp_path)) as database:
        await database.migrate()

    def differences(connection: Connection) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), Base.metadata)

    engine = create_engine(f"sqlite:///{tmp_path}/baton.db")
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()


async def test_a_second_migration_changes_nothing(database: Database, tmp_path: Path):
    async with database.session() as session:
        session.add(a_user())
    await database.migrate()
    async with database.session() as session:
        assert await session.scalar(select(func.count()).select_from(User)) == 1


async def test_two_processes_may_migrate_at_once(tmp_path: Path):
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE, url(tmp_path), stderr=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    outputs = await asyncio.gather(*(process.communicate() for process in started))
    assert [process.returncode for process in started] == [0, 0], outputs
    async with Database.open(url(tmp_path)) as database, database.session() as session:
        assert await session.scalar(select(func.count()).select_from(User)) == 0


async def test_a_migration_waits_for_the_one_before(tmp_path: Path):
    """Two tasks of one process: the loser finds the work done and is content."""
    async with Database.open(url(tmp_path)) as one, Database.open(url(tmp_path)) as other:
        await asyncio.gather(one.migrate(), other.migrate())


@pytest.mark.parametrize("fault", ["database is locked", "disk I/O error"])
def test_only_a_lock_is_waited_out_when_a_new_file_is_switched_to_wal(fault: str):
    """SQLite answers "locked" at once when another connection switches the same file; this cannot
    be brought about reliably, so a cursor plays it."""

    class Cursor:
        refusals = 2

        def __init__(self) -> None:
            self.said: list[str] = []

        def execute(self, statement: str) -> None:
            self.said.append(statement)
            if len(self.said) <= self.refusals:
                raise sqlite3.OperationalError(fault)

    cursor = Cursor()
    if fault == "database is locked":
        switch_to_wal(cursor)
        assert cursor.said == ["PRAGMA journal_mode = WAL"] * 3
    else:
        with pytest.raises(sqlite3.OperationalError, match=fault):
            switch_to_wal(cursor)


async def test_a_database_of_a_newer_version_is_refused_with_a_sentence(
    database: Database, tmp_path: Path
):
    with sqlite3.connect(tmp_path / "baton.db") as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(DatabaseRefusedError, match=r"newer version of Baton .*9999"):
        await database.migrate()


async def test_a_failed_session_leaves_nothing_behind(database: Database):
    async def fail_half_way() -> None:
        async with database.session() as session:
            session.add(a_user())
            await session.flush()
            raise LookupError

    with pytest.raises(LookupError):
        await fail_half_way()
    async with database.session() as session:
        assert await session.scalar(select(func.count()).select_from(User)) == 0


async def test_times_come_back_in_utc_whatever_zone_they_had(database: Database):
    moment = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=8)))
    async with database.session() as session:
        session.add(User(name="a", name_key="a", password_hash="-", created_at=moment))
    async with database.session() as session:
        kept = await session.scalar(select(User.created_at))
    assert kept == moment
    assert kept is not None
    assert kept.tzinfo is UTC


async def test_a_time_without_zone_is_refused(database: Database):
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 that is the point
    async with database.session() as session:
        with pytest.raises(StatementError, match="time zone"):
            await session.execute(select(User).where(User.created_at == naive))


async def test_all_rows_of_a_person_go_with_the_person(database: Database):
    user = a_user()
    async with database.session() as session:
        session.add(user)
        await session.flush()
        conversation = Conversation(user_id=user.id)
        key = ApiKey(user_id=user.id, name="k", kind="publishable", prefix="p", secret_hash="s",
                     origins=[KeyOrigin(origin="https://a.example")])  # fmt: skip
        session.add_all(
            [conversation, key, SignIn(token_hash="t", user_id=user.id, expires_at=now())]
        )
        await session.flush()
        session.add_all(
            [
                Turn(generation="g1", conversation_id=conversation.id, user_id=user.id, seat="u",
                     source="chat", pool="p"),
                Turn(generation="g2", user_id=user.id, seat="u", source="api", pool="p"),
            ]
        )  # fmt: skip
    async with database.session() as session:
        await session.delete(await session.get_one(User, user.id))
    async with database.session() as session:
        for table in (User, Conversation, ApiKey, KeyOrigin, SignIn, Turn):
            assert await session.scalar(select(func.count()).select_from(table)) == 0, table


async def test_insert_or_ignore_keeps_what_is_there(database: Database):
    async with database.session() as session:
        assert await insert_or_ignore(session, FirstStart, [{"id": 1, "token_hash": "a"}]) == 1
        both = [{"id": 1, "token_hash": "b"}, {"id": 2, "token_hash": "c"}]
        assert await insert_or_ignore(session, FirstStart, both) == 1
        assert await insert_or_ignore(session, FirstStart, []) == 0
    async with database.session() as session:
        rows = await session.scalars(select(FirstStart.token_hash).order_by(FirstStart.id))
        assert rows.all() == ["a", "c"]


async def test_writers_of_two_processes_wait_for_each_other(database: Database, tmp_path: Path):
    async with Database.open(url(tmp_path)) as other:

        async def write(where: Database, name: str) -> None:
            async with where.session() as session:
                session.add(a_user(name))
                await session.flush()
                await asyncio.sleep(0)

        await asyncio.gather(
            *(
                write(where, f"{n}-{i}")
                for n, where in enumerate((database, other))
                for i in range(10)
            )
        )
    async with database.session() as session:
        assert await session.scalar(select(func.count()).select_from(User)) == 20


async def test_a_network_share_is_refused_and_postgres_named():
    with pytest.raises(DatabaseRefusedError, match="Postgres"):
        async with Database.open("sqlite+aiosqlite:////" + "/server/share/baton.db"):
            pass


def test_network_file_systems_are_known_by_the_longest_mount(tmp_path: Path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\nserver:/x /srv nfs4 rw 0 0\n"
        "/dev/sdb /srv/local ext4 rw 0 0\nserver:/y /srv/two\\040words nfs rw 0 0\n"
    )
    assert network_filesystem(Path("/srv/baton.db"), mounts) == "nfs4"
    assert network_filesystem(Path("/srv/two words/b.db"), mounts) == "nfs"
    assert network_filesystem(Path("/srv/local/baton.db"), mounts) is None
    assert network_filesystem(Path("/srvx/baton.db"), mounts) is None
    assert network_filesystem(Path("/srv/baton.db"), tmp_path / "absent") is None


def test_the_file_is_readable_by_its_owner_alone(tmp_path: Path):
    async def make() -> None:
        async with Database.open(url(tmp_path / "new")) as database:
            await database.migrate()

    asyncio.run(make())
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new").iterdir()}
    assert set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not a url", "no database URL"),
        ("postgresql+nosuchdriver://localhost/baton", "not installed"),
        ("nosuchdatabase://localhost/baton", "not installed"),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused_with_a_sentence(text: str, sentence: str):
    with pytest.raises(DatabaseRefusedError, match=sentence):
        async with Database.open(text):
            pass


def test_the_migrations_are_sql_that_postgres_reads_too():
    written = StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "output_buffer": written}
    )
    folder = Path(str(files("app.accounts"))) / "migrations"
    with Operations.context(context):
        for script in ScriptDirectory(str(folder)).walk_revisions():
            script.module.upgrade()
    sql = written.getvalue()
    assert "CREATE TABLE users" in sql
    assert "TIMESTAMP WITH TIME ZONE" in sql
    assert "ON DELETE CASCADE" in sql
    for line in sql.splitlines():
        assert "AUTOINCREMENT" not in line
