"""The map of the code: every function of Dirigent that one request goes through, in order of first call.

    python benchmarks/walk.py [--json] [--check]

A real server in this process answers `POST /v1/chat/completions` over a stub upstream, first with a plan of one step,
then with `worker/NAME`; then `dirigent ask` answers a question over the same stub. A profile hook records each function
of the package at its first call, in the event loop and in the store's thread. Each of the three runs a few times
before, so that imports and first-time work are not counted.

`--json` prints one line for the request with a plan: {"functions": …, "modules": …}.

`--check` reads the walks of docs/reading-guide.md. A stop is written as `path/file.py:function`, with the path from the
root of the repository. The check fails if a stop is gone, if a walk has too many stops, or if the stops of the first
two walks are not called in this order. The failures are printed.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import http.client
import inspect
import io
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

from aiohttp import web

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dirigent"
GUIDE = ROOT / "docs" / "reading-guide.md"
WALKS = 5
MOST_STOPS = 12
STOP = re.compile(r"`([\w./-]+\.py):([\w.]+)`")

WARM_UP = 3
SETTLED_S = 0.3
"""Seconds after a reply in which the server may still finish its work for it."""

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
url = "{folder}/walk.db"
"""
SAID = {"role": "assistant", "content": "hello"}
USAGE = {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21}

Walk = list[str]
"""Lines `file:line function`, in order of first call."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--check", action="store_true", help="check the stops of docs/reading-guide.md")
    args = parser.parse_args()
    walks = measure()
    if args.check:
        faults = check(GUIDE.read_text(encoding="utf-8"), walks)
        print("\n".join(faults) or "every stop of docs/reading-guide.md exists")
        sys.exit(1 if faults else 0)
    if not args.json:
        for title, walk in walks.items():
            print(f"{title}\n  " + "\n  ".join(walk))
        for title, walk in walks.items():
            print(f"{title}: {_count(walk)['functions']} functions in {_count(walk)['modules']} modules")
    print(json.dumps(_count(walks["chat request"])))


def _count(walk: Walk) -> dict[str, int]:
    return {"functions": len(walk), "modules": len({line.partition(":")[0] for line in walk})}


# ---- measuring --------------------------------------------------------------------------------------------


class Recorder:
    """A profile hook: notes each function of the package at its first call."""

    def __init__(self) -> None:
        self._seen: dict[CodeType, None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and _begins(frame):
            self._seen.setdefault(code)

    def clear(self) -> None:
        self._seen = {}

    def walk(self) -> Walk:
        """The calls without class bodies, lambdas and comprehensions, which belong to the function around them."""
        codes = [c for c in list(self._seen) if c.co_flags & inspect.CO_OPTIMIZED and not c.co_name.startswith("<")]
        return [
            f"{Path(c.co_filename).relative_to(ROOT)}:{c.co_firstlineno} {c.co_qualname.replace('<locals>.', '')}"
            for c in codes
        ]


def _begins(frame: FrameType) -> bool:
    """Whether a function is called, and not a coroutine resumed: the argument of RESUME distinguishes them."""
    return frame.f_lasti < 0 or frame.f_code.co_code[frame.f_lasti + 1] == 0


def measure() -> dict[str, Walk]:
    """The walks by name. The server runs in this thread, as in production; another thread sends the requests."""
    from dirigent.cli import app

    walks: dict[str, Walk] = {}
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder, _stub() as upstream:
        os.environ["DIRIGENT_HOME"] = folder
        config = Path(folder) / "dirigent.toml"
        config.write_text(CONFIG.format(upstream=upstream, folder=folder))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        client = threading.Thread(target=_send_all, args=(port, recorder, walks), daemon=True)
        client.start()  # before the hook is set, so that this thread has no hook
        threading.setprofile(recorder)
        sys.setprofile(recorder)
        try:
            _command(lambda: app(["serve", "--port", str(port), "--config", str(config)]))
            client.join()
            for _ in range(WARM_UP + 1):
                recorder.clear()
                _command(lambda: app(["ask", "Say hello.", "--config", str(config)]))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        walks["ask"] = recorder.walk()
    return walks


def _command(call: Callable[[], object]) -> None:
    """Run a command of the command line in this process; its output is shown only if it fails."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            call()
    except SystemExit as ended:
        if ended.code:
            raise SystemExit(f"the command failed with code {ended.code}: {said.getvalue()}") from None


def _send_all(port: int, recorder: Recorder, walks: dict[str, Walk]) -> None:
    try:
        _wait_for(port)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for title, model in (("chat request", "plan"), ("worker/NAME", "worker/stub")):
            for _ in range(WARM_UP + 1):
                recorder.clear()
                _send(connection, model)
                time.sleep(SETTLED_S)
            walks[title] = recorder.walk()
        connection.close()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _send(connection: http.client.HTTPConnection, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse().read().decode()
    if "hello" not in reply:
        raise SystemExit(f"{model} answered: {reply}")


def _wait_for(port: int, *, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
            return
        time.sleep(0.05)
    raise SystemExit(f"the server did not answer on port {port} within {within_s:g} s")


@contextlib.contextmanager
def _stub() -> Iterator[str]:
    """An upstream in a thread of its own, with a loop of its own."""
    loop = asyncio.new_event_loop()

    async def answer(request: web.Request) -> web.Response:
        part = "delta" if (await request.json()).get("stream") else "message"
        choice = {"index": 0, part: SAID, "finish_reason": "stop"}
        reply = {"id": "x", "object": "chat.completion", "model": "stub", "choices": [choice], "usage": USAGE}
        if part == "message":
            return web.json_response(reply)
        return web.Response(text=f"data: {json.dumps(reply)}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    async def listen() -> tuple[web.AppRunner, int]:
        stub = web.Application()
        stub.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(stub, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner, runner.addresses[0][1]

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner, port = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# ---- checking the guide -----------------------------------------------------------------------------------


def check(guide: str, walks: dict[str, Walk]) -> list[str]:
    """The faults of the reading guide, one line each."""
    sections = guide.split("\n## ")[1:]
    faults = []
    found = [(section.partition("\n")[0], STOP.findall(section)) for section in sections]
    found = [(title, stops) for title, stops in found if stops]
    if len(found) != WALKS:
        faults.append(f"the guide has {len(found)} walks; write {WALKS}")
    for title, stops in found:
        if len(stops) > MOST_STOPS:
            faults.append(f"{title}: {len(stops)} stops; leave out all but {MOST_STOPS}")
        faults += [f"{title}: {gone}" for file, function in stops if (gone := _missing_reason(file, function))]
    for (title, stops), walk in zip(found, (walks["ask"], walks["chat request"]), strict=False):
        faults += [f"{title}: {fault}" for fault in _out_of_order(stops, walk)]
    return faults


def _missing_reason(file: str, function: str) -> str:
    """The reason why a stop is missing, or an empty string."""
    path = ROOT / file
    if not path.is_file():
        return f"{file}: there is no such file"
    names = set(_names(ast.parse(path.read_text(encoding="utf-8"))))
    return "" if function in names else f"{file} has no function {function!r}"


def _names(tree: ast.AST, within: str = "") -> list[str]:
    """Every function and class with the names around it, as in `Conductor.run`."""
    names = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names += [within + node.name, *_names(node, f"{within}{node.name}.")]
        else:
            names += _names(node, within)
    return names


def _out_of_order(stops: list[tuple[str, str]], walk: Walk) -> list[str]:
    called = [(line.partition(":")[0], line.partition(" ")[2]) for line in walk]
    faults = [f"{file}:{function} is never called" for file, function in stops if (file, function) not in called]
    places = [called.index(stop) for stop in stops if stop in called]
    if places != sorted(places):
        faults.append("the stops are not in order of first call")
    return faults


if __name__ == "__main__":
    main()
