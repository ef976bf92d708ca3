"""The store's client: typed, bounded, and with one error for "out of reach".

Two pools of connections: short calls, and calls that block (BLPOP), so that a waiting node never
keeps a short call from its connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.errors import StoreUnavailableError
from app.store.scripts import Script

Arg = str | bytes | int | float
# What a script returns: bytes, int, None, or lists of these.
Reply = Any


@contextmanager
def _reachable() -> Generator[None]:
    try:
        yield
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        raise StoreUnavailableError from error


class Store:
    """One process's way to Redis. Replies are bytes; nothing is decoded behind the caller's back."""

    def __init__(self, short: Redis, blocking: Redis) -> None:
        self._short = short
        # redis-py types its replies only partly; here they become Reply
        self._call = cast(Callable[..., Awaitable[Reply]], short.execute_command)  # pyright: ignore[reportUnknownMemberType] see above
        self._blocking_call = cast(Callable[..., Awaitable[Reply]], blocking.execute_command)  # pyright: ignore[reportUnknownMemberType] see above

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str, *, connections: int = 32) -> AsyncGenerator[Store]:
        """Make both pools (no connection is opened yet) and close them at the end."""

        def client(timeout_seconds: float | None) -> Redis:
            pool = BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType] redis-py is partly untyped
                url,
                max_connections=connections,
                timeout=5,
                socket_timeout=timeout_seconds,
                socket_connect_timeout=2,
            )
            return Redis.from_pool(pool)  # closing the client closes its pool

        short, blocking = client(5.0), client(None)
        try:
            yield cls(short, blocking)
        finally:
            await short.aclose()
            await blocking.aclose()

    @property
    def raw(self) -> Redis:
        """The plain client, for commands that have no method here. Errors are redis-py's own."""
        return self._short

    async def ping(self) -> None:
        """Raises StoreUnavailableError when the store does not answer."""
        with _reachable():
            await self._call("PING")

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Arg] = ()) -> Reply:
        """EVALSHA; loads the script first where the store does not know it (after a restart)."""
        with _reachable():
            try:
                return await self._call("EVALSHA", script.sha, len(keys), *keys, *args)
            except NoScriptError:
                return await self._call("EVAL", script.text, len(keys), *keys, *args)

    async def command(self, *parts: Arg) -> Reply:
        """One plain command, e.g. `command("XRANGE", key, "-", "+")`."""
        with _reachable():
            return await self._call(*parts)

    async def pop(self, key: str, timeout_seconds: float) -> bytes | None:
        """BLPOP: wait for the head of a list, None after the time-out."""
        with _reachable():
            reply = await self._blocking_call("BLPOP", key, timeout_seconds)
        return reply[1] if reply else None
