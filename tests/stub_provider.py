"""A provider on loopback that speaks all three wire formats, keeps a journal, and fails on demand.

    async with StubProvider() as stub:
        worker = HttpWorker(info, OpenAIWire(), client, base_url=stub.url("openai"))
        stub.faults = ["429", None]        # the first call fails, the second is answered
        ...
        assert [call.fault for call in stub.calls] == ["429", None]

Faults come scripted (`stub.faults`), by address (`stub.url("openai", fault="500")`: every call there fails)
or seeded (`StubProvider(fault_rate=0.05, seed=7)`). What the answers look like is in `stub_wires.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import random
import select
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from aiohttp import web

from tests.stub_wires import WIRES, StubCall, StubReply, WireName, render

__all__ = ["FAULTS", "WIRES", "StubCall", "StubProvider", "StubReply", "WireName", "echo"]

FAULTS = (
    "429",
    "500",
    "502",
    "503",
    "connect-refused",
    "connect-hang",
    "first-byte-hang",
    "mid-stream-stall",
    "one-byte-per-s",
    "garbage-json",
    "200-error-body",
    "truncated-sse",
    "reset-mid-stream",
    "wrong-content-type",
)
"""The fourteen. `429-retry-after` is the first of them with its header; `400`, a refusal, is no fault of the worker."""


Answer = Callable[[StubCall], str | StubReply | Awaitable[str | StubReply]]


def echo(call: StubCall) -> str:
    return f"echo: {call.text}"


class StubProvider:
    """`async with` it. Change `answer`, `faults`, `delay_s` and the rest between calls as you like."""

    def __init__(
        self,
        answer: Answer = echo,
        *,
        faults: Sequence[str | None] = (),
        fault_rate: float = 0.0,
        seed: int = 0,
        key: str | None = None,
    ) -> None:
        self.answer = answer
        self.faults: list[str | None] = list(faults)
        self.fault_rate = fault_rate
        self.key = key
        """Where set, calls without it get a 401."""
        self.models: tuple[str, ...] = ("stub",)
        self.calls: list[StubCall] = []
        self.delay_s = 0.0
        self.chunk_delay_s = 0.0
        self.byte_delay_s = 1.0
        self.retry_after = "1"
        self._news = asyncio.Event()
        self._rng = random.Random(seed)
        self._port = 0
        self._cleanup = contextlib.AsyncExitStack()
        self._dead_ports: dict[str, int] = {}

    async def __aenter__(self) -> StubProvider:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        for prefix in ("", "/fault/{fault}"):
            app.router.add_post(prefix + "/v1/chat/completions", self._serve("openai"))
            app.router.add_post(prefix + "/v1/messages", self._serve("anthropic"))
            app.router.add_post(prefix + "/v1beta/models/{call}", self._serve("gemini"))
        app.router.add_get("/v1/models", self._list_models)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        self._cleanup.push_async_callback(self._runner.cleanup)
        await self.come_up()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._cleanup.aclose()

    async def called(self, count: int = 1) -> StubCall:
        """Wait until this many calls have come in; gives the last of them."""
        while len(self.calls) < count:
            self._news.clear()
            await self._news.wait()
        return self.calls[count - 1]

    async def go_down(self) -> None:
        """Stop listening: new connections are refused, calls under way go on."""
        await self._site.stop()

    async def come_up(self) -> None:
        """Listen, after `go_down` on the same port."""
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await self._site.start()
        self._port = self._runner.addresses[0][1]

    def url(self, wire: WireName, *, fault: str | None = None) -> str:
        """The `base_url` of a worker; with a fault, one where every call fails that way."""
        port, prefix = self._port, f"/fault/{fault}" if fault else ""
        if fault in ("connect-refused", "connect-hang"):
            port, prefix = self._dead_port(fault), ""
        return f"http://127.0.0.1:{port}{prefix}" + ("/v1" if wire == "openai" else "")

    def _dead_port(self, fault: str) -> int:
        if fault not in self._dead_ports:
            opened = _refusing() if fault == "connect-refused" else _hanging()
            self._dead_ports[fault] = self._cleanup.enter_context(opened)
        return self._dead_ports[fault]

    def _serve(self, wire: WireName) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            stream = "streamGenerateContent" in request.path if wire == "gemini" else body.get("stream", False)
            call = StubCall(wire, request.path, dict(request.headers), body, stream, time.monotonic())
            call.peer = request.transport.get_extra_info("peername")[1] if request.transport else 0
            call.fault = request.match_info.get("fault") or self._next_fault()
            self.calls.append(call)
            self._news.set()
            try:
                response = await self._respond(call, request)
                call.finished_at = time.monotonic()
            except (asyncio.CancelledError, ConnectionError):
                call.aborted_at = time.monotonic()
                raise
            finally:
                call.ended.set()
            return response

        return handle

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": id, "object": "model"} for id in self.models]})

    def _next_fault(self) -> str | None:
        if self.faults:
            return self.faults.pop(0)
        return self._rng.choice(FAULTS) if self._rng.random() < self.fault_rate else None

    async def _respond(self, call: StubCall, request: web.Request) -> web.StreamResponse:
        if self.key is not None and self.key not in _keys(call):
            return web.json_response(_error(f"invalid key {_keys(call)}", 401), status=401)
        await asyncio.sleep(self.delay_s)
        early = await self._fail_early(call, request)
        if early is not None:
            return early
        answered = self.answer(call)
        reply = await answered if inspect.isawaitable(answered) else answered
        frames = render(call, StubReply(reply) if isinstance(reply, str) else reply)
        kind = "text/event-stream" if call.stream else "application/json"
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        await self._send(response, call, frames, request)
        await response.write_eof()
        return response

    async def _fail_early(self, call: StubCall, request: web.Request) -> web.StreamResponse | None:
        """The faults that need no answer."""
        fault = call.fault or ""
        if fault in ("429", "429-retry-after"):
            headers = {"Retry-After": self.retry_after} if fault == "429-retry-after" else {}
            return web.json_response(_error("slow down", 429), status=429, headers=headers)
        if fault == "400":
            return web.json_response(_error("no such parameter", 400), status=400)
        if fault in ("500", "502", "503"):
            return web.Response(status=int(fault), text="<html>bad gateway</html>", content_type="text/html")
        if fault == "wrong-content-type":
            return web.Response(text="<html>please log in</html>", content_type="text/html")
        if fault == "connect-refused":  # scripted: the nearest that an open connection can do
            _reset(request)
        if fault in ("connect-hang", "connect-refused", "first-byte-hang"):
            await asyncio.Event().wait()
        if fault in ("garbage-json", "200-error-body"):
            text = '{"id": "x", nonsense' if fault == "garbage-json" else json.dumps(_error("it broke", 500))
            kind = "text/event-stream" if call.stream else "application/json"
            return web.Response(text=f"data: {text}\n\n" if call.stream else text, content_type=kind)
        return None

    async def _send(
        self, response: web.StreamResponse, call: StubCall, frames: list[bytes], request: web.Request
    ) -> None:
        """Write the answer, or as much of it as the fault allows."""
        if call.fault == "one-byte-per-s":
            frames = [bytes([byte]) for frame in frames for byte in frame]
        cut = call.fault in ("mid-stream-stall", "truncated-sse", "reset-mid-stream")
        pause_s = self.byte_delay_s if call.fault == "one-byte-per-s" else self.chunk_delay_s
        for frame in frames[: len(frames) // 2 + 1] if cut else frames:
            await response.write(frame)
            await asyncio.sleep(pause_s)
        if call.fault == "reset-mid-stream":
            await asyncio.sleep(0.02)  # let the written bytes arrive before the reset overtakes them
            _reset(request)
        if call.fault in ("mid-stream-stall", "reset-mid-stream"):
            await asyncio.Event().wait()


def _keys(call: StubCall) -> list[str]:
    headers = {name.lower(): value for name, value in call.headers.items()}
    name = {"openai": "authorization", "anthropic": "x-api-key", "gemini": "x-goog-api-key"}[call.wire]
    return [headers.get(name, "").removeprefix("Bearer ")]


def _error(message: str, code: int) -> dict[str, Any]:
    return {"type": "error", "error": {"message": message, "type": "stub_error", "code": code}}


def _reset(request: web.Request) -> None:
    """End the connection with an RST, as a crashing server's kernel would."""
    transport = request.transport
    assert transport is not None
    endpoint = transport.get_extra_info("socket")
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


@contextlib.contextmanager
def _refusing() -> Iterator[int]:
    """A port that is taken but not listened on: connections to it are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextlib.contextmanager
def _hanging() -> Iterator[int]:
    """A port whose queue of connections is full and never emptied: the kernel drops what else comes."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            if not select.select([], [filler], [], 0.05)[1]:
                break
        yield listener.getsockname()[1]
