"""What was deleted in the store also leaves its append-only file, where it keeps one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from redis.exceptions import ResponseError

from app.store.client import Store

logger = logging.getLogger(__name__)

_TRIES = 20
_RETRY_SECONDS = 0.5


async def rewrite_log(store: Store) -> bool:
    """Have the append-only file written anew from what the store holds now, in the background.

    False: the store keeps none, or this user may not ask for it. Raises StoreUnavailableError.
    """
    try:
        persistence: dict[str, Any] = await store.command("INFO", "persistence")
        if not persistence.get("aof_enabled"):
            return False
        for _ in range(_TRIES):
            if await _begin(store):
                return True
            await asyncio.sleep(_RETRY_SECONDS)
    except ResponseError as error:
        logger.warning("the store's append-only file could not be rewritten: %s", error)
        return False
    logger.warning("the store was rewriting its append-only file all the time")
    return False


async def _begin(store: Store) -> bool:
    """False: one that began before our deletions is still running, and would keep the texts."""
    try:
        await store.command("BGREWRITEAOF")
    except ResponseError as error:
        if "already in progress" not in str(error):
            raise
        return False
    return True
