"""The store's client: typed, bounded, and with one error for "out of reach".

Short calls of all callers share one connection (`app/store/pipeline.py`). Calls that block (BLPOP)
have a pool of their own, so that a waiting node never keeps a short call from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.errors import StoreUnavailableError
from app.store.pipeline import CONNECT_SECONDS, Part, Pipeline
from app.store.scripts import Script

Arg = Part
# What a script returns: bytes, int, None, or lists of these.
Reply = Any


# The longest that one call may take, with waiting for a connection and opening it: a node that
# cannot reach the store must know it about as soon as it has to stop.
CALL_SECONDS = 3.0

# The store cannot be reached, or it answers that it cannot serve: it is still loading (a
# ConnectionError to redis-py), full, a replica since a fail-over, or without its primary.
_AWAY = (
    RedisConnectionError,
    RedisTimeoutError,
    OSError,
    ClusterDownError,  # MASTERDOWN too
    OutOfMemoryError,
    ReadOnlyError,
)
# The same, in answers that redis-py has no class for: it cannot save, has too few replicas, or runs a
# script without end.
_AWAY_CODES = frozenset({"MISCONF", "NOREPLICAS", "BUSY"})


class StoreRefusesError(Exception):
    """The store lets nobody in with this address; the cause of a StoreUnavailableError, for logs."""

    def __init__(self) -> None:
        super().__init__(
            "The store refuses the user or the password, or wants one. "
            "Set BATON_REDIS_URL to redis://USER:PASSWORD@HOST:PORT (without a user: redis://:PASSWORD@...)."
        )


def _is_refusal(error: BaseException | None) -> bool:
    if error is None or isinstance(error, AuthenticationError):
        return error is not None
    # redis-py wraps it as it connects; without a password its greeting fails first, and only the
    # text of that says why
    return "HELLO must be called" in str(error) or _is_refusal(error.__cause__ or error.__context__)


class Store:
    """One process's way to Redis.

    Texts in replies are bytes. Commands whose replies redis-py gives a shape keep it: HGETALL is a
    dict, XRANGE a list of (id, dict of fields).
    """

    def __init__(self, short: Redis, blocking: Redis) -> None:
        self._short = short
        self._blocking = blocking
        self._pipeline = Pipeline(short)
        # redis-py types its replies only partly; here they become Reply
        self._blocking_call = cast(Callable[..., Awaitable[Reply]], blocking.execute_command)  # pyright: ignore[reportUnknownMemberType] see above

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str, *, connections: int = 32) -> AsyncGenerator[Self]:
        """Make the clients (no connection is opened yet) and close them at the end.

        `connections`: most blocking calls at once; further ones wait.
        """

        def client() -> Redis:
            # No socket_timeout: redis-py would send under asyncio.wait_for, which on Python 3.11
            # swallows a cancellation that comes as the sending ends. `_within` bounds every call.
            # No retries: a script that was sent may have run, and not every one may run twice.
            # (A pooled connection that the store closed meanwhile is noticed before it is used.)
            pool = BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType] redis-py is partly untyped
                url,
                max_connections=connections,
                timeout=None,
                socket_timeout=None,
                socket_connect_timeout=CONNECT_SECONDS,
            )
            return Redis.from_pool(pool)  # closing the client closes its pool

        short, blocking = client(), client()
        store = cls(short, blocking)
        try:
            yield store
        finally:
            await store._pipeline.aclose()
            await short.aclose()
            await blocking.aclose()

    @property
    def raw(self) -> Redis:
        """The plain client, for commands that have no method here. Errors are redis-py's own."""
        return self._short

    async def ping(self) -> None:
        """Raises StoreUnavailableError when the store does not answer."""
        await self.command("PING")

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg] = ()) -> Reply:
        """EVALSHA; loads the script first where the store does not know it (after a restart)."""
        try:
            return await self.command("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self.command("EVAL", script.text, len(keys), *keys, *args)

    async def command(self, *parts: Arg) -> Reply:
        """One plain command that does not block, e.g. `command("XRANGE", key, "-", "+")`."""
        return await self._within(CALL_SECONDS, self._pipeline.call, self._pipeline.drop, parts)

    async def pop(self, key: str, timeout_seconds: float) -> bytes | None:
        """BLPOP: wait for the head of a list, None after the time-out (which must not be 0)."""
        parts = ("BLPOP", key, timeout_seconds)
        limit_seconds = timeout_seconds + CALL_SECONDS
        reply = await self._within(limit_seconds, self._blocking_call, self._drop_idle, parts)
        return reply[1] if reply else None

    async def _drop_idle(self) -> None:
        await self._blocking.connection_pool.disconnect(inuse_connections=False)

    @staticmethod
    async def _within(
        seconds: float,
        call: Callable[..., Awaitable[Reply]],
        drop: Callable[[], Awaitable[None]],
        parts: Sequence[Arg],
    ) -> Reply:
        try:
            async with asyncio.timeout(seconds):
                return await call(*parts)
        except (TimeoutError, ReadOnlyError) as error:
            # what is open leads to the same silent peer, good for one more time-out, or to the
            # same demoted one
            await drop()
            raise StoreUnavailableError from error
        except _AWAY as error:
            raise StoreUnavailableError from (StoreRefusesError() if _is_refusal(error) else error)
        except ResponseError as error:
            if str(error).partition(" ")[0] not in _AWAY_CODES:
                raise
            raise StoreUnavailableError from error
