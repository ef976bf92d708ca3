"""The wired parts of one web process, as `app/main.py` made them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from starlette.requests import HTTPConnection

from app.accounts.db import Database
from app.line.board import Board
from app.line.line import Line
from app.relay.collector import Collector
from app.relay.reader import RelayReader
from app.settings import Settings
from app.store.bell import Bell
from app.store.client import Store


@dataclass(frozen=True, slots=True)
class Parts:
    settings: Settings
    store: Store
    bell: Bell
    line: Line
    board: Board
    reader: RelayReader
    collector: Collector
    database: Database


def get_parts(connection: HTTPConnection) -> Parts:
    """FastAPI dependency: the parts of the process that serves this connection."""
    return cast(Parts, connection.app.state.parts)
