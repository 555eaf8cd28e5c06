"""Hostile input: B1, S1, S2, S3, S4, S5, S7 of the goal sheet.

The model that plans is assumed lost: stubs here obey whatever they read. What holds, holds by code. Longer rows have
modules of their own: `fuzz.py` (B1's cases), `access.py` (S1), `tenants.py` (S2), `injections.py` (S3), `ssrf.py` (S4),
`secret_scan.py` (S5).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from dirigent.workers.http import MAX_HOPS
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply
from tests.torture.access import s1
from tests.torture.fuzz import Case, draw_cases, judge, shown, whole_or_first
from tests.torture.harness import Progress, Result, Row, Server, config, connections, profile, worker
from tests.torture.injections import s3
from tests.torture.journals import leaks
from tests.torture.secret_scan import s5
from tests.torture.ssrf import s4
from tests.torture.tenants import s2

AT_ONCE = 16
PLAN = json.dumps({"steps": [{"id": "0", "models": ["alpha"], "prompt": "say it", "access_list": []}]})


# ---- B1: requests drawn from the description ---------------------------------------------------------------


async def b1(count: int, seed: int) -> Result:
    """Every reply fits the description; no reply is a 5xx unless the request asked for it."""
    rng, progress, faults, statuses = random.Random(seed), Progress("B1", count), [], Counter[int]()
    began = time.monotonic()
    async with fuzzed() as server, _session(server) as session:
        async with session.get(server.url + "/openapi.json") as response:
            description = await response.json()
        ids = [await _made(session, server, path) for path in ("/v1/chat/completions", "/v1/responses")]
        models = [card["id"] for card in json.loads((await server.get("/v1/models"))[1])["data"]]
        cases = draw_cases(description, rng, count, models=models, ids=ids)

        async def send() -> None:
            for case in cases:
                status, headers, body = await _sent(session, server, case)
                statuses[status] += 1
                if fault := judge(case, status, headers, body, description):
                    faults.append(fault)
                progress.step()

        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        if (status := (await server.get("/readyz"))[0]) != 200:
            faults.append(f"afterwards the server is not ready: {status}")
        await server.stop()
        faults += await leaks(server)
        log = server.log.read_text(errors="replace")
        faults += [f"the log has a traceback: {log[log.index('Traceback') :][:1500]}"] if "Traceback" in log else []
    kinds = {str(status): number for status, number in statuses.most_common(6)}
    rate = round(count / (time.monotonic() - began))
    return Result(count - len(faults), count, tuple(faults[:12]), {"a second": rate, **kinds})


@contextlib.asynccontextmanager
async def fuzzed() -> AsyncIterator[Server]:
    """A server with a conductor and two workers that can do everything; each answers at once."""
    abilities = "{ images = true, tools = true, schema = true, json_mode = true, stop = true, effort = true }"
    async with StubProvider(_fuzz_answer) as stub:
        url = stub.url("openai")
        text = config(
            worker("alpha", url=url, abilities=abilities, region="eu"),
            worker("beta", url=url, abilities=abilities, region="us"),
            worker("boss", url=url, retries=0),
            profile("ultra", planner="language", planner_worker="boss", dialect="json", max_rounds=2),
            profile("mini", planner_worker="alpha"),
        )
        async with Server.open(text) as server:
            yield server


def _fuzz_answer(call: StubCall) -> str | StubReply:
    if call.model == "boss":
        return '{"steps": []}' if any(turn["role"] == "assistant" for turn in call.body["messages"]) else PLAN
    return "{}" if "response_format" in call.body else "an answer in a few words"


@contextlib.asynccontextmanager
async def _session(server: Server) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {server.admin_key}"}
    async with aiohttp.ClientSession(
        connector=connections(), headers=headers, timeout=aiohttp.ClientTimeout(total=60)
    ) as session:
        yield session


async def _made(session: aiohttp.ClientSession, server: Server, path: str) -> str:
    """The id of something that there is."""
    said: dict[str, Any] = {"input": "hi"} if "responses" in path else {"messages": [{"role": "user", "content": "hi"}]}
    async with session.post(server.url + path, json={"model": "worker/alpha", **said}) as response:
        assert response.status == 200, await response.text()
        made: dict[str, Any] = await response.json()
    return str(made["id"] if "responses" in path else made["dirigent"]["trace_id"])


async def _sent(session: aiohttp.ClientSession, server: Server, case: Case) -> tuple[int, dict[str, str], bytes]:
    url, headers = URL(server.url + case.target, encoded=True), dict(case.headers)
    options: dict[str, Any] = {"skip_auto_headers": ["Content-Type"], "allow_redirects": False}
    try:
        async with session.request(case.method, url, data=case.body, headers=headers, **options) as response:
            body = await whole_or_first(response)
            server.keep(response.headers, body)
            return response.status, dict(response.headers), body
    except (aiohttp.ClientError, TimeoutError) as error:
        return 599, {}, f"no reply: {error!r} to {shown(case)}".encode()


# ---- S7: a worker that is the server itself ----------------------------------------------------------------


async def s7(count: int, seed: int) -> Result:
    """A worker whose address leads back here, through a relay that hides it: calls stay within the depth limit."""
    progress, faults, calls = Progress("S7", count), [], [0]
    async with _relay(calls) as relay:
        text = config(
            worker("mirror", url=f"{relay.url}/v1", abilities="{ tools = true }"),
            profile("ultra", planner_worker="mirror"),
        ).replace('model = "mirror"', 'model = "worker/mirror"')
        async with Server.open(text) as server, _session(server) as session:
            relay.target, relay.key = server.url, server.key
            for number in range(count):
                body = {"model": ("worker/mirror", "ultra")[number % 2], "stream": number % 4 > 1}
                body["messages"] = [{"role": "user", "content": f"number {number}"}]  # type: ignore[assignment]
                before = calls[0]
                async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
                    said = await response.read()
                if response.status < 400 and b'"error"' not in said:
                    faults.append(f"request {number} was answered: {said[:200]!r}")
                if calls[0] - before > MAX_HOPS:
                    faults.append(f"request {number} made {calls[0] - before} calls")
                progress.step()
            await server.stop()
    if calls[0] > MAX_HOPS * count:
        faults.append(f"{calls[0]} calls for {count} requests; {MAX_HOPS} a request is the limit")
    return Result(
        count - len(faults), count, tuple(faults[:12]), {"calls": calls[0], "a request": round(calls[0] / count, 2)}
    )


class _Relay:
    """Where the worker's address points: passes everything on to the server, as a proxy in between would."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.target = self.key = ""


@contextlib.asynccontextmanager
async def _relay(calls: list[int]) -> AsyncIterator[_Relay]:
    async def pass_on(request: web.Request) -> web.StreamResponse:
        calls[0] += 1
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")
        }
        headers["Authorization"] = f"Bearer {relay.key}"
        async with session.post(relay.target + request.path, data=await request.read(), headers=headers) as reply:
            kept = {n: v for n, v in reply.headers.items() if n.lower() not in ("content-length", "transfer-encoding")}
            return web.Response(body=await reply.read(), status=reply.status, headers=kept)

    app = web.Application()
    app.router.add_post("/{path:.*}", pass_on)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    relay = _Relay(f"http://127.0.0.1:{runner.addresses[0][1]}")
    async with aiohttp.ClientSession(connector=connections()) as session:
        try:
            yield relay
        finally:
            await runner.cleanup()


ROWS = (
    Row(
        "B1",
        "requests drawn from our own description: no 5xx, no undocumented status, errors in shape",
        50_000,
        5_000,
        b1,
    ),
    Row("S1", "random plans with a canary a step: none is seen outside the access list", 100_000, 3_000, s1),
    Row("S2", "every route with every kind of id of another key: nothing crosses over", 3_000, 500, s2),
    Row("S3", "injections that conductor and workers obey: workers, steps, budget and access stand", 1_000, 320, s3),
    Row("S4", "addresses and rebound names to be fetched in every field: the trap is never reached", 2_880, 440, s4),
    Row("S5", "no secret in any byte that F1-F12, B1 and workers who quote them left", 1_000, 60, s5, closes=True),
    Row("S7", "a worker that leads back to the server: calls within the depth limit", 1_000, 40, s7),
)
