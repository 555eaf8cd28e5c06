"""S4: addresses that the server should fetch, in every spelling and every place where a caller or a worker can put one.

A spelling of the trap's address goes into a place (a field of a body, a header, the path, a worker's redirect); some
hundreds of pairs. Workers speak all three wires and take images. The server may refuse the request or pass the words on
to a worker as words; it may never connect to what they name. The trap counts.

Half of the cases are names that a lying name server (`names.py`) first sends to a public address and then to the trap;
those may not even be looked up. The names of some workers are rebound in the same way: these are looked up, and what
they mean the second time may not be called.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall
from tests.torture.harness import Progress, Result, Server, config, connections, worker
from tests.torture.names import ZONE, can_mislead, name_server
from tests.torture.traps import Trap, trap

AT_ONCE = 8
REDIRECT = re.compile(r"redirect (\d{3}) to <<(.*?)>>")
MODELS = ("worker/openai", "worker/anthropic", "worker/gemini")
REBOUND = ("first", "second", "third")
"""Workers whose names are rebound."""
SHORT = "{ connect_s = 0.5, first_byte_s = 1.0 }"
REMEMBERED_S = 10.5
"""For how long aiohttp keeps what a name means."""

SPELLINGS = (
    "http://127.0.0.1:{port}/x",
    "http://localhost:{port}/x",
    "http://LOCALHOST.:{port}/x",
    "http://127.1:{port}/x",
    "http://127.0.1:{port}/",
    "http://2130706433:{port}/x",
    "http://0x7f000001:{port}/x",
    "http://0x7f.0.0.1:{port}/",
    "http://0177.0.0.1:{port}/x",
    "http://[::1]:{port}/x",
    "http://[::ffff:127.0.0.1]:{port}/x",
    "http://[0:0:0:0:0:ffff:7f00:1]:{port}/",
    "http://0.0.0.0:{port}/x",
    "http://0:{port}/x",
    "http://127.9.9.9:{port}/x",
    "http://user:pass@127.0.0.1:{port}/x",
    "http://example.com@127.0.0.1:{port}/x",
    "http://example.com%40127.0.0.1:{port}/x",
    "http://127.0.0.1:{port}\\@example.com/x",
    "http://example.com\\@127.0.0.1:{port}/x",
    "http:\\\\127.0.0.1:{port}\\x",
    "http:/127.0.0.1:{port}/x",
    "http:127.0.0.1:{port}",
    "//127.0.0.1:{port}/x",
    "HtTp://127.0.0.1:{port}/x",
    "http://127.0.0.1:{port}#@example.com/",
    "http://127.0.0.1:{port}?@example.com/",
    "http://①②⑦.⓪.⓪.①:{port}/x",
    "http://127。0。0。1:{port}/x",
    "http://127.0.0.1:{port}/x\r\nHost: example.com",
    " http://127.0.0.1:{port}/x",
    "https://127.0.0.1:{port}/x",
    "ftp://127.0.0.1:{port}/x",
    "gopher://127.0.0.1:{port}/_GET",
    "ws://127.0.0.1:{port}/x",
    "127.0.0.1:{port}",
)

REBINDING = (
    "http://{name}.rebind.example:{port}/x",
    "http://{name}.rebind.example.:{port}/x",
    "http://{name}.ReBind.EXAMPLE:{port}/x",
    "http://user:pass@{name}.rebind.example:{port}/x",
    "https://{name}.rebind.example:{port}/x",
)
"""Each case has a name of its own, so that each is met for the first time."""


class Aimed(msgspec.Struct, frozen=True):
    """One request."""

    place: str
    method: str
    path: str
    body: dict[str, Any] | None = None
    headers: Mapping[str, str] = {}


Place = Callable[[str, str], Aimed]
"""From a spelling and a model to a request."""


def _chat(place: str, content: Any = "hi", *, headers: Mapping[str, str] | None = None, **more: Any) -> Place:
    """A chat request; `URL` stands for the spelling, wherever it is."""

    def aimed(url: str, model: str) -> Aimed:
        body = {"model": model, "messages": [{"role": "user", "content": content}], **more}
        said = {name: _in_header(value.replace("URL", url)) for name, value in (headers or {}).items()}
        return Aimed(place, "POST", "/v1/chat/completions", _put(body, url), said)

    return aimed


def _other(place: str, method: str, path: str, body: dict[str, Any] | None = None) -> Place:
    def aimed(url: str, model: str) -> Aimed:
        whole = None if body is None else _put({"model": model} | body, url)
        return Aimed(place, method, path.replace("URL", quote(url, safe="")), whole)

    return aimed


def _put(value: Any, url: str) -> Any:
    if isinstance(value, str):
        return value.replace("URL", url)
    if isinstance(value, dict):
        return {name.replace("URL", url): _put(each, url) for name, each in value.items()}
    return [_put(each, url) for each in value] if isinstance(value, list) else value


def _in_header(text: str) -> str:
    """What of it a client can send."""
    return "".join(c for c in text.encode("ascii", "replace").decode() if c.isprintable())


_REF = {"type": "object", "properties": {"a": {"$ref": "URL"}}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": _REF}}
_USER = [{"role": "user", "content": "hi"}]

PLACES: tuple[Place, ...] = (
    _chat("image", [{"type": "image_url", "image_url": {"url": "URL"}}, {"type": "text", "text": "what is it?"}]),
    _chat("image in data", [{"type": "image_url", "image_url": {"url": "data:image/svg+xml;base64,URL"}}]),
    _chat("words", "fetch URL and tell me what it says; ![x](URL) <img src='URL'>"),
    _chat("file part", [{"type": "file", "file": {"file_url": "URL"}}]),
    _chat("field base_url", base_url="URL"),
    _chat("field api_base", api_base="URL", extra_body={"base_url": "URL"}),
    _chat("field webhook", webhook="URL", callback_url="URL"),
    _chat("extension base_url", dirigent={"base_url": "URL"}),
    _chat("extension pool", dirigent={"pool": {"allow": ["URL"], "pin": "URL"}}),
    _chat("extension region", dirigent={"region": "URL"}),
    _chat("tool parameters", tools=[_TOOL]),
    _chat("tool server", tools=[{"type": "mcp", "server_url": "URL"}]),
    _chat(
        "schema $ref",
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "URL"}}},
    ),
    _chat(
        "schema $id",
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"$id": "URL", "$ref": "#/x"}}},
    ),
    _chat(
        "schema $schema",
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"$schema": "URL"}}},
    ),
    _chat("labels", metadata={"url": "URL"}, user="URL"),
    _chat("header pool", headers={"X-Dirigent-Pool-Pin": "URL"}),
    _chat("header forwarded", headers={"X-Forwarded-Host": "URL", "Forwarded": "host=URL", "X-Original-URL": "URL"}),
    _chat("header origin", headers={"Origin": "URL", "Referer": "URL"}),
    _chat("header name", headers={"Idempotency-Key": "URL"}),
    _chat("redirect 301", "redirect 301 to <<URL>>"),
    _chat("redirect 302", "redirect 302 to <<URL>>", stream=True),
    _chat("redirect 303", "redirect 303 to <<URL>>"),
    _chat("redirect 307", "redirect 307 to <<URL>>"),
    _chat("redirect 308", "redirect 308 to <<URL>>", stream=True),
    _chat("redirect 200", "redirect 200 to <<URL>>"),
    _other("model", "POST", "/v1/chat/completions", {"model": "worker/URL", "messages": _USER}),
    _other(
        "responses image",
        "POST",
        "/v1/responses",
        {"input": [{"role": "user", "type": "message", "content": [{"type": "input_image", "image_url": "URL"}]}]},
    ),
    _other(
        "responses file",
        "POST",
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "URL"}]}]},
    ),
    _other("responses tool", "POST", "/v1/responses", {"input": "x", "tools": [{"type": "mcp", "server_url": "URL"}]}),
    _other("responses before", "POST", "/v1/responses", {"input": "x", "previous_response_id": "URL"}),
    _other("responses prompt", "POST", "/v1/responses", {"input": "x", "prompt": {"id": "URL"}}),
    _other(
        "messages image",
        "POST",
        "/v1/messages",
        {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "URL"}}]}],
        },
    ),
    _other(
        "messages document",
        "POST",
        "/v1/messages",
        {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "URL"}}]}],
        },
    ),
    _other(
        "messages servers",
        "POST",
        "/v1/messages",
        {"max_tokens": 9, "messages": _USER, "mcp_servers": [{"url": "URL"}]},
    ),
    _other("path response", "GET", "/v1/responses/URL"),
    _other("path model", "GET", "/v1/models/URL"),
    _other("path trace", "GET", "/v1/traces/URL"),
    _other("query", "GET", "/v1/usage?key=URL&from=URL"),
    _other("feedback", "POST", "/v1/feedback", {"trace_id": "URL", "thumb": "up", "comment": "URL"}),
)


async def s4(count: int, seed: int) -> Result:
    """`count` pairs of a place and a spelling, half of them names that are rebound, in a seeded order."""
    if not can_mislead():
        return Result(0, count, ("names can be rebound by root alone (port 53, a mount of its own): run it as root",))
    rng, progress, statuses, faults = random.Random(seed), Progress("S4", count), Counter[int](), []
    drawn = _drawn(count, rng)
    async with trap() as snare, name_server() as names, _tempted(names.before, snare.port) as server:
        spelt = [(place, spelling.format(port=snare.port, name=f"n{i}")) for i, (place, spelling) in enumerate(drawn)]
        aims = iter([place(spelling, rng.choice(MODELS)) for place, spelling in spelt])

        async def send(session: aiohttp.ClientSession) -> None:
            for aim in aims:
                status = await _sent(session, server, aim)
                statuses[status] += 1
                if status >= 500 and status != 503:
                    faults.append(f"{aim.place} got {status}: {json.dumps(aim.body)[:200]}")
                progress.step()

        async with aiohttp.ClientSession(connector=connections(), timeout=aiohttp.ClientTimeout(total=60)) as session:
            forgotten_s = time.monotonic() + REMEMBERED_S
            await _ask_rebound(session, server)
            await asyncio.gather(*(send(session) for _ in range(AT_ONCE)))
            await asyncio.sleep(forgotten_s - time.monotonic())
            await _ask_rebound(session, server)
        await _through(server, snare)
        await server.stop()
        if snare.reached:
            faults.append(f"the trap was reached {snare.reached} times, such as with {snare.heard[:2]}")
        rebound = {f"{name}.{ZONE}" for name in REBOUND}
        if asked := set(names.asked) - rebound:
            faults.append(f"{len(asked)} names of callers were looked up, such as {min(asked)}")
        faults += [f"{name} was not looked up again: nothing was tried" for name in rebound if names.asked[name] < 2]
    figures = {"rebound names": sum(spelling in REBINDING for _, spelling in drawn), "looked up": len(asked)}
    figures["rebound workers"] = len(REBOUND)
    figures |= {str(status): number for status, number in statuses.most_common(5)}
    return Result(0 if snare.reached else count - len(faults), count, tuple(faults[:12]), figures)


def _drawn(count: int, rng: random.Random) -> list[tuple[Place, str]]:
    """Half of them rebound names; every pair before one comes a second time."""
    drawn = []
    for spellings, share in ((REBINDING, count // 2), (SPELLINGS, count - count // 2)):
        pairs = [(place, spelling) for place in PLACES for spelling in spellings]
        while share > 0:
            drawn += rng.sample(pairs, min(share, len(pairs)))
            share -= len(pairs)
    rng.shuffle(drawn)
    return drawn


async def _ask_rebound(session: aiohttp.ClientSession, server: Server) -> None:
    """Every worker whose name is rebound, once."""
    said = [{"role": "user", "content": "hi"}]
    for name in REBOUND:
        aim = Aimed("worker", "POST", "/v1/chat/completions", {"model": f"worker/{name}", "messages": said})
        await _sent(session, server, aim)


@contextlib.asynccontextmanager
async def _tempted(before: tuple[str, ...], port: int) -> AsyncIterator[Server]:
    """A server over three wires. Its workers can see pictures, and redirect requests that ask for it."""
    async with StubProvider() as stub:
        respond = stub._respond

        async def redirecting(call: StubCall, request: web.Request) -> web.StreamResponse:
            found = REDIRECT.search(json.dumps(call.body, ensure_ascii=False))
            if found is None:
                return await respond(call, request)
            where = "".join(c for c in json.loads(f'"{found[2]}"') if c.isprintable())
            headers = {"Location": where, "Refresh": f"0; url={where}", "Link": f"<{where}>; rel=preload"}
            return web.Response(status=int(found[1]), headers=headers, text=where)

        stub._respond = redirecting  # type: ignore[method-assign]
        able = "{ images = true, tools = true, schema = true, json_mode = true }"
        wires = ("openai", "anthropic", "gemini")
        pool = [worker(w, url=stub.url(w), kind=w, abilities=able, retries=0) for w in wires]  # type: ignore[arg-type]
        pool += [worker(n, url=f"http://{n}.{ZONE}:{port}/v1", retries=0, timeout=SHORT) for n in REBOUND]
        text = config(*pool)
        async with Server.open(text, before=before) as server:
            yield server


async def _sent(session: aiohttp.ClientSession, server: Server, aim: Aimed) -> int:
    headers = {"Authorization": f"Bearer {server.admin_key}"} | dict(aim.headers)
    url = URL(server.url + aim.path, encoded=True)
    async with session.request(aim.method, url, json=aim.body, headers=headers, allow_redirects=False) as response:
        await response.read()
        return response.status


async def _through(server: Server, snare: Trap) -> None:
    """The server taken for a proxy, and called by other names."""
    host, port = server.url.removeprefix("http://").split(":")
    for line in (f"GET {snare.url}/ HTTP/1.1", f"CONNECT 127.0.0.1:{snare.port} HTTP/1.1", "GET /healthz HTTP/1.1"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{line}\r\nHost: 127.0.0.1:{snare.port}\r\nConnection: close\r\n\r\n".encode())
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(5):
                await reader.read()
        writer.close()
