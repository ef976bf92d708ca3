"""`baton node list | drain | undrain | invite | revoke`: the nodes, for whoever operates them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from app.errors import StoreUnavailableError
from app.options import DataFolder, refuse, settings_from

if TYPE_CHECKING:
    from pathlib import Path

    from app.line.line import Line
    from app.line.types import NodeView
    from app.settings import Settings
    from app.store.address import Address

_T = TypeVar("_T")

app = typer.Typer(
    help="Run one node, or look after the nodes there are.",
    rich_markup_mode=None,
    add_completion=False,
)

RedisUrl = Annotated[
    str | None,
    typer.Option(
        help="The store. A password is better given by BATON_REDIS_URL: others can read "
        "a command line. [default: BATON_REDIS_URL, or the store in the data folder]"
    ),
]
Name = Annotated[str, typer.Argument(help="The node, as `baton node list` shows it.")]
InLine = Annotated[str, typer.Option("--pool", help="The line that the node is to serve.")]
Pool = Annotated[str | None, typer.Option(help="Its line, where several have a node of that name.")]


@app.command("list")
def show(redis_url: RedisUrl = None, data_folder: DataFolder = None) -> None:
    """Show all nodes: their lines, what they are, and whether they take work."""
    settings = settings_from(redis_url=redis_url, data_folder=data_folder)

    async def work(line: Line) -> None:
        for pool, node in await _all(line):
            state = "drained" if node.drained else "serving"
            slots = f"{node.busy_slots} of {node.slots} busy"
            typer.echo("\t".join((pool, node.id, state, slots, node.kind, node.hardware)))

    _with_line(settings, work)


@app.command()
def drain(
    name: Name, pool: Pool = None, redis_url: RedisUrl = None, data_folder: DataFolder = None
) -> None:
    """Take a node out of service: its answer may finish, and it gets nothing new.

    It stays out, over restarts too, until `baton node undrain`.
    """
    _move(settings_from(redis_url=redis_url, data_folder=data_folder), name, pool, out=True)
    typer.echo(f"{name} gets nothing new. A running answer may finish; see baton node list.")


@app.command()
def undrain(
    name: Name, pool: Pool = None, redis_url: RedisUrl = None, data_folder: DataFolder = None
) -> None:
    """Take a node back into service."""
    settings = settings_from(redis_url=redis_url, data_folder=data_folder)
    is_here = _move(settings, name, pool, out=False)
    typer.echo(
        f"{name} serves again." if is_here else f"{name} is not here; it serves once it comes."
    )


@app.command()
def invite(pool: InLine, redis_url: RedisUrl = None, data_folder: DataFolder = None) -> None:
    """Make a credential for one node of another machine and print how it joins.

    It reaches the keys of that line and no others. With a store of your own (BATON_REDIS_URL), print
    the command that makes such a user there.
    """
    from redis.exceptions import RedisError

    from app.store import access

    settings = settings_from(redis_url=redis_url, data_folder=data_folder)
    try:
        if settings.redis_url is not None:
            user = access.new_user(pool)
            typer.echo(f"Run this in your store, and save its users:\n    {user.setuser()}")
            where = f"redis://{user.name}:{user.password}@HOST:PORT"
        else:
            folder, address = _embedded(settings)
            where = address.join_url(access.invite(folder, address.url(folder), pool))
    except (ValueError, RedisError) as error:
        refuse(str(error))
    typer.echo("The node joins with:")
    typer.echo(f"    BATON_REDIS_URL='{where}' baton node --pool {pool} --model ...")


@app.command()
def revoke(
    user: Annotated[str, typer.Argument(help="The user in the node's BATON_REDIS_URL.")],
    data_folder: DataFolder = None,
) -> None:
    """Take a node's credential back; its connections end at once."""
    from redis.exceptions import RedisError

    from app.store import access

    folder, address = _embedded(settings_from(data_folder=data_folder))
    try:
        if not access.revoke(folder, address.url(folder), user):
            known = ", ".join(one.name for one in access.users(folder)) or "none"
            refuse(f"There is no user {user!r}. There are: {known}.")
    except RedisError as error:
        refuse(f"The store cannot be reached: {error}")
    typer.echo(f"{user} is forgotten.")


def _embedded(settings: Settings) -> tuple[Path, Address]:
    """The store of this data folder, which must be open to other machines."""
    from app.store.address import living

    folder = settings.data_folder.resolve() / "store"
    address = living(folder)
    if address is None or address.listen is None:
        refuse(
            f"No store in {settings.data_folder} is open to other machines. "
            "Start `baton serve --listen HOST:PORT` there first."
        )
    return folder, address


def _move(settings: Settings, name: str, pool: str | None, *, out: bool) -> bool:
    """Drain, or take back; whether the node was there."""

    async def work(line: Line) -> bool:
        nodes = await _all(line)
        pools = [its for its, node in nodes if node.id == name and pool in (None, its)]
        if not pools and pool is not None and not out:
            if pool not in [one.name for one in await line.pools()]:
                refuse(f"There is no line {pool!r}.")
            # it may be away, and still be marked
            pools = [pool]
        if not pools:
            known = ", ".join(sorted({node.id for _, node in nodes})) or "none"
            refuse(f"There is no node {name!r} now. There are: {known}.")
        if len(pools) > 1:
            refuse(f"Several lines have a node {name!r}: {', '.join(pools)}. Name one by --pool.")
        return await line.drain(pools[0], name, out=out)

    return _with_line(settings, work)


async def _all(line: Line) -> list[tuple[str, NodeView]]:
    """All nodes with their pools."""
    pools = await line.pools()
    return [(pool.name, node) for pool in pools for node in await line.nodes(pool.name)]


def _with_line(settings: Settings, work: Callable[[Line], Awaitable[_T]]) -> _T:
    """Run `work`; a store that is not there is one sentence."""
    from app.line.line import Line
    from app.store.client import Store
    from app.store.embedded import find_embedded

    url = settings.redis_url or find_embedded(settings.data_folder)
    if url is None:
        refuse(
            f"There is no store in {settings.data_folder}. Name the running one by --data-folder."
        )

    async def run() -> _T:
        async with Store.connect(url) as store:
            return await work(Line(store, settings))

    try:
        return asyncio.run(run())
    except StoreUnavailableError as error:
        refuse(f"The store cannot be reached: {error.__cause__ or error}")
