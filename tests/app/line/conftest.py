from __future__ import annotations

import pytest

from app.store.client import Store
from tests.app.line.hall import Hall


@pytest.fixture
def hall(store: Store) -> Hall:
    """A pool without nodes."""
    return Hall(store)
