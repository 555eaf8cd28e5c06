"""Debian's Chromium, driven by Playwright, in front of a real server over a stub provider."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from tests.programs import need
from tests.serve.conftest import Server, empty_store, own_home, start, stub  # noqa: F401  # fixtures
from tests.stub_wires import StubCall, StubReply

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

PLAN = {
    "steps": [
        {"id": "0", "models": ["alpha"], "prompt": "read the log, list the likeliest causes", "access_list": []},
        {"id": "1", "models": ["beta"], "prompt": "inspect the code paths named in the log", "access_list": []},
        {"id": "2", "models": ["beta"], "prompt": "decide between the causes", "access_list": ["0", "1"]},
    ]
}


def orchestra(call: StubCall) -> str | StubReply:
    """boss plans three steps; the others write a little Markdown."""
    if call.model == "boss":
        again = any(turn["role"] == "assistant" for turn in call.body["messages"])
        return json.dumps({"steps": []} if again else PLAN)
    return f"**{call.model}** looked into it.\n\n- the first cause\n- the second cause\n\n`x = 1`"


class Browser:
    """One page of a browser, and what went wrong in it."""

    def __init__(self, page: Any, server: Server) -> None:
        self.page, self.server = page, server
        self.faults: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))

    async def open(self, path: str = "/") -> None:
        await self.page.goto(f"{self.server.url}/#{path}")
        await self.page.wait_for_selector("main")

    @property
    def elsewhere(self) -> list[str]:
        """Requests that left the server."""
        own = (self.server.url, "data:", "blob:")
        return [url for url in self.requests if not url.startswith(own)]


class Line:
    """A connection between browser and server that can be cut and mended."""

    _listener: asyncio.Server

    def __init__(self) -> None:
        self._port, self._to = 0, ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def to(self, server: Server) -> Server:
        """The same server at the address of this line."""
        self._to = server.url.removeprefix("http://")
        await self.mend()
        return Server(server.service, server.stub, f"http://127.0.0.1:{self._port}", server.session)

    def cut(self) -> None:
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def mend(self) -> None:
        self._listener = await asyncio.start_server(self._joined, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._to.split(":")
        out, back = await asyncio.open_connection(host, int(port))
        self._writers |= {writer, back}
        await asyncio.gather(_piped(reader, back), _piped(out, writer))


async def _piped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
    writer.close()


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    made = Line()
    yield made
    made.cut()


Open = Callable[..., Awaitable[Browser]]


@pytest.fixture
async def server(start: Any) -> Server:  # noqa: F811
    return await start()  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def chromium() -> str:
    return need("chromium")


@asynccontextmanager
async def launched(chromium: str) -> AsyncIterator[Any]:
    playwright = pytest.importorskip("playwright.async_api")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


@pytest.fixture
async def browse(chromium: str, start: Any, stub: Any) -> AsyncIterator[Open]:  # noqa: F811
    """Open a page on a server: `browse(server)`, with settings of the context such as `color_scheme`."""
    stub.answer = orchestra
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(launched(chromium))

        async def browse(server: Server, **context: Any) -> Browser:
            settings = {"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", "timezone_id": "UTC"} | context
            page = await (await browser.new_context(**settings)).new_page()
            page.set_default_timeout(15_000)
            await page.add_init_script(
                "addEventListener('securitypolicyviolation', e => "
                "console.error('CSP: ' + e.violatedDirective + ' ' + e.blockedURI));"
            )
            return Browser(page, server)

        yield browse
