"""The supervisor's store: the configured one, or an embedded one that is kept running."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import structlog

from app.settings import Settings
from app.store.embedded import EmbeddedStore
from app.store.valkey import EmbeddedStoreError

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
RESTART_SECONDS = 0.5


class StoreKeeper:
    """Where the store is, and care for it as far as it is ours."""

    def __init__(self, url: str) -> None:
        self.url = url

    def join_url(self, pool: str) -> str | None:
        """For nodes of other machines; None: they cannot join, or not with an address of ours."""
        del pool
        return None

    async def keep(self) -> None:
        """Run until cancelled."""
        await asyncio.Event().wait()


class _OwnStoreKeeper(StoreKeeper):
    def __init__(self, folder: Path, listen: str | None) -> None:
        self._folder = folder
        self._listen = listen
        self._store = EmbeddedStore.start(folder, listen=listen)
        super().__init__(self._store.url)

    def join_url(self, pool: str) -> str | None:
        return self._store.join_url(pool)

    async def keep(self) -> None:
        """Start it again when it dies; the address stays. Raises EmbeddedStoreError when it will not.

        Starts it on this thread: the server ends with the thread that made it.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            process = self._store.process
            if process is None or process.poll() is None:
                continue
            log.warning("the embedded store ended; starting it again", code=process.returncode)
            await asyncio.sleep(RESTART_SECONDS)
            self._store = EmbeddedStore.start(self._folder, listen=self._listen)

    def stop(self) -> None:
        self._store.stop()
        log.info("store stopped")


@contextmanager
def store_for(settings: Settings, listen: str | None) -> Generator[StoreKeeper]:
    """Use it from the main thread. Raises EmbeddedStoreError with a sentence."""
    if settings.redis_url is not None:
        if listen is not None:
            raise EmbeddedStoreError(
                "--listen opens the embedded store, and BATON_REDIS_URL names another one. "
                "Nodes of other machines join that one; leave --listen out."
            )
        yield StoreKeeper(settings.redis_url)
        return
    keeper = _OwnStoreKeeper(settings.data_folder, listen)
    try:
        yield keeper
    finally:
        keeper.stop()
