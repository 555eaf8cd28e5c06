"""One POST and the beginning of its reply, over a connection of aiohttp's.

aiohttp's session makes a request, a response and (before Python 3.12) a task of every call, for the sake of cookies,
redirects, proxies, uploads and middleware: two thirds of what a call costs, and none of it is used here. So a call
takes what it needs of aiohttp itself: the connector, which looks names up, connects, does TLS and keeps connections
for the next call, and the protocol, which parses replies and takes compression off. In between, a request is a header
and a body in one write.

Knows nothing of time-outs but the one for connecting, and nothing of what is asked. An `Exchange` must be closed; once
its body has come to its end, its connection is back with the connector and closing does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.connector import Connection
    from multidict import CIMultiDictProxy

_OURS = frozenset({"content-length", "content-type"})
"""Headers that each call says for itself."""


class Target:
    """Where calls of one URL go. Making it takes as long as a call, so it is made once and kept."""

    def __init__(self, url: str) -> None:
        import aiohttp
        from yarl import URL

        self.request = aiohttp.ClientRequest("POST", URL(url), loop=asyncio.get_running_loop())
        """Tells the connector where to; it is never sent."""
        usual = [f"{name}: {value}" for name, value in self.request.headers.items() if name.lower() not in _OURS]
        self._head = "\r\n".join([f"POST {self.request.url.raw_path_qs} HTTP/1.1", *usual])

    def header(self, headers: Mapping[str, str], *, length: int) -> bytes:
        """All that comes before the body. `ValueError` where a value would end its line and begin another header."""
        said = "".join([f"\r\n{name}: {value}" for name, value in headers.items()])
        if said.count("\r") + said.count("\n") != 2 * len(headers) or "\0" in said:
            raise ValueError("a header holds a line break or NUL")
        return f"{self._head}{said}\r\nContent-Length: {length}\r\n\r\n".encode()


class Exchange:
    """A reply that has begun."""

    def __init__(
        self, connection: Connection, message: aiohttp.http.RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self.status: int = message.code
        self.reason: str = message.reason
        self.headers: CIMultiDictProxy[str] = message.headers
        self.content = content
        """The body, as it comes."""
        self._connection: Connection | None = connection
        content.on_eof(self._release)

    @property
    def content_type(self) -> str:
        """Without its parameters, in lower case; empty where the reply does not say."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    def close(self) -> None:
        """Hang up, unless all of the body has come."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


async def post(
    connector: aiohttp.BaseConnector,
    target: Target,
    *,
    headers: Mapping[str, str],
    body: bytes,
    connecting: aiohttp.ClientTimeout,
) -> Exchange:
    """Send a call; returns when its reply has begun. Raises what aiohttp's session would."""
    import aiohttp

    sent = target.header(headers, length=len(body)) + body
    try:
        connection = await connector.connect(target.request, [], connecting)
    except TimeoutError as error:
        raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {target.request.url}") from error
    try:
        protocol = connection.protocol
        if protocol is None or protocol.transport is None:
            raise aiohttp.ServerDisconnectedError
        protocol.set_response_params(read_until_eof=True)
        protocol.transport.write(sent)
        message, content = await protocol.read()
        # "continue", "early hints": the reply is still to come.
        while 100 <= message.code < 200 and message.code != 101:
            message, content = await protocol.read()
        return Exchange(connection, message, content)
    except BaseException:
        connection.close()
        raise
