"""A trap: a listener that should never get a connection, on every loopback address of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Trap:
    """Counts who comes; says nothing."""

    def __init__(self) -> None:
        self.port = 0
        self.reached = 0
        self.heard: list[bytes] = []
        self.caught = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached += 1
        self.caught.set()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(0.5):
                self.heard.append((await reader.read(400))[:400])
        writer.close()


@contextlib.asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    """A trap that works: it has caught its maker once before it is handed over."""
    snare = Trap()
    first = await asyncio.start_server(snare.take, "0.0.0.0", 0)
    snare.port = first.sockets[0].getsockname()[1]
    servers = [first]
    with contextlib.suppress(OSError):  # where there is no IPv6
        servers.append(await asyncio.start_server(snare.take, "::", snare.port))
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", snare.port)
        writer.close()
        await snare.caught.wait()
        snare.reached = 0
        snare.heard.clear()
        yield snare
    finally:
        for server in servers:
            server.close()
