"""One turn, from the request to exactly one last event.

`submit` writes the question to SQL and puts it in line; `watch` tells what becomes of it. The turn
itself lives in the store: whoever submits need not stay, unless `abandoning` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from redis.exceptions import RedisError

from app.accounts.caller import Caller
from app.accounts.models import Turn, TurnSource
from app.chat import history
from app.chat.events import Done, Failed
from app.chat.prompt import AnswerSettings, make_work, resolve_pool
from app.chat.story import Told
from app.chat.watch import watch, watching
from app.errors import AppError, StoreUnavailableError
from app.line.types import CancelReason, Job
from app.parts import Parts
from app.work import Work

__all__ = ["Ask", "Submitted", "abandoning", "cancel", "submit", "watch", "watching"]

log = structlog.get_logger(__name__)

CANCEL_TRIES = 20
CANCEL_RETRY_SECONDS = 1.0

# cancels that outlive the request which asked for them
_leaving: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True)
class Ask:
    """A question with all that the answer depends on."""

    # chosen by the caller: 32 hex digits
    generation: str
    # None: the first pool
    model: str | None
    # the whole conversation for the template, the question last
    messages: Sequence[Mapping[str, Any]]
    settings: AnswerSettings
    source: TurnSource
    # keep the lease after the answer
    hold: bool
    # see `Job.session`
    session: str = ""
    # ask at an idle node of another pool, beside the seat's own place; see `Line.borrow`
    race: bool = False
    # kept in SQL for chat turns only
    question: str = ""
    conversation_id: str | None = None
    # further settings to store with the turn, no texts of API or embed callers
    params: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    generation: str
    pool: str
    conversation_id: str | None


async def submit(parts: Parts, caller: Caller, ask: Ask) -> Submitted:
    """Write the question to SQL and put it in line. A repeat with the same id changes nothing.

    Raises ModelNotFoundError, PromptTooLongError and what else is wrong with the request before
    anything is written; the line's refusals (LineFullError, ...), after which nothing is left of
    the question; StoreUnavailableError, after which a repeat with the same id goes on.
    """
    turn = await history.find_turn(parts.database, caller, ask.generation)
    if turn is not None and (turn.status != "open" or await _is_known(parts, turn)):
        return Submitted(turn.generation, turn.pool, turn.conversation_id)
    pool = turn.pool if turn else await resolve_pool(parts.line, ask.model)
    work = await make_work(
        parts.line, pool, ask.messages, ask.settings, parts.settings.default_max_tokens
    )
    if turn is None:
        turn = await history.begin(parts.database, caller, _new_turn(ask, pool, work))
    job = Job(ask.generation, work.to_bytes(), hold=ask.hold, session=ask.session)
    try:
        await _join(parts, caller, pool, job, is_race=ask.race)
    except StoreUnavailableError:
        # whether the question arrived is not known
        raise
    except AppError:
        await history.withdraw(parts.database, turn)
        raise
    return Submitted(turn.generation, pool, turn.conversation_id)


async def _join(parts: Parts, caller: Caller, pool: str, job: Job, *, is_race: bool) -> None:
    if is_race:
        await parts.line.borrow(pool, caller.seat, job, tier=caller.tier)
    else:
        address = caller.address
        await parts.line.submit(pool, caller.seat, job, tier=caller.tier, address=address)


async def _is_known(parts: Parts, turn: Turn) -> bool:
    places = await parts.line.places(turn.pool, [turn.generation], watched=False)
    return turn.generation in places


def _new_turn(ask: Ask, pool: str, work: Work) -> history.NewTurn:
    sampling = work.sampling
    return history.NewTurn(
        generation=ask.generation,
        source=ask.source,
        pool=pool,
        question=ask.question,
        conversation_id=ask.conversation_id,
        params={
            **(ask.params or {}),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "max_tokens": work.max_tokens,
        },
    )


async def cancel(parts: Parts, pool: str, generation: str, reason: CancelReason) -> None:
    """Raises StoreUnavailableError. A generation that has ended stays as it is."""
    await parts.line.cancel(pool, generation, reason)


@asynccontextmanager
async def abandoning(parts: Parts, submitted: Submitted) -> AsyncGenerator[AsyncGenerator[Told]]:
    """Watch a turn whose caller cannot come back: leaving before its end cancels it at once.

    The cancel is carried out even where this task is being cancelled itself.
    """
    ended = False

    async def noticing(events: AsyncGenerator[Told]) -> AsyncGenerator[Told]:
        nonlocal ended
        async for position, event in events:
            # a failure without a position is this watcher's own: the answer may go on
            if position is not None and isinstance(event, Done | Failed):
                ended = True
            yield position, event

    async with (
        watching(parts, submitted.pool, submitted.generation) as events,
        aclosing(noticing(events)) as told,
    ):
        try:
            yield told
        finally:
            if not ended:
                task = asyncio.create_task(_cancel_surely(parts, submitted), name="cancel")
                _leaving.add(task)
                task.add_done_callback(_leaving.discard)
                await asyncio.shield(task)


async def _cancel_surely(parts: Parts, submitted: Submitted) -> None:
    for _ in range(CANCEL_TRIES):
        try:
            await parts.line.cancel(submitted.pool, submitted.generation, "gone")
        except (StoreUnavailableError, RedisError):
            await asyncio.sleep(CANCEL_RETRY_SECONDS)
        else:
            return
    log.warning("could not cancel an abandoned answer", generation=submitted.generation)
