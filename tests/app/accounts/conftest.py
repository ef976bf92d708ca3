from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.accounts.db import Database
from tests.app.accounts.site import Site, site


@pytest.fixture
async def baton(valkey_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    """A site with roomy limits."""
    async with site(valkey_url, tmp_path, sign_in_tries_per_minute=100) as running:
        yield running


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A migrated SQLite file."""
    async with Database.open(f"sqlite+aiosqlite:///{tmp_path}/baton.db") as opened:
        await opened.migrate()
        yield opened
