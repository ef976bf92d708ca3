"""`baton user ...` and `baton key ...`: accounts and keys from the machine's own terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from app.accounts.api_keys import ApiKeys
from app.accounts.db import Database, DatabaseRefusedError
from app.accounts.models import KeyKind
from app.accounts.people import People
from app.accounts.secrets import Passwords
from app.errors import AppError
from app.options import DataFolder, settings_from
from app.process import EXIT_CONFIGURATION
from app.settings import Settings

T = TypeVar("T")

user_app = typer.Typer(help="Accounts: create, list, change, delete.", no_args_is_help=True)
key_app = typer.Typer(help="API keys: create, list, revoke.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The account's name.")]


@user_app.command("create")
def create_user(
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Make it an administrator.")] = False,
    data_folder: DataFolder = None,
) -> None:
    """Create an account; its password is asked for, or read from standard input."""
    password = _password()
    user = _run(lambda people, _: people.create(name, password, is_admin=admin), data_folder)
    typer.echo(f"Created {user.name}.")


@user_app.command("list")
def list_users(data_folder: DataFolder = None) -> None:
    """List all accounts."""
    for user in _run(lambda people, _: people.all(), data_folder):
        role = "admin" if user.is_admin else "user"
        typer.echo(f"{user.created_at:%Y-%m-%d}  {role:5}  {user.name}")


@user_app.command("set-password")
def set_password(name: Name, data_folder: DataFolder = None) -> None:
    """Set a new password, asked for or read from standard input; ends all sign-ins, no API keys."""
    password = _password()
    _run(lambda people, _: people.set_password(name, password), data_folder)
    typer.echo(
        "The password is set. All sign-ins of this account have ended; its API keys go on working "
        "until they are revoked (`baton key list`, `baton key revoke`)."
    )


@user_app.command("make-admin")
def make_admin(name: Name, data_folder: DataFolder = None) -> None:
    """Make an account an administrator."""
    _run(lambda people, _: people.make_admin(name), data_folder)
    typer.echo(f"{name} is an administrator now.")


@key_app.command("create")
def create_key(
    user: Annotated[str, typer.Argument(help="Whose key.")],
    name: Annotated[str, typer.Argument(help="What it is for.")],
    kind: Annotated[str, typer.Option(help="secret or publishable.")] = "secret",
    origin: Annotated[
        list[str] | None, typer.Option(help="Site of a publishable key; may be repeated.")
    ] = None,
    data_folder: DataFolder = None,
) -> None:
    """Create a key and print it, this once."""
    if kind not in ("secret", "publishable"):
        raise typer.BadParameter("A key is secret or publishable.", param_hint="--kind")
    chosen: KeyKind = "secret" if kind == "secret" else "publishable"

    async def create(people: People, keys: ApiKeys) -> str:
        owner = await people.named(user)
        return (await keys.create(owner.id, name, chosen, origin or []))[1]

    typer.echo(_run(create, data_folder))


@key_app.command("list")
def list_keys(
    user: Annotated[str, typer.Argument(help="Whose keys.")], data_folder: DataFolder = None
) -> None:
    """List an account's live keys."""

    async def find(people: People, keys: ApiKeys) -> list[str]:
        owner = await people.named(user)
        return [
            f"{key.id}  {key.kind:11}  {key.prefix}…  {key.name}" for key in await keys.of(owner.id)
        ]

    for line in _run(find, data_folder):
        typer.echo(line)


def _password() -> str:
    """Asked twice on a terminal, else the first line of standard input; never an argument, which
    every process of the machine could read."""
    if sys.stdin.isatty():
        return typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    return sys.stdin.readline().rstrip("\r\n")


def _run(work: Callable[[People, ApiKeys], Awaitable[T]], data_folder: Path | None) -> T:
    """Do `work` on the configured database, as `run_or_exit`."""

    async def whole(settings: Settings) -> T:
        async with Database.open(settings.database()) as database:
            await database.migrate()
            return await work(People(database, Passwords()), ApiKeys(database))

    return run_or_exit(whole, data_folder)


def run_or_exit(work: Callable[[Settings], Awaitable[T]], data_folder: Path | None) -> T:
    """A fault becomes its sentence and exit status 1, or 2 where the set-up is wrong."""
    settings = settings_from(data_folder=data_folder)

    async def whole() -> T:
        return await work(settings)

    try:
        return asyncio.run(whole())
    except AppError as error:
        typer.echo(error.message, err=True)
        refused = isinstance(error, DatabaseRefusedError)
        raise typer.Exit(EXIT_CONFIGURATION if refused else 1) from error
