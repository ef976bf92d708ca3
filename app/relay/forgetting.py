"""Texts that have to leave the store before their time."""

from __future__ import annotations

from collections.abc import Sequence

from app.store.client import Store
from app.store.keys import pool_prefix
from app.store.scripts import load_script

_FORGET = load_script("app.relay", "forget", preludes=(("app.store", "generation"),))
# so many a step: each may hold a long answer
_MOST = 100


async def forget_texts(store: Store, pool: str, generations: Sequence[str]) -> list[str]:
    """Wipe question and answer of these generations; returns those that have not ended yet, which
    stay as they are. Raises StoreUnavailableError."""
    left: list[str] = []
    for start in range(0, len(generations), _MOST):
        some = generations[start : start + _MOST]
        found: list[bytes] = await store.run(_FORGET, [pool_prefix(pool)], some)
        left += [generation.decode() for generation in found]
    return left
