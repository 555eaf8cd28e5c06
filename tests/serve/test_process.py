"""`dirigent serve` as a process: it starts, refuses, and stops gracefully."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from dirigent.config.runtime import STORE_FILE
from dirigent.messages import ToolCall, Usage
from dirigent.store import Store
from tests.serve.conftest import CONFIG, PLAN
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply


@asynccontextmanager
async def process(
    folder: Path, url: str, *options: str, program: tuple[str, str] = ("-m", "dirigent")
) -> AsyncIterator[asyncio.subprocess.Process]:
    config = folder / "dirigent.toml"
    config.write_text(CONFIG.format(url=url, store=folder / "home" / STORE_FILE))
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, "serve", "--port", "0", "--config", str(config), *options),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"DIRIGENT_HOME": str(folder / "home")},
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def test_on_sigterm_it_finishes_running_requests(tmp_path: Path, stub: StubProvider) -> None:
    release = asyncio.Event()

    async def hang(call: StubCall) -> str:
        await release.wait()
        return "in time"

    stub.answer = hang
    async with process(tmp_path, stub.url("openai")) as running, aiohttp.ClientSession() as session:
        assert running.stderr is not None
        line = (await running.stderr.readline()).decode()
        assert line.startswith("serving http://127.0.0.1:"), line
        base = line.split()[1]
        body = {"model": "worker/alpha", "messages": [{"role": "user", "content": "hi"}]}
        asking = asyncio.ensure_future(session.post(f"{base}/chat/completions", json=body))
        await stub.called(1)
        running.send_signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while await _listens(base):
            assert time.monotonic() < end, "it still takes connections"
        release.set()
        async with await asking as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "in time"
        assert await asyncio.wait_for(running.wait(), 10) == 0
    async with Store.open(tmp_path / "home" / STORE_FILE) as store:
        assert [row.status for row in await store.list()] == ["done"]


async def test_a_run_longer_than_the_grace_period_is_cancelled_and_stored(tmp_path: Path, stub: StubProvider) -> None:
    stub.delay_s = 60.0
    async with process(tmp_path, stub.url("openai"), "--grace", "1") as running, aiohttp.ClientSession() as session:
        assert running.stderr is not None
        base = (await running.stderr.readline()).decode().split()[1]
        body = {"model": "worker/alpha", "messages": [{"role": "user", "content": "hi"}]}
        asking = asyncio.ensure_future(session.post(f"{base}/chat/completions", json=body))
        call = await stub.called(1)
        running.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.wait(), 10) == 0
        await call.ended.wait()
        assert call.aborted
        await asyncio.wait([asking])
        if asking.exception() is None:
            asking.result().close()
    async with Store.open(tmp_path / "home" / STORE_FILE) as store:
        assert [row.status for row in await store.list()] == ["cancelled"]


async def test_on_sigterm_it_is_not_ready_and_serves_for_one_more_second(tmp_path: Path, stub: StubProvider) -> None:
    async with process(tmp_path, stub.url("openai")) as running:
        assert running.stderr is not None
        base = (await running.stderr.readline()).decode().split()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(base.removesuffix("/v1").rpartition(":")[2]))
        async with aiohttp.ClientSession() as session:
            async with session.get(base.removesuffix("/v1") + "/readyz") as ready:
                assert ready.status == 200
            running.send_signal(signal.SIGTERM)
            async with asyncio.timeout(0.9):
                while await _ready(session, base):
                    pass
        body = json.dumps({"model": "worker/alpha", "messages": [{"role": "user", "content": "hi"}]})
        head = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
        async with asyncio.timeout(10):
            said = await reader.read()
            assert await running.wait() == 0
        writer.close()
        await writer.wait_closed()
    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in said.lower()


async def test_a_second_signal_does_not_wait(tmp_path: Path, stub: StubProvider) -> None:
    stub.delay_s = 60.0
    async with process(tmp_path, stub.url("openai"), "--grace", "30") as running, aiohttp.ClientSession() as session:
        assert running.stderr is not None
        base = (await running.stderr.readline()).decode().split()[1]
        body = {"model": "worker/alpha", "messages": [{"role": "user", "content": "hi"}]}
        asking = asyncio.ensure_future(session.post(f"{base}/chat/completions", json=body))
        await stub.called(1)
        running.send_signal(signal.SIGTERM)
        while await _ready(session, base):
            pass
        running.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.wait(), 10) == 0
        await asyncio.wait([asking])
        if asking.exception() is None:
            asking.result().close()
    async with Store.open(tmp_path / "home" / STORE_FILE) as store:
        assert [row.status for row in await store.list()] == ["cancelled"]


async def test_a_client_that_never_asks_does_not_keep_it_from_stopping(tmp_path: Path, stub: StubProvider) -> None:
    async with process(tmp_path, stub.url("openai")) as running:
        assert running.stderr is not None
        base = (await running.stderr.readline()).decode().split()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(base.removesuffix("/v1").rpartition(":")[2]))
        await _answered(base)
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(8):  # it would give requests under way 30 s
            assert await running.wait() == 0
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


async def test_it_refuses_to_listen_to_everybody_without_keys(tmp_path: Path, stub: StubProvider) -> None:
    async with process(tmp_path, stub.url("openai"), "--host", "0.0.0.0") as running:
        _, said = await running.communicate()
        assert running.returncode == 2
        assert b"dirigent keys create" in said


async def test_a_crash_says_where_it_was(tmp_path: Path, stub: StubProvider) -> None:
    async with process(tmp_path, stub.url("openai")) as running:
        assert running.stderr is not None
        await running.stderr.readline()
        running.send_signal(signal.SIGSEGV)
        said = (await asyncio.wait_for(running.stderr.read(), 10)).decode()
        assert await running.wait() == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in said
    assert "cli/serve.py" in said


async def test_it_leaves_no_core_dump_and_serves_on_the_quick_loop(tmp_path: Path, stub: StubProvider) -> None:
    async with process(tmp_path, stub.url("openai")) as running:
        assert running.stderr is not None
        assert (await running.stderr.readline()).startswith(b"serving ")
        (line,) = [line for line in _kernel_says(running.pid, "limits") if line.startswith("Max core file size")]
        assert line.split()[4:6] == ["0", "0"]
        assert any("uvloop" in line for line in _kernel_says(running.pid, "maps"))


def _kernel_says(pid: int, what: str) -> list[str]:
    return Path(f"/proc/{pid}/{what}").read_text().splitlines()


async def _answered(base: str) -> None:
    """Connections are taken in turn: whatever was opened before this has been taken when it returns."""
    async with aiohttp.ClientSession() as session, session.get(base.removesuffix("/v1") + "/healthz") as response:
        assert response.status == 200


async def _ready(session: aiohttp.ClientSession, base: str) -> bool:
    async with session.get(base.removesuffix("/v1") + "/readyz") as response:
        return response.status == 200


async def _listens(base: str) -> bool:
    host, port = base.removeprefix("http://").removesuffix("/v1").split(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


LATER = json.dumps(
    {"steps": [{"id": "2", "models": ["alpha"], "prompt": "look again", "access_list": ["0"]},
               {"id": "3", "models": ["beta"], "prompt": "join", "access_list": ["1", "2"]}]}
)  # fmt: skip


def in_two_rounds(call: StubCall) -> str | StubReply:
    """boss plans twice; alpha asks for the weather in its second step until it knows it; beta joins."""
    if call.model == "boss":
        return LATER if "was carried out" in json.dumps(call.body) else PLAN
    if "subtask: look again" in call.text and call.body["messages"][-1]["role"] != "tool":
        made = ToolCall("up_1", "weather", "{}")
        return StubReply(tool_calls=(made,), finish="tool_calls", usage=Usage(10, 5))
    if "subtask: find it" in call.text:
        return "ALPHA-FOUND"
    return "BETA-SAID" if "subtask: say it" in call.text else f"{call.model} is done"


async def test_a_tool_pause_in_the_second_round_resumes_after_kill_9(tmp_path: Path, stub: StubProvider) -> None:
    stub.answer = in_two_rounds
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    history: list[Any] = [{"role": "user", "content": "Weather?"}]

    async def ask(running: asyncio.subprocess.Process) -> tuple[Any, Any]:
        assert running.stderr is not None
        base = (await running.stderr.readline()).decode().split()[1]
        body = {"model": "twice", "messages": history, "tools": [tool]}
        async with aiohttp.ClientSession() as session, session.post(f"{base}/chat/completions", json=body) as answer:
            return answer.headers, await answer.json()

    async with process(tmp_path, stub.url("openai")) as first:
        headers, paused = await ask(first)
        first.kill()
        await first.wait()
    said = paused["choices"][0]["message"]
    (call,) = said["tool_calls"]
    trace_id = headers["X-Dirigent-Trace-Id"]
    assert call["id"].startswith(f"call_{trace_id}_2_"), "the first round has steps 0 and 1"
    history += [said, {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
    async with process(tmp_path, stub.url("openai")) as second:
        headers, done = await ask(second)
    assert (headers["X-Dirigent-Resumed"], headers["X-Dirigent-Trace-Id"]) == ("yes", trace_id)
    assert done["choices"][0]["message"]["content"] == "beta is done"
    assert [c.model for c in stub.calls] == ["boss", "alpha", "beta", "boss", "alpha", "alpha", "beta"]
    joined = stub.calls[-1].text
    assert ("BETA-SAID" in joined, "alpha is done" in joined, "ALPHA-FOUND" in joined) == (True, True, False)
    async with Store.open(tmp_path / "home" / STORE_FILE) as store:
        trace = await store.get(trace_id)
    assert [(step.index, step.round, step.status) for step in trace.steps] == [
        (0, 0, "done"), (1, 0, "done"), (2, 1, "done"), (3, 1, "done")
    ]  # fmt: skip
