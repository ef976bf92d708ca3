"""The parts of a web process that accounts use.

`app/parts.py` knows them all but stands above this room, so the room names what it needs itself.
"""

from __future__ import annotations

from typing import Protocol, cast

from starlette.requests import HTTPConnection

from app.accounts.db import Database
from app.settings import Settings
from app.store.client import Store


class AccountParts(Protocol):
    @property
    def settings(self) -> Settings: ...
    @property
    def store(self) -> Store: ...
    @property
    def database(self) -> Database: ...


def account_parts(connection: HTTPConnection) -> AccountParts:
    """FastAPI dependency."""
    return cast(AccountParts, connection.app.state.parts)
