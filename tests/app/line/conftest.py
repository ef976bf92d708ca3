from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.store.bell import Bell
from app.store.client import Store
from tests.app.line.hall import Hall


@pytest.fixture
def hall(store: Store) -> Hall:
    """A pool without nodes."""
    return Hall(store)


@pytest.fixture
async def bell(valkey_url: str) -> AsyncIterator[Bell]:
    async with Bell.open(valkey_url) as opened:
        yield opened
