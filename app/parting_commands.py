"""`baton user delete` and `baton key revoke`: what also ends questions in the line."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from app.accounts.api_keys import ApiKeys
from app.accounts.commands import Name, key_app, run_or_exit, user_app
from app.accounts.db import Database
from app.accounts.people import People
from app.accounts.secrets import Passwords
from app.chat.parting import end_turns_of_key, forget, turns_of
from app.errors import StoreUnavailableError
from app.options import DataFolder
from app.settings import Settings
from app.store.client import Store
from app.store.embedded import find_embedded


@dataclass(frozen=True, slots=True)
class _Parts:
    settings: Settings
    store: Store
    database: Database


@user_app.command("delete")
def delete_user(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data_folder: DataFolder = None,
) -> None:
    """Delete an account with its keys, conversations and answers; what it asked ends."""
    if not yes:
        typer.confirm(f"Delete {name} with all keys and conversations?", abort=True)

    async def delete(settings: Settings) -> bool:
        async with _database(settings) as database, _store(settings) as store:
            people = People(database, Passwords())
            user_id = (await people.named(name)).id
            parts = store and _Parts(settings, store, database)
            turns = await turns_of(parts, user_id) if parts else ()
            await people.delete(name)
            if parts:
                await forget(parts, user_id, turns)
            return parts is not None

    had_store = run_or_exit(delete, data_folder)
    typer.echo(f"Deleted {name}.")
    if not had_store:
        typer.echo(
            "The store is not running. What it may still hold of the last answers expires by itself "
            "after it is started again (BATON_STREAM_KEEP_SECONDS)."
        )


@key_app.command("revoke")
def revoke_key(
    user: Annotated[str, typer.Argument(help="Whose key.")],
    key_id: Annotated[str, typer.Argument(help="The id that `list` shows.")],
    data_folder: DataFolder = None,
) -> None:
    """Revoke a key at once and for good; what it asked and what has not ended yet ends too."""

    async def revoke(settings: Settings) -> None:
        async with _database(settings) as database, _store(settings) as store:
            owner = await People(database, Passwords()).named(user)
            await ApiKeys(database).revoke(owner.id, key_id)
            if store:
                await end_turns_of_key(_Parts(settings, store, database), key_id)

    run_or_exit(revoke, data_folder)
    typer.echo("Revoked.")


@asynccontextmanager
async def _database(settings: Settings) -> AsyncGenerator[Database]:
    async with Database.open(settings.database()) as database:
        await database.migrate()
        yield database


@asynccontextmanager
async def _store(settings: Settings) -> AsyncGenerator[Store | None]:
    """None: it does not run, so nothing is in line."""
    url = settings.redis_url or find_embedded(settings.data_folder)
    if url is None:
        yield None
        return
    async with Store.connect(url) as store:
        try:
            await store.ping()
        except StoreUnavailableError:
            yield None
            return
        yield store
