"""Measures the server's cost on top of a call: CPU and latency against other proxies, and a kill -9.

    python benchmarks/overhead.py [--requests 200] [--rounds 21] [--concurrency 1,16,64] [--json] [--profile]
    python benchmarks/overhead.py --peers litellm,switchyard [--out docs/results/overhead.json]
    python benchmarks/overhead.py --soak 100000

Three servers, one process each, run at the same time in front of the same stub upstream: a proxy of twenty lines that
only passes bodies on; ours with `worker/NAME`; and ours with a plan of one step. Both of ours store every attempt
(committed before the upstream call), its settlement and the trace (before the last byte). The servers take turns, a
round of requests each, and another one begins each round, so that other load on the machine hits all alike; a ratio is
the median over the rounds. Rounds are short and many, because only neighbours compare: the proxy's own CPU swings by a
third with the state of its heap (whether or not each read of a socket, 256 KiB by default, gets a mapping of its own
from the system). CPU is user and system time of a server and its children. Machines differ: read the ratios.

`--peers` installs other proxies, each into an environment of its own under `--peers-folder`, and lets them take turns
with ours: LiteLLM's proxy (Python), and NVIDIA's Switchyard (Rust, the package nemo-switchyard). Neither stores
anything. `peer_ratio` is a peer's CPU as a multiple of ours with `worker/NAME`.

The last line is one JSON object. `--json` prints that line only, and `--out` also writes it to a file, for
docs/benchmarks.md. `--profile` shows our CPU by library. `--soak N` sends N requests and compares the server's memory
at the end with that after a tenth of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections import defaultdict
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
LITELLM = """\
model_list:
  - model_name: stub
    litellm_params: {{model: openai/stub, api_base: "{upstream}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""
SWITCHYARD = """\
schema_version = 1
[llm_clients.stub]
format = "openai_chat"
base_url = "{upstream}/v1"
api_key_env = "STUB_KEY"
[targets.stub]
id = "stub"
llm_client = "stub"
[routes.stub]
id = "through"
type = "passthrough"
target = "stub"
"""
SWITCHYARD_PROGRAM = """\
import sys, time
from switchyard_rust.server import Server
with Server(sys.argv[1], int(sys.argv[2])):
    time.sleep(86400)
"""
PEERS = {"litellm": ("litellm[proxy]", "stub"), "switchyard": ("nemo-switchyard", "through")}
"""Each peer's package, and the model to ask for."""
PEER_START_S = 120.0
TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP = 300
MAX_GROWTH_MB = 10.0


def main() -> None:
    args = _arguments()
    if args.role in ("stub", "bare"):
        asyncio.run(_listen(_stub() if args.role == "stub" else _bare(args.upstream)))
    elif args.role == "profiled":
        _serve_profiled(args.config, args.profile_into)
    elif args.soak:
        result = asyncio.run(_soak(args.soak))
        print(json.dumps(result))
        sys.exit(0 if result["growth_mb"] <= MAX_GROWTH_MB else 1)
    else:
        for name in filter(None, args.peers.split(",")):
            if name not in PEERS:
                raise SystemExit(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
        levels = [int(text) for text in args.concurrency.split(",")]
        result = asyncio.run(_measure_all(levels, args))
        print(json.dumps(result))
        if args.out:
            args.out.write_text(json.dumps(result | _circumstances(args), indent=1) + "\n")
        sys.exit(0 if result["kill_lost"] == 0 else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="requests a round, for each server and concurrency")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--concurrency", default="1,16,64")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--profile", action="store_true", help="also print the CPU of a plan by library")
    parser.add_argument("--soak", type=int, default=0, metavar="N", help="compare memory after N/10 and N requests")
    parser.add_argument("--peers", default="", metavar="NAMES", help=f"also measure these: {','.join(PEERS)}")
    parser.add_argument("--peers-folder", type=Path, default=Path.home() / ".cache" / "dirigent" / "peers")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="also write the result there")
    parser.add_argument("--role", choices=("stub", "bare", "profiled"), help=argparse.SUPPRESS)
    parser.add_argument("--upstream", default="", help=argparse.SUPPRESS)
    parser.add_argument("--config", default="", help=argparse.SUPPRESS)
    parser.add_argument("--profile-into", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


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
def _process(*command: str, home: Path, under: tuple[str, ...] = ()) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server and its address, which is in its first line."""
    env = os.environ | {"DIRIGENT_HOME": str(home)}
    with subprocess.Popen([*under, sys.executable, *command], stderr=subprocess.PIPE, text=True, env=env) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        if "http://" not in line:
            raise SystemExit(f"did not start: {line}{running.stderr.read()}")
        try:
            yield running, line.split()[1].removesuffix("/v1")
        finally:
            running.kill()


@contextlib.contextmanager
def _upstream(home: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The stub's address, and the command that serves over it."""
    with _process(__file__, "--role", "stub", home=home) as (_, url):
        config = home / "dirigent.toml"
        config.write_text(CONFIG.format(upstream=url, store=home / "overhead.db"))
        yield url, ("-m", "dirigent", "serve", "--port", "0", "--config", str(config))


@contextlib.contextmanager
def _peer(name: str, environments: Path, upstream: str, home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another project's proxy and its address. It is installed first if it is not yet."""
    folder, package = environments / name, PEERS[name][0]
    if not (folder / "installed").exists():
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", package], check=True, stdout=sys.stderr)
        (folder / "installed").touch()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    config, log = home / f"{name}.yaml", home / f"{name}.log"
    command: list[str | Path]
    if name == "litellm":
        config.write_text(LITELLM.format(upstream=upstream))
        command = [folder / "bin" / "litellm", "--config", str(config), "--host", "127.0.0.1", "--port", port]
    else:
        config.write_text(SWITCHYARD.format(upstream=upstream))
        command = [folder / "bin" / "python", "-c", SWITCHYARD_PROGRAM, str(config), port]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"STUB_KEY": "none"}
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, cwd=home, env=env, text=True) as running,
    ):
        try:
            end = time.monotonic() + PEER_START_S
            while running.poll() is None and time.monotonic() < end:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", int(port)), 1).close()
                    break
                time.sleep(0.2)
            else:
                raise SystemExit(f"{name} did not start: {log.read_text()[-2000:]}")
            yield running, f"http://127.0.0.1:{port}"
        finally:
            running.kill()


def _cpu_s(pid: int) -> float:
    """User and system time of a process and of all below it, ended ones included."""
    clock = ((~pid) << 3) | 2  # Linux: the CPU clock of another process, to the nanosecond
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = sum(int(field) for field in fields[13:15]) / TICKS
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return time.clock_gettime(clock) + ended + sum(_cpu_s(int(child)) for child in children)


# ---- CPU and latency --------------------------------------------------------------------------------------


async def _measure_all(levels: list[int], args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        upstream, serve = stack.enter_context(_upstream(home))
        with contextlib.ExitStack() as servers:
            bare = servers.enter_context(_process(__file__, "--role", "bare", "--upstream", upstream, home=home))
            ours = servers.enter_context(_process(*serve, home=home))
            planned = servers.enter_context(_process(*serve, home=home))
            contest = {"bare": (*bare, "x"), "worker": (*ours, "worker/stub"), "plan": (*planned, "plan")}
            for name in filter(None, args.peers.split(",")):
                peer = servers.enter_context(_peer(name, args.peers_folder, upstream, home))
                contest[name] = (*peer, PEERS[name][1])
            measured = {level: await _rounds(contest, level, args) for level in levels}
        if not args.json:
            _print(measured)
        if args.profile:
            await _profile(home, max(levels), args.requests * args.rounds)
        killed = await _killed(serve, home, upstream)
    return _summary(measured) | killed


def _circumstances(args: argparse.Namespace) -> dict[str, Any]:
    """The facts that a reader needs beside the figures: their source, the method, and the peers' versions."""
    from dirigent.evals.record import source_commit

    versions = {}
    for name in filter(None, args.peers.split(",")):
        package = PEERS[name][0].partition("[")[0]
        asked = f"from importlib.metadata import version; print(version({package!r}))"
        python = args.peers_folder / name / "bin" / "python"
        versions[name] = subprocess.run(
            [python, "-c", asked], capture_output=True, text=True, check=True
        ).stdout.strip()
    return {
        "commit": asyncio.run(source_commit()),
        "rounds": args.rounds,
        "requests": args.requests,
        "load": round(os.getloadavg()[0], 1),
        "versions": versions,
    }


async def _rounds(
    contest: dict[str, Any], level: int, args: argparse.Namespace
) -> dict[str, list[tuple[float, float]]]:
    """For each server (CPU ms a request, median latency in ms), round by round."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    turns = list(contest.items())
    # Servers close a connection that was idle for 5 s: on a busy machine the others' turns take longer.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(connector=connector) as session:
        for number in range(-1, args.rounds):
            turns = [*turns[1:], turns[0]]
            for name, (process, url, model) in turns:
                count = WARM_UP if number < 0 else args.requests
                before = _cpu_s(process.pid)
                latencies = await _load(session, url, model, level, count)
                used_ms = (_cpu_s(process.pid) - before) * 1000 / count
                if number >= 0:
                    found[name].append((used_ms, statistics.median(latencies) * 1000))
    return found


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


def _print(measured: dict[int, dict[str, list[tuple[float, float]]]]) -> None:
    for level, by_name in measured.items():
        for name, rounds in by_name.items():
            cpu_ms, p50_ms = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(f"concurrency {level:<4}{name:<11}{cpu_ms:>8.3f} ms CPU a request{p50_ms:>9.2f} ms p50")


def _summary(measured: dict[int, dict[str, list[tuple[float, float]]]]) -> dict[str, Any]:
    def cpu_ms(name: str, level: int) -> float:
        return statistics.median(cpu for cpu, _ in measured[level][name])

    def p50_ms(name: str, level: int) -> float:
        return statistics.median(p50 for _, p50 in measured[level][name])

    def ratio(name: str, level: int, *, to: str = "bare") -> float:
        both = zip(measured[level][name], measured[level][to], strict=True)
        return round(statistics.median(one[0] / other[0] for one, other in both), 2)

    peers = [name for name in PEERS if all(name in by_name for by_name in measured.values())]
    return {
        "bare_cpu_ms": {level: round(cpu_ms("bare", level), 3) for level in measured},
        "worker_cpu_ms": {level: round(cpu_ms("worker", level), 3) for level in measured},
        "plan_cpu_ms": {level: round(cpu_ms("plan", level), 3) for level in measured},
        "worker_ratio": {level: ratio("worker", level) for level in measured},
        "plan_ratio": {level: ratio("plan", level) for level in measured},
        "peer_ratio": {name: {level: ratio(name, level, to="worker") for level in measured} for name in peers},
        "peer_ratio_to_bare": {name: {level: ratio(name, level) for level in measured} for name in peers},
        "added_p50_ms": {level: round(p50_ms("plan", level) - p50_ms("bare", level), 2) for level in measured},
    }


# ---- the CPU by library -----------------------------------------------------------------------------------


async def _profile(home: Path, level: int, requests: int) -> None:
    """The CPU of a plan by library, both threads; profiling itself makes Python's part look larger than it is."""
    into = home / "profile.json"
    role = ("--role", "profiled", "--config", str(home / "dirigent.toml"), "--profile-into", str(into))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        with _process(__file__, *role, home=home) as (process, url):
            await _load(session, url, "plan", level, requests)
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, 60)
    shares: dict[str, float] = json.loads(into.read_text())
    whole = sum(shares.values())
    for layer, seconds in sorted(shares.items(), key=lambda item: -item[1]):
        if seconds / whole >= 0.005:
            print(f"{layer:<44}{seconds / whole:>7.1%}")


def _serve_profiled(config: str, into: str) -> None:
    import cProfile
    import pstats

    from dirigent.cli import app
    from dirigent.store.writer import Writer

    by_layer: dict[str, float] = defaultdict(float)

    def add(profile: cProfile.Profile, thread: str) -> None:
        profile.disable()
        for (file, _, name), (_, _, own_s, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
            by_layer[f"{thread}: {_layer(file, name)}"] += own_s

    plain = Writer._run

    def profiled(self: Writer) -> None:
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        plain(self)
        add(profile, "store thread")

    Writer._run = profiled  # type: ignore[method-assign]
    profile = cProfile.Profile(time.thread_time)
    profile.enable()
    with contextlib.suppress(SystemExit):
        app(["serve", "--port", "0", "--config", config])
    add(profile, "event loop")
    Path(into).write_text(json.dumps(by_layer))


def _layer(file: str, name: str) -> str:
    parts = Path(file).parts
    if "site-packages" in parts:
        return parts[parts.index("site-packages") + 1]
    if "dirigent" in parts:
        inside = parts[len(parts) - parts[::-1].index("dirigent") :]
        return "dirigent." + inside[0].removesuffix(".py")
    return "asyncio" if "asyncio" in parts else "sqlite3" if "sqlite3" in name else "Python and the system"


# ---- no answered run is lost ------------------------------------------------------------------------------


async def _killed(serve: tuple[str, ...], home: Path, upstream: str) -> dict[str, Any]:
    """Kill the server under load: every answered run has its trace and its settlement, every upstream call its
    attempt."""
    from sqlalchemy import func, select

    from dirigent.store import Store
    from dirigent.store.tables import attempts

    async def attempted(store: Store) -> int:
        return await store.read(lambda c: c.scalar(select(func.count()).select_from(attempts)) or 0)

    async def settled(store: Store) -> set[str]:
        query = select(attempts.c.run_id).where(attempts.c.state == "settled")
        return await store.read(lambda c: set(c.scalars(query)))

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
        kept = {row.id for row in await store.list(limit=None)} & await settled(store)
        calls = await _calls(session, upstream) - calls_before
        rows = await attempted(store) - rows_before
    lost = sum(id not in kept for id in answered) + max(0, calls - rows)
    return {"kill_answered": len(answered), "kill_upstream_calls": calls, "kill_attempts": rows, "kill_lost": lost}


async def _calls(session: aiohttp.ClientSession, upstream: str) -> int:
    async with session.get(f"{upstream}/calls") as response:
        return int(await response.text())


# ---- memory -----------------------------------------------------------------------------------------------


async def _soak(requests: int) -> dict[str, Any]:
    """Resident memory of the server after a tenth of the requests and after all of them."""
    early = max(1, requests // 10)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        home = Path(folder)
        _, serve = stack.enter_context(_upstream(home))
        process, url = stack.enter_context(_process(*serve, home=home))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await _load(session, url, "plan", 16, early)
            before_mb = _resident_mb(process.pid)
            await _load(session, url, "plan", 16, requests - early)
            after_mb = _resident_mb(process.pid)
    return {
        "soak_requests": {"early": early, "late": requests},
        "resident_mb": {"early": round(before_mb, 1), "late": round(after_mb, 1)},
        "growth_mb": round(after_mb - before_mb, 1),
    }


def _resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
