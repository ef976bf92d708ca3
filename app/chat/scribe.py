"""Carries ended turns from the store to SQL, and ends turns that the store has lost.

Every web replica runs one; the store hands each ended turn to one of them, and again to another
when that one dies before it is done. Writing twice changes nothing.
"""

from __future__ import annotations

import asyncio
import random
import time

import structlog
from redis.exceptions import RedisError

from app.chat import history
from app.chat.conversations import open_turns_of
from app.chat.sql import DatabaseUnavailableError
from app.errors import StoreUnavailableError
from app.parts import Parts

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
OUTAGE_SECONDS = 2.0
SWEEP_SECONDS = 60.0
# an open turn that the store does not know is lost after this
LOST_SECONDS = 120.0
SWEEP_MOST = 500


async def run_scribe(parts: Parts) -> None:
    """Runs until cancelled; outages of the store or of SQL only delay it."""
    sweep_at_s = time.monotonic() + random.uniform(0, SWEEP_SECONDS)
    missed: frozenset[str] = frozenset()
    while True:
        wait_s = LOOK_SECONDS
        try:
            for pool in await parts.line.pools():
                await collect(parts, pool.name)
            if time.monotonic() >= sweep_at_s:
                sweep_at_s = time.monotonic() + SWEEP_SECONDS
                missed = await sweep(parts, missed)
        except (StoreUnavailableError, RedisError, DatabaseUnavailableError) as error:
            # RedisError: it answers, but is still loading, or no longer a primary
            log.warning("answers wait for an outage to end", reason=str(error))
            wait_s = OUTAGE_SECONDS
        await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))


async def collect(parts: Parts, pool: str) -> int:
    """Write all ended turns of a pool that are there now; returns how many.

    Raises StoreUnavailableError, DatabaseUnavailableError.
    """
    count = 0
    while generations := await parts.collector.take(pool):
        for generation in generations:
            await _write_end(parts, pool, generation)
            await parts.collector.done(
                pool, generation, keep_seconds=parts.settings.stream_keep_seconds
            )
        count += len(generations)
    return count


async def _write_end(parts: Parts, pool: str, generation: str) -> None:
    try:
        record = await parts.collector.record(pool, generation)
        if record is not None:
            await history.finish(parts.database, record)
    except (KeyError, TypeError, ValueError) as error:
        # a node of another version wrote it: its turn is over, and no other's may wait behind it
        log.error("unreadable answer", generation=generation, error=repr(error))
        await history.lose(parts.database, generation)


async def settle(parts: Parts, conversation_id: str) -> None:
    """Write the ends of a conversation's turns that are over but not yet in SQL, so that the next
    question sees their answers. Whoever takes them later finds them written.

    Raises StoreUnavailableError, DatabaseUnavailableError.
    """
    for pool, generation in await open_turns_of(parts.database, conversation_id):
        await _write_end(parts, pool, generation)


async def sweep(parts: Parts, missed: frozenset[str]) -> frozenset[str]:
    """End open turns that the store did not know at the last sweep (`missed`) and does not know now;
    returns those to look for at the next.

    Twice, because a turn may be on its way from SQL to the line, and how old it is says nothing where
    clocks differ. Raises StoreUnavailableError, DatabaseUnavailableError.
    """
    by_pool: dict[str, list[str]] = {}
    found = await history.open_turns(
        parts.database, older_than_seconds=LOST_SECONDS, most=SWEEP_MOST
    )
    for pool, generation in found:
        by_pool.setdefault(pool, []).append(generation)
    unknown: set[str] = set()
    for pool, generations in by_pool.items():
        places = await parts.line.places(pool, generations, watched=False)
        unknown |= {generation for generation in generations if generation not in places}
    lost = unknown & missed
    for generation in lost:
        await history.lose(parts.database, generation)
    if lost:
        log.warning("turns were lost by the store", count=len(lost))
    return frozenset(unknown - lost)
