"""A way to the store that a test may cut, or turn into a black hole: a partition for one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Wire:
    """A TCP port in front of a store's socket. Open it with `wire`."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._open = asyncio.Event()
        self._open.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self.url = ""

    def lead_to(self, socket: Path) -> None:
        """To another store, as an address does after a fail-over; who is connected has to connect again."""
        self._socket = socket
        for pump in self._pumps:
            pump.cancel()

    def cut(self) -> None:
        """Not one byte more in either direction, and no end of a connection: packets are lost."""
        self._open.clear()

    def mend(self) -> None:
        """What was on the way arrives late, as from a network that was away for a while."""
        self._open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(str(self._socket))
        pumps = [
            asyncio.create_task(self._pump(reader, back)),
            asyncio.create_task(self._pump(there, writer)),
        ]
        self._pumps.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, back):
            end.transport.abort()
        await asyncio.wait(pumps)
        self._pumps.difference_update(pumps)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
            await self._open.wait()

    async def close(self) -> None:
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        # those who served see that, and hang up
        await asyncio.sleep(0)


@asynccontextmanager
async def wire(socket: Path, host: str = "127.0.0.1") -> AsyncGenerator[Wire]:
    """`wire.url` is the store's address behind it."""
    made = Wire(socket)
    server = await asyncio.start_server(made.serve, host, 0)
    made.url = f"redis://{host}:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await made.close()
