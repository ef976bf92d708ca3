"""The key that signs visitors' tokens: 32 random bytes in the data folder, made once."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

SECRET_BYTES = 32
NAME = "embed_secret"


def load_secret(folder: Path) -> bytes:
    """Read the secret, or make it; processes that start at once agree on one.

    The file is readable by its owner alone. Raises OSError, and ValueError for a file that is not
    ours.
    """
    path = folder / NAME
    if not path.exists():
        _make(path)
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"{path} is damaged: delete it, and visitors simply begin anew.")
    return secret


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as writer:
            writer.write(secrets.token_bytes(SECRET_BYTES))
        # a link appears whole or not at all, and never replaces what is there
        os.link(mine, path)
    except FileExistsError:
        return
    finally:
        mine.unlink()
