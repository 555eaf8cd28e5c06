"""Whether an event loop is ever blocked: a process of its own asks `/healthz` again and again, and times it.

    async with bare_server() as bare, pulse(server.pid, server.url) as beats, pulse(bare.pid, bare.url) as idle:
        ...                                     # whatever could block the server
    worst_ms(beats), worst_ms(idle)             # read after the block

A beat is what the reply took by the clock, less what the asked process and the asking one waited for a processor
meanwhile (`machine.py`). Beside the server, and at the same moments, the same is done to a bare process whose loop has
nothing else to do: if that is slow, the machine is slow and not the server. Asking from a process of its own keeps the
row's own work out of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import select
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tests.torture.machine import waited_s

ROOT = Path(__file__).parents[2]
EVERY_S = 0.01
ALL_RIGHT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """One reply."""

    clock_ms: float
    own_ms: float
    """Without what the two processes waited for a processor."""


class Bare(msgspec.Struct, frozen=True):
    """A process with an event loop that does nothing but answer."""

    pid: int
    url: str


def worst_ms(beats: list[Beat]) -> float:
    return max(beat.own_ms for beat in beats)


@contextlib.asynccontextmanager
async def pulse(pid: int, url: str) -> AsyncIterator[list[Beat]]:
    """Beats of this process; the list is filled when the block ends."""
    found: list[Beat] = []
    async with _process("ask", str(pid), url) as asking:
        yield found
        told, _ = await asking.communicate(b"")  # the end of its input tells it to stop
        found += msgspec.json.decode(told, type=list[Beat])


@contextlib.asynccontextmanager
async def bare_server() -> AsyncIterator[Bare]:
    async with _process("answer") as answering:
        assert answering.stdout is not None
        port = int(await answering.stdout.readline())
        yield Bare(answering.pid, f"http://127.0.0.1:{port}")


@contextlib.asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.torture.pulse", *arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# ---- the other processes ----------------------------------------------------------------------------------


def _ask(pid: int, url: str) -> list[Beat]:
    """Until the input ends."""
    beats: list[Beat] = []
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        waited, began = waited_s(pid) + waited_s(os.getpid()), time.monotonic()
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
        except (http.client.HTTPException, ConnectionError):  # hung up between two beats, as a server may
            connection.close()
            continue
        clock_s = time.monotonic() - began
        waited = waited_s(pid) + waited_s(os.getpid()) - waited
        beats.append(Beat(1000 * clock_s, 1000 * max(0.0, clock_s - waited)))
    return beats


async def _answer() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(ALL_RIGHT)
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    gone = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(gone), sys.stdin)
    await gone.read()


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.stdout.buffer.write(msgspec.json.encode(_ask(int(sys.argv[2]), sys.argv[3])))
    else:
        asyncio.run(_answer())
