"""The line, seen from a node: register, report, fetch work, say that it is done."""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

import orjson
from redis.exceptions import NoPermissionError

from app.errors import AppError
from app.line import operations
from app.line.types import Assignment, CancelReason, NodeInfo, Orders
from app.settings import Settings
from app.store import keys
from app.store.client import Arg, Reply, Store
from app.store.scripts import Script


class NodeUnknownError(AppError):
    """The line does not know this node, or knows another start of it: register (again)."""

    code = "node_unknown"
    status = 409
    message = "The line does not know this node any more. It has to register again."

    def __init__(self, *, replaced: bool = False) -> None:
        super().__init__()
        # another start has registered under its name since
        self.replaced = replaced


class PoolForbiddenError(Exception):
    """The store does not let this user into that pool; `str(error)` says what to do."""


class NodeDesk:
    """Where the nodes of one pool report. Needs nothing but a way to the store."""

    def __init__(self, store: Store, pool: str, settings: Settings) -> None:
        if not pool or len(pool) > 200 or any(sign in pool for sign in "{}"):
            raise ValueError("The name of a pool has 1 to 200 characters and no braces.")
        self._store = store
        self._pool = pool
        self._limits = operations.limits_of(settings)

    async def _run(self, script: Script, *args: Arg) -> Reply:
        return await self._store.run(script, [keys.pool_prefix(self._pool)], [self._limits, *args])

    async def register(self, info: NodeInfo, card: bytes) -> None:
        """Make this start of the node known. Its first heartbeat must follow: until it says that
        nothing runs, no work comes. What an earlier start had on lease counts as lost.

        Raises PoolForbiddenError when the store's user belongs to another pool.
        """
        described = asdict(info)
        node, boot = described.pop("id"), described.pop("boot")
        try:
            await self._run(operations.REGISTER, node, boot, orjson.dumps(described), card)
            await self._store.command("SADD", keys.POOLS, self._pool)
        except NoPermissionError as error:
            raise PoolForbiddenError(
                f"The store does not let this node into the line of {self._pool} ({error}). "
                "Join with the credential of that line, or name its line by --pool."
            ) from error

    async def heartbeat(
        self, node: str, boot: str, *, running: tuple[str, int] | None, highest_fence: int
    ) -> Orders:
        """Report what runs (generation, fence) and the highest fence ever seen; hear what should.

        A node that hears of no generation, or of another one, stops what it runs. Raises
        NodeUnknownError: register again (an answer that was running is lost by then).
        """
        generation, fence = running if running is not None else ("", "")
        reply: list[bytes] = await self._run(
            operations.HEARTBEAT, node, boot, generation, fence, highest_fence
        )
        if len(reply) == 1:
            raise NodeUnknownError(replaced=bool(reply[0]))
        ordered, ordered_fence, cancel, seat = (value.decode() for value in reply)
        return Orders(
            generation=ordered or None,
            fence=int(ordered_fence) if ordered_fence else None,
            cancel=cast(CancelReason, cancel) if cancel else None,
            seat=seat or None,
        )

    async def take(self, node: str, boot: str) -> Assignment | None:
        """The question that this node should be running; None: nothing.

        Asked again, the answer is the same until the question ends, so that a lost reply does no
        harm: a node that already runs this fence ignores it.
        """
        reply: list[bytes] = await self._run(operations.TAKE, node, boot)
        if not reply:
            return None
        generation, fence, payload, seat, queued_ms, stream_length, same_numerics = reply
        return Assignment(
            generation=generation.decode(),
            fence=int(fence),
            payload=payload,
            seat=seat.decode(),
            queued_ms=float(queued_ms),
            stream_length=int(stream_length),
            same_numerics=same_numerics == b"1",
        )

    async def finished(
        self, node: str, boot: str, *, generation: str, fence: int, handed_over: bool = False
    ) -> None:
        """Nothing runs on the node any more. Repeating it, or saying it too late, changes nothing.

        A generation without a last event by now is given to the next free node if it is
        `handed_over`; else it ends as failed, code "node_error".
        """
        await self._run(operations.FINISHED, node, boot, generation, fence, int(handed_over))

    async def wait(self, node: str, timeout_seconds: float) -> str | None:
        """Wait for the doorbell: "job" (then `take`), "cancel" (then `heartbeat`), None: time-out.

        A ring may be lost or come twice; heartbeats bring the same news.
        """
        word = await self._store.pop(keys.inbox(self._pool, node), timeout_seconds)
        return None if word is None else word.decode()

    async def drain(self, node: str, boot: str) -> None:
        """This start is about to leave: no new lease, and its holder hears of it."""
        await self._run(operations.DRAIN, node, boot, 1)

    async def leave(self, node: str, boot: str) -> None:
        """Depart in order; what the node had on lease moves on as if the node were lost."""
        await self._run(operations.DEPART, node, boot)
