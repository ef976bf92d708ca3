"""Fixtures of the browser tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.browser.site import Site, open_site


@pytest.fixture
async def site(valkey_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    """A Baton without nodes; fails the test when any page reported a problem."""
    async with open_site(valkey_url, tmp_path) as opened:
        yield opened
        assert opened.problems == []
