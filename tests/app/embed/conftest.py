from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app.embed.site import mount
from tests.app.serving import Web, serving


@pytest.fixture
async def web(valkey_url: str, tmp_path: Path) -> AsyncIterator[Web]:
    """A web replica that lets at most two visitors of a site into the line, and no node."""
    async with serving(
        valkey_url,
        tmp_path,
        sign_in_tries_per_minute=1000,
        requests_per_minute=1000,
        embed_visitors_per_site=2,
    ) as replica:
        mount(replica)
        yield replica
