"""The line, seen from the web side: join, watch, call off, leave.

Every method is one atomic script in the store (`scripts/<name>.lua`), so replicas need not know of
each other, and a call whose outcome is unknown may be repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import random
from collections.abc import Sequence

from redis.exceptions import RedisError, ResponseError

from app.errors import (
    AddressFullError,
    InvalidRequestError,
    LineFullError,
    NoLeaseError,
    OthersWaitError,
    PoolEmptyError,
    RaceBusyError,
    SeatElsewhereError,
    StoreUnavailableError,
    TooManyQuestionsError,
)
from app.line import eta, operations, replies
from app.line.types import CancelReason, Job, NodeView, Place, PoolView, SeatView, Tier
from app.settings import Settings
from app.store import keys
from app.store.client import Arg, Reply, Store
from app.store.scripts import Script

logger = logging.getLogger(__name__)

# A program that is cut off from its replica has no page to come back with: a shorter grace.
_API_GRACE_SECONDS = 15.0
# A seat's claim over all pools: its lifetime, how often watching renews it, and how long it stands
# for a join whose outcome is not known (above every time-out of the store's client).
_CLAIM_SECONDS = 7200
_CLAIM_RENEW_SECONDS = 1800
_JOIN_SECONDS = 10
# When nothing is measured yet.
_ADDRESS_RETRY_SECONDS = 30
# Most questions one script call looks up: some 3 ms, in which the store does nothing else.
MOST_PLACES = 200


class Line:
    """All pools' lines. Holds no state of its own: any replica answers for any seat."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._limits = operations.limits_of(settings)

    @property
    def grace_seconds(self) -> float:
        """How long a place is kept after its last watcher left."""
        return self._settings.reconnect_grace_seconds

    async def _run(self, script: Script, pool: str, *args: Arg) -> Reply:
        return await self._store.run(script, [keys.pool_prefix(pool)], [self._limits, *args])

    async def submit(
        self, pool: str, seat: str, job: Job, *, tier: Tier, address: str = ""
    ) -> Place:
        """Put a question into the line, or straight onto the lease that its seat holds.

        The same generation again changes nothing and returns its place. `address`: where the caller
        is, counted with all who wait from there; '' counts nowhere. Raises LineFullError,
        AddressFullError, PoolEmptyError, SeatElsewhereError, TooManyQuestionsError, and
        InvalidRequestError when the generation's id belongs to another seat.
        """
        await self._claim(pool, seat, job.generation)
        reply = await self._join(pool, seat, job, tier, address)
        await self._store.command("HDEL", keys.seat_claim(seat), f"join:{job.generation}")
        return _placed(reply)

    async def borrow(self, pool: str, seat: str, job: Job, *, tier: Tier) -> Place:
        """Ask a seat's question a second time, at an idle node of another pool: a race.

        It never stands in line, and ends as soon as somebody waits there (reason "wanted"). Beside
        its own place a seat has one race at a time, over all pools. Raises RaceBusyError,
        PoolEmptyError, SeatElsewhereError, TooManyQuestionsError, InvalidRequestError as `submit`.
        """
        racer = race_seat(seat)
        await self._claim(pool, racer, job.generation)
        grace_ms = round(self._settings.reconnect_grace_seconds * 1000)
        reply = await self._run(
            operations.BORROW, pool, job.generation, racer, tier, job.payload, grace_ms
        )
        await self._store.command("HDEL", keys.seat_claim(racer), f"join:{job.generation}")
        return _placed(reply)

    async def _join(self, pool: str, seat: str, job: Job, tier: Tier, address: str) -> Reply:
        grace_seconds = self._settings.reconnect_grace_seconds
        if tier == "api":
            grace_seconds = min(grace_seconds, _API_GRACE_SECONDS)
        return await self._run(
            operations.SUBMIT,
            pool,
            job.generation,
            seat,
            tier,
            int(job.hold),
            job.payload,
            round(grace_seconds * 1000),
            self._settings.max_waiting,
            self._settings.max_questions_per_seat,
            job.session,
            _digest(address) if address else "",
            self._settings.most_waiting_per_address(),
        )

    async def _claim(self, pool: str, seat: str, join: str) -> None:
        """Make this pool the seat's only one; SeatElsewhereError when it has a place in another.

        A claim outlives its ticket (both cannot end in one step: they lie in different slots), so
        one that names another pool counts only if a ticket stands behind it there, or a join with
        an unknown outcome may yet put one there.
        """
        holder = await self._claim_once(pool, seat, join=join)
        if holder != pool and await self._ticket(holder, seat) is None:
            holder = await self._claim_once(pool, seat, join=join, stale=holder)
        if holder != pool:
            raise SeatElsewhereError(
                f"You already have a place in the line of {holder}. Leave it first."
            )

    async def _claim_once(self, pool: str, seat: str, *, join: str = "", stale: str = "") -> str:
        holder: bytes = await self._store.run(
            operations.CLAIM,
            [keys.seat_claim(seat)],
            [pool, _CLAIM_SECONDS * 1000, stale, join, _JOIN_SECONDS * 1000],
        )
        return holder.decode()

    async def _ticket(self, pool: str, seat: str) -> bytes | None:
        return await self._store.command("HGET", keys.seats(pool), seat)

    async def places(
        self, pool: str, generations: Sequence[str], *, watched: bool
    ) -> dict[str, Place]:
        """Where these questions stand; unknown ones are left out.

        `watched`: somebody looks at them now, so their seats keep their places for another grace.
        """
        found: dict[str, Place] = {}
        for start in range(0, len(generations), MOST_PLACES):
            some = generations[start : start + MOST_PLACES]
            shared, seats, *rows = await self._run(
                operations.PLACES, pool, int(watched), _CLAIM_RENEW_SECONDS * 1000, *some
            )
            common = replies.shared(shared)
            for row in rows:
                place = replies.place(common, row)
                found[place.generation] = place
            for seat in seats:
                await self._claim_once(pool, seat.decode())
        return found

    async def standings(self, pool: str) -> replies.Standings:
        """All waiting tickets at once: much cheaper than `places` of thousands of questions."""
        return replies.standings(await self._run(operations.LANES, pool))

    async def cancel(self, pool: str, generation: str, reason: CancelReason) -> None:
        """Call a question off. Waiting: it ends here (failed, code "left"). On a node: the node is
        told and writes the last event. Ended or unknown: nothing happens."""
        await self._run(operations.CANCEL, pool, generation, reason)

    async def presence(self, seat: str, *, hidden: bool) -> None:
        """The seat's page is in front, or behind something else. In front answers a call to the
        turn; without a place nothing happens."""
        claim: bytes | None = await self._store.command("HGET", keys.seat_claim(seat), "pool")
        if claim is not None:
            await self._run(operations.PRESENCE, claim.decode(), seat, int(hidden))

    async def leave(self, seat: str) -> None:
        """Give up the seat's place or lease, with all its unanswered questions, in whatever pool."""
        for pool in await self._pool_names():
            for name in (seat, race_seat(seat)):
                await self._run(operations.LEAVE, pool, name)

    async def end_session(self, seat: str, session: str) -> None:
        """Give back what the seat's session keeps; a session that is over already is no fault."""
        claim: bytes | None = await self._store.command("HGET", keys.seat_claim(seat), "pool")
        if claim is not None:
            await self._run(operations.END_SESSION, claim.decode(), seat, session)

    async def extend(self, seat: str) -> None:
        """A new slice from now on for the seat's lease, and the idle limit anew: at any time while
        nobody waits, else `slice_extensions` times. Raises NoLeaseError, OthersWaitError."""
        claim: bytes | None = await self._store.command("HGET", keys.seat_claim(seat), "pool")
        if claim is None:
            raise NoLeaseError
        pool, most = claim.decode(), self._settings.slice_extensions
        match await self._run(operations.EXTEND, pool, seat, most):
            case [b"ok"]:
                # a lease at rest has no watcher who keeps its claim alive
                await self._claim_once(pool, seat)
            case [b"waiting", waiting]:
                raise OthersWaitError(waiting)
            case _:
                raise NoLeaseError

    async def seat(self, seat: str) -> SeatView:
        """What a seat has, in the pool that it has claimed."""
        claim: bytes | None = await self._store.command("HGET", keys.seat_claim(seat), "pool")
        if claim is None:
            return SeatView(state="none")
        pool = claim.decode()
        most = self._settings.slice_extensions
        return replies.seat_view(pool, await self._run(operations.SEAT, pool, seat, most))

    async def pools(self) -> list[PoolView]:
        """All pools that ever had a node, by name."""
        views: list[PoolView] = []
        for pool in await self._pool_names():
            nodes, idle, waiting = await self._run(operations.VIEW, pool)
            views.append(PoolView(name=pool, nodes=nodes, idle_nodes=idle, waiting=waiting))
        return views

    async def nodes(self, pool: str) -> list[NodeView]:
        """The pool's nodes as their operator sees them, by id."""
        return replies.node_views(await self._run(operations.NODES, pool))

    async def drain(self, pool: str, node: str, *, out: bool = True) -> bool:
        """Take a node with all its slots out of service, or back; False: no such node is there now.

        Out: no new lease. A lease at rest ends at once, another after its answer, which may take
        `answer_cap_seconds` and then goes on at another node; what its seat still waits for goes
        first in line. It counts over restarts of the node, until it is taken back.
        """
        return await self._run(operations.DRAIN, pool, node, "", int(out)) > 0

    async def _pool_names(self) -> list[str]:
        names: list[bytes] = await self._store.command("SMEMBERS", keys.POOLS)
        return sorted(name.decode() for name in names)

    async def card(self, pool: str) -> bytes | None:
        """The model card that the pool's nodes published; None for an unknown pool."""
        return await self._store.command("GET", keys.model_card(pool))

    async def pump(self, pool: str) -> None:
        """Let time take effect in one pool: reap what is overdue, grant what is free."""
        await self._run(operations.PUMP, pool)

    async def run_pump(self) -> None:
        """Pump all pools about once a second, for ever; an outage of the store is waited out."""
        while True:
            try:
                for pool in await self._pool_names():
                    await self._pump_surely(pool)
            except (StoreUnavailableError, RedisError) as error:
                logger.warning("the line's pump found no store: %s", error.__cause__ or error)
            # jittered, so that replicas spread over the second
            await asyncio.sleep(random.uniform(0.7, 1.3))

    async def _pump_surely(self, pool: str) -> None:
        """One pool whose script fails must not stop the others."""
        try:
            await self.pump(pool)
        except ResponseError as error:
            logger.warning("the line of %s could not be pumped: %s", pool, error)


def race_seat(seat: str) -> str:
    """What a seat's race stands under, beside its own place."""
    return f"{seat}~race"


def _placed(reply: Reply) -> Place:
    """The answer of `submit` and `borrow`, or why there is none."""
    match reply[0]:
        case b"ok":
            return replies.place(replies.shared(reply[1]), reply[2])
        case b"full":
            raise LineFullError(retry_after_seconds=_retry_after(replies.shared(reply[1])))
        case b"address":
            wait_seconds = _retry_after(replies.shared(reply[1])) or _ADDRESS_RETRY_SECONDS
            raise AddressFullError(retry_after_seconds=wait_seconds)
        case b"questions":
            raise TooManyQuestionsError
        case b"busy":
            raise RaceBusyError
        case b"foreign":
            raise InvalidRequestError("This id already belongs to somebody else's question.")
        case _:
            raise PoolEmptyError(retry_after_seconds=30)


def _digest(address: str) -> str:
    """A name for an address that is not the address itself."""
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def _retry_after(shared: replies.Shared) -> int | None:
    """Seconds until the next place is likely to be free; None while nothing is measured."""
    wait = eta.wait_seconds(shared.turns_ms, 1, shared.nodes)
    return None if wait is None else max(1, math.ceil(wait[1] / shared.nodes))
