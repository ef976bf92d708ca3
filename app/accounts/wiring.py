"""The parts of a web process that accounts use, and what accounts make of them.

`app/parts.py` knows all parts but stands above this room, so the room names what it needs itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast

from starlette.requests import HTTPConnection

from app.accounts.api_keys import ApiKeys
from app.accounts.db import Database
from app.accounts.limits import Limits
from app.accounts.people import People
from app.accounts.secrets import Passwords
from app.accounts.sign_ins import SignIns
from app.settings import Settings
from app.store.client import Store


class AccountParts(Protocol):
    @property
    def settings(self) -> Settings: ...
    @property
    def store(self) -> Store: ...
    @property
    def database(self) -> Database: ...


@dataclass(frozen=True, slots=True)
class Accounts:
    """The room's services, one of each per web process."""

    people: People
    sign_ins: SignIns
    keys: ApiKeys
    limits: Limits


def account_parts(connection: HTTPConnection) -> AccountParts:
    """FastAPI dependency."""
    return cast(AccountParts, connection.app.state.parts)


def accounts(connection: HTTPConnection) -> Accounts:
    """FastAPI dependency: made at first use and kept for the life of the process."""
    state = connection.app.state
    if not hasattr(state, "accounts"):
        state.accounts = make_accounts(account_parts(connection), Passwords())
    return cast(Accounts, state.accounts)


def make_accounts(parts: AccountParts, passwords: Passwords) -> Accounts:
    return Accounts(
        People(parts.database, passwords),
        SignIns(parts.database, passwords, parts.settings.session_days),
        ApiKeys(parts.database),
        Limits(parts.store),
    )
