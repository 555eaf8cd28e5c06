"""What the server costs on top of a call: CPU and latency against a bare aiohttp proxy, and a kill -9.

    python benchmarks/overhead.py [--requests 600] [--concurrency 1,16,64] [--json]

Three servers, one process each, in one run, before the same stub upstream: a proxy of twenty lines that only
passes bodies on; `worker/NAME`; and a plan of one step. Both of ours keep every attempt (committed before the
upstream call) and the trace (before the last byte). CPU is user and system time of a server and its children.
The last line is one JSON object. Loads differ between machines: read the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

REPLY = {
    "id": "x",
    "object": "chat.completion",
    "model": "stub",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 40}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 40, "total_tokens": 60},
}
CONFIG = """\
[[worker]]
name = "stub"
kind = "openai"
model = "stub"
base_url = "{upstream}/v1"
price = {{ input = 1, output = 1 }}

[profile.plan]
planner = "single"

[store]
url = "{store}"
"""
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600, help="measured requests for each server and concurrency")
    parser.add_argument("--concurrency", default="1,16,64")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--role", choices=("stub", "bare"), help=argparse.SUPPRESS)
    parser.add_argument("--upstream", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        asyncio.run(_listen(_stub() if args.role == "stub" else _bare(args.upstream)))
        return
    levels = [int(text) for text in args.concurrency.split(",")]
    result = asyncio.run(_measure_all(levels, args.requests, quiet=args.json))
    print(json.dumps(result))
    sys.exit(0 if result["kill_lost"] == 0 else 1)


# ---- the parts --------------------------------------------------------------------------------------------


def _stub() -> web.Application:
    body = json.dumps(REPLY).encode()
    calls = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        await request.read()
        return web.Response(body=body, content_type="application/json")

    async def count(request: web.Request) -> web.Response:
        return web.json_response(calls)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_get("/calls", count)
    return app


def _bare(upstream: str) -> web.Application:
    async def session(app: web.Application) -> Any:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as made:
            app["session"] = made
            yield

    async def forward(request: web.Request) -> web.Response:
        made: aiohttp.ClientSession = request.app["session"]
        headers = {"Content-Type": "application/json"}
        async with made.post(upstream + request.path, data=await request.read(), headers=headers) as response:
            return web.Response(body=await response.read(), status=response.status, content_type="application/json")

    app = web.Application()
    app.cleanup_ctx.append(session)
    app.router.add_post("/v1/chat/completions", forward)
    return app


async def _listen(app: web.Application) -> None:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    print(f"serving http://127.0.0.1:{runner.addresses[0][1]}", file=sys.stderr, flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def _process(*command: str, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its address, which it says in its first line."""
    env = os.environ | {"DIRIGENT_HOME": str(home)}
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True, env=env) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        if "http://" not in line:
            raise SystemExit(f"did not start: {line}{running.stderr.read()}")
        try:
            yield running, line.split()[1].removesuffix("/v1")
        finally:
            running.kill()


def _cpu_s(pid: int) -> float:
    """User and system time of a process and of all below it, ended ones included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(int(field) for field in fields[11:15]) / TICKS
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(_cpu_s(int(child)) for child in children)


# ---- the measurements -------------------------------------------------------------------------------------


async def _measure_all(levels: list[int], requests: int, *, quiet: bool) -> dict[str, Any]:
    me = __file__
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        _, upstream = stack.enter_context(_process(me, "--role", "stub", home=home))
        config = home / "dirigent.toml"
        config.write_text(CONFIG.format(upstream=upstream, store=home / "overhead.db"))
        serve = ("-m", "dirigent", "serve", "--port", "0", "--config", str(config))
        measured: dict[str, dict[int, tuple[float, float]]] = {}
        for name, command, model in (
            ("bare", (me, "--role", "bare", "--upstream", upstream), "x"),
            ("worker", serve, "worker/stub"),
            ("plan", serve, "plan"),
        ):
            with _process(*command, home=home) as (process, url):
                measured[name] = {level: await _measure(process.pid, url, model, level, requests) for level in levels}
            if not quiet:
                for level, (cpu_ms, p50_ms) in measured[name].items():
                    print(f"{name:<8}concurrency {level:<4}{cpu_ms:>8.3f} ms CPU a request{p50_ms:>9.2f} ms p50")
        killed = await _killed(serve, home, upstream)
    return _summary(measured, levels) | killed


async def _measure(pid: int, url: str, model: str, level: int, requests: int) -> tuple[float, float]:
    """CPU ms a request and the median latency in ms."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await _load(session, url, model, level, max(50, requests // 5))  # warm
        before = _cpu_s(pid)
        latencies = await _load(session, url, model, level, requests)
        return (_cpu_s(pid) - before) * 1000 / requests, statistics.median(latencies) * 1000


async def _load(session: aiohttp.ClientSession, url: str, model: str, level: int, requests: int) -> list[float]:
    left = iter(range(requests))
    latencies = []

    async def client() -> None:
        for _ in left:
            began = time.perf_counter()
            await _ask(session, url, model)
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(level)))
    return latencies


async def _ask(session: aiohttp.ClientSession, url: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": "Tell me forty words, please."}]}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        text = await response.text()
        if response.status != 200:
            raise SystemExit(f"{model}: {response.status} {text[:300]}")
        return response.headers.get("X-Dirigent-Trace-Id", "")


async def _killed(serve: tuple[str, ...], home: Path, upstream: str) -> dict[str, Any]:
    """Kill the server under load: every answered run has its trace, every upstream call its attempt."""
    from sqlalchemy import func, select

    from dirigent.store import Store
    from dirigent.store.tables import attempts

    async def attempted(store: Store) -> int:
        return await store.read(lambda c: c.scalar(select(func.count()).select_from(attempts)) or 0)

    answered: list[str] = []
    async with aiohttp.ClientSession() as session, Store.open(home / "overhead.db") as store:
        calls_before, rows_before = await _calls(session, upstream), await attempted(store)
        with _process(*serve, home=home) as (process, url):

            async def client() -> None:
                with contextlib.suppress(aiohttp.ClientError):
                    while True:
                        answered.append(await _ask(session, url, "plan"))

            clients = [asyncio.ensure_future(client()) for _ in range(16)]
            await asyncio.sleep(2.0)
            process.send_signal(signal.SIGKILL)
            await asyncio.gather(*clients)
        kept = {row.id for row in await store.list(limit=None)}
        calls = await _calls(session, upstream) - calls_before
        rows = await attempted(store) - rows_before
    lost = sum(id not in kept for id in answered) + max(0, calls - rows)
    return {"kill_answered": len(answered), "kill_upstream_calls": calls, "kill_attempts": rows, "kill_lost": lost}


async def _calls(session: aiohttp.ClientSession, upstream: str) -> int:
    async with session.get(f"{upstream}/calls") as response:
        return int(await response.text())


def _summary(measured: dict[str, dict[int, tuple[float, float]]], levels: list[int]) -> dict[str, Any]:
    def ratio(name: str, level: int) -> float:
        return round(measured[name][level][0] / measured["bare"][level][0], 2)

    return {
        "bare_cpu_ms": {level: round(measured["bare"][level][0], 3) for level in levels},
        "worker_ratio": {level: ratio("worker", level) for level in levels},
        "plan_ratio": {level: ratio("plan", level) for level in levels},
        "added_p50_ms": {level: round(measured["plan"][level][1] - measured["bare"][level][1], 2) for level in levels},
    }


if __name__ == "__main__":
    main()
