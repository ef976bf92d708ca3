"""Lua scripts: loaded from files beside the code that uses them, run by EVALSHA.

A script's text is its preludes (functions that several scripts share) followed by its own file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: str
    sha: str


def load_script(package: str, name: str, *, preludes: tuple[tuple[str, str], ...] = ()) -> Script:
    """Read `<package>/scripts/<name>.lua` behind its preludes, given as (package, name) pairs."""
    parts = [
        (files(owner) / "scripts" / f"{part}.lua").read_text("utf-8")
        for owner, part in (*preludes, (package, name))
    ]
    text = "\n".join(parts)
    # SHA-1 is how Redis names scripts; nothing here relies on its strength.
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha)
