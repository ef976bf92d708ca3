from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app.serving import Web, serving


@pytest.fixture
async def web(valkey_url: str, tmp_path: Path) -> AsyncIterator[Web]:
    """A web replica with roomy limits and no node."""
    async with serving(
        valkey_url, tmp_path, sign_in_tries_per_minute=1000, requests_per_minute=10_000
    ) as replica:
        yield replica
