"""A name server that lies, and a server that has to believe it: DNS rebinding as it is done.

    async with name_server() as names, Server.open(text, before=names.before) as server: ...

Every name under `rebind.example` means a public address the first time it is asked for, and this machine from then on,
with no time to keep either. Whoever checks a name and then looks it up again connects to where it should not. The
name server is a real one, on port 53 of a loopback address of its own; the server's process sees a file system where
/etc/resolv.conf names it, so that every way of looking up a name ends here. Both need root.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

ZONE = "rebind.example"
PUBLIC, HERE = "203.0.113.7", "127.0.0.1"
"""The first is reserved for examples: no host has it."""
A, IN = 1, 1
ANSWERED = 0x8180
"""A response, recursion desired and available, no error."""


@functools.cache
def can_mislead() -> bool:
    """Whether this process may listen on port 53, and give another a file system of its own."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


class Names(asyncio.DatagramProtocol):
    """Answers, and counts who was asked for."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.before: tuple[str, ...] = ()
        """What to put before a command so that it asks this name server."""
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name, kind, question = _question(data)
        answers = [self._meaning(name)] if kind == A and name.endswith(ZONE) else []
        head = data[:2] + struct.pack("!5H", ANSWERED, 1, len(answers), 0, 0)
        named = b"\xc0\x0c" + struct.pack("!HHIH", A, IN, 0, 4)  # the name of the question; no resolver may cache it
        assert self._transport is not None
        self._transport.sendto(head + question + b"".join(named + socket.inet_aton(one) for one in answers), addr)

    def _meaning(self, name: str) -> str:
        self.asked[name] += 1
        return PUBLIC if self.asked[name] == 1 else HERE


def _question(data: bytes) -> tuple[str, int, bytes]:
    """The name, the kind of address, and the bytes that asked for them."""
    labels, at = [], 12
    while size := data[at]:
        labels.append(data[at + 1 : at + 1 + size].decode("ascii", "replace"))
        at += 1 + size
    (kind,) = struct.unpack("!H", data[at + 1 : at + 3])
    return ".".join(labels).lower(), kind, data[12 : at + 5]


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[Names]:
    """On an address of its own: others may have a name server on the usual one."""
    address = f"127.53.{os.getpid() // 200 % 200}.{1 + os.getpid() % 200}"
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(prefix="dirigent-names-") as folder:
        said = Path(folder) / "resolv.conf"
        said.write_text(f"nameserver {address}\noptions timeout:2 attempts:2\n")
        transport, names = await loop.create_datagram_endpoint(Names, local_addr=(address, 53))
        names.before = ("unshare", "--mount", "sh", "-c", f'mount --bind {said} /etc/resolv.conf && exec "$@"', "sh")
        try:
            yield names
        finally:
            transport.close()
