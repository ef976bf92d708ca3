from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.store.servers import OwnServer


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket in it; pytest's own may be too long."""
    folder = Path(tempfile.mkdtemp(prefix="bs-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def server(short_folder: Path) -> Iterator[OwnServer]:
    own = OwnServer(short_folder)
    own.start()
    yield own
    own.kill()
