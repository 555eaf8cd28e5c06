"""Background runs: they survive kill -9, a stop, and the loss of the process that carried them out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import update

from dirigent.errors import StoreError
from dirigent.messages import Message, Reply, Request, Tool, ToolCall
from dirigent.run.trace import Trace
from dirigent.serve.runs import takeover
from dirigent.serve.runs.asked import Asked
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.resume import Kept, kept
from dirigent.serve.runs.start import begin, prepare
from dirigent.serve.service import Service
from dirigent.store import Store, run_states
from dirigent.store.keys import LOCAL_ADMIN, Caller, create_key, revoke_key
from dirigent.store.ledger import usage
from dirigent.store.tables import run_states as rows
from dirigent.workers.http import HttpWorker
from tests.serve.background_child import PURPOSE
from tests.serve.conftest import CONFIG, Server, started
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply

WaitUntil = Callable[..., Awaitable[None]]

THREE = json.dumps(
    {
        "steps": [
            {"id": "0", "models": ["alpha"], "prompt": "first", "access_list": []},
            {"id": "1", "models": ["beta"], "prompt": "second", "access_list": ["0"]},
            {"id": "2", "models": ["alpha"], "prompt": "third", "access_list": ["1"]},
        ]
    }
)


class Steps:
    """boss plans three steps; the second hangs until it is released."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.planning = asyncio.Event()
        self.planning.set()

    async def __call__(self, call: StubCall) -> str:
        if call.model == "boss":
            await self.planning.wait()
            return THREE
        which = next(word for word in ("third", "second", "first") if f"subtask: {word}" in call.text)
        if which == "second":
            await self.release.wait()
        return f"{which} is done"


def asked(stub: StubProvider) -> list[str]:
    return [call.model for call in stub.calls]


def prepared(service: Service, *, caller: Caller = LOCAL_ADMIN, tools: tuple[Tool, ...] = ()) -> Run:
    asked = Asked(model="ultra", question=(Message("user", "do it"),), options=Request((), tools=tools))
    return prepare(service, asked, caller=caller, began=time.monotonic())


async def start(service: Service, **more: Any) -> str:
    run = prepared(service, **more)
    await begin(run, purpose=PURPOSE)
    return run.id


def row_of(run: Run) -> Kept:
    """The body of a background run that has not begun."""
    state = run.conductor.begin(run.asked.question, run_id=run.id)
    return msgspec.structs.replace(kept(state, run.asked), asked=run.asked, purpose=PURPOSE)


class Told:
    """What `on_finished` was told."""

    def __init__(self, service: Service, *, error: Exception | None = None) -> None:
        self.traces: list[Trace] = []
        self.purposes: list[dict[str, str]] = []
        self.error = error
        service.on_finished["test"] = self

    async def __call__(self, service: Service, purpose: Mapping[str, str], trace: Trace) -> None:
        self.traces.append(trace)
        self.purposes.append(dict(purpose))
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def child(folder: Path, stub: StubProvider, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    config = folder / "dirigent.toml"
    config.write_text(CONFIG.format(url=stub.url("openai"), store=folder / "serve.db"))
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.serve.background_child", str(config), str(folder / "told"), *words),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"DIRIGENT_HOME": str(folder / "home")},
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def run_id_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 20)).decode().strip()


def told(folder: Path) -> list[Any]:
    file = folder / "told"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_run_resumes_at_the_first_unfinished_step_after_its_process_ended(
    tmp_path: Path, stub: StubProvider, empty_store: Path, number: signal.Signals, wait_until: WaitUntil
) -> None:
    shutil.copy(empty_store, tmp_path / "serve.db")
    steps = stub.answer = Steps()
    async with child(tmp_path, stub, "start") as first:
        run_id = await run_id_of(first)
        call = await asyncio.wait_for(stub.called(3), 20)  # boss, alpha, and beta in the middle of step 2
        first.send_signal(number)
        await asyncio.wait_for(first.wait(), 20)
        await asyncio.wait_for(call.ended.wait(), 20)
    assert asked(stub) == ["boss", "alpha", "beta"]
    steps.release.set()
    async with child(tmp_path, stub) as second:
        await wait_until(lambda: bool(told(tmp_path)), within_s=30)
        second.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(second.wait(), 20) == 0
    assert asked(stub) == ["boss", "alpha", "beta", "beta", "alpha"], "step 1 was asked once, the plan written once"
    assert told(tmp_path) == [{"purpose": PURPOSE, "status": "done", "answer": "third is done"}]
    async with Store.open(tmp_path / "serve.db") as store:
        trace = await store.get(run_id)
        spent = await usage(store)
        assert await run_states.find(store, run_id) is None
    assert [step.status for step in trace.steps] == ["done"] * 3
    assert trace.cost_usd == pytest.approx(spent.cost_usd, abs=1e-8), "the call that was cut is on both bills"
    assert (len(trace.attempts), spent.held_usd) == (spent.calls, 0) == (5, 0)


async def test_a_run_ends_in_a_trace_and_notifies_its_purpose(server: Server, wait_until: WaitUntil) -> None:
    heard = Told(server.service)
    run_id = await start(server.service)
    assert await run_states.find(server.service.store, run_id) is not None
    await wait_until(lambda: not server.service.runs)
    assert heard.purposes == [PURPOSE]
    assert (heard.traces[0].id, heard.traces[0].status) == (run_id, "done")
    assert (await server.service.store.get(run_id)).answer == "beta says hello there"
    assert await run_states.find(server.service.store, run_id) is None
    assert 'dirigent_runs_total{model="ultra",status="done"} 1.0' in (await server.get("/metrics")).text


async def test_a_run_that_fails_says_so(server: Server, wait_until: WaitUntil) -> None:
    heard = Told(server.service)
    server.stub.faults = ["500"] * 20
    await start(server.service)
    await wait_until(lambda: not server.service.runs)
    assert [(trace.status, trace.error_kind) for trace in heard.traces] == [("failed", "WorkerError")]


async def test_a_bug_leaves_all_that_was_done_and_paid_in_the_trace(
    server: Server, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Told(server.service)
    asked_for = HttpWorker.ask

    async def ask_or_fail(self: HttpWorker, *args: Any, **more: Any) -> Reply:
        if self.info.name == "beta":
            raise KeyError("a bug")
        return await asked_for(self, *args, **more)

    monkeypatch.setattr(HttpWorker, "ask", ask_or_fail)
    run_id = await start(server.service)
    await wait_until(lambda: not server.service.runs)
    (trace,) = heard.traces
    assert (trace.status, bool(trace.error), "a bug" in trace.error) == ("failed", True, False)
    assert [step.status for step in trace.steps] == ["done", "failed"]
    assert trace == await server.service.store.get(run_id)
    spent = await usage(server.service.store)
    assert (len(trace.attempts), trace.cost_usd) == (spent.calls, pytest.approx(spent.cost_usd, abs=1e-8))


async def test_a_run_is_cancelled_by_its_key_alone(server: Server, wait_until: WaitUntil) -> None:
    heard = Told(server.service)
    server.stub.answer = Steps()
    run_id = await start(server.service)
    call = await server.stub.called(3)
    assert not await takeover.cancel(server.service, run_id, key_id="somebody")
    assert not await takeover.cancel(server.service, "nothing", key_id="local")
    assert await takeover.cancel(server.service, run_id, key_id="local")
    await asyncio.wait_for(call.ended.wait(), 5)
    assert call.aborted
    assert [(trace.status, trace.steps[0].status) for trace in heard.traces] == [("cancelled", "done")]
    assert await run_states.find(server.service.store, run_id) is None
    assert (await server.service.store.get(run_id)).status == "cancelled"
    assert not await takeover.cancel(server.service, run_id, key_id="local"), "it is over"


async def test_a_run_that_another_process_cancels_stops_at_its_next_step(server: Server, wait_until: WaitUntil) -> None:
    heard = Told(server.service)
    steps = server.stub.answer = Steps()
    run_id = await start(server.service)
    await server.stub.called(3)
    assert await run_states.cancel(server.service.store, run_id, key_id="local")
    steps.release.set()
    await wait_until(lambda: not server.service.runs)
    assert [trace.status for trace in heard.traces] == ["cancelled"]
    assert asked(server.stub) == ["boss", "alpha", "beta"]


async def test_a_stop_while_it_is_planned_hands_it_over_too(
    tmp_path: Path, stub: StubProvider, empty_store: Path, wait_until: WaitUntil
) -> None:
    shutil.copy(empty_store, tmp_path / "serve.db")
    steps = stub.answer = Steps()
    steps.planning.clear()
    steps.release.set()
    async with started(tmp_path, stub) as server:
        run_id = await start(server.service)
        await stub.called(1)
    steps.planning.set()
    async with started(tmp_path, stub) as server:
        await wait_until(lambda: not server.service.runs)
        trace = await server.service.store.get(run_id)
    assert trace.status == "done"
    assert asked(stub) == ["boss", "boss", "alpha", "beta", "alpha"]
    assert len(trace.attempts) == 5, "the draft that was cut is on the bill"


async def test_a_run_with_tools_waits_and_continues_with_a_later_request(server: Server, wait_until: WaitUntil) -> None:
    heard = Told(server.service)

    def answer(call: StubCall) -> str | StubReply:
        if call.model == "boss":
            return THREE
        if "subtask: second" in call.text and call.body["messages"][-1]["role"] != "tool":
            return StubReply(tool_calls=(ToolCall("u", "weather", "{}"),), finish="tool_calls")
        return f"{call.model} is done"

    server.stub.answer = answer
    tools = (Tool("weather", {"type": "object", "properties": {}}),)
    await start(server.service, tools=tools)
    await wait_until(lambda: not server.service.runs)
    (waiting,) = heard.traces
    assert waiting.status == "waiting"
    (call,) = waiting.tool_calls
    history = [
        {"role": "user", "content": "do it"},
        {
            "role": "assistant",
            "tool_calls": [{"id": call.id, "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    tool = {"type": "function", "function": {"name": "weather"}}
    answered = await server.chat(history, model="ultra", tools=[tool])
    assert answered.headers["X-Dirigent-Resumed"] == "yes"
    assert answered.object["choices"][0]["message"]["content"] == "alpha is done"
    assert asked(server.stub) == ["boss", "alpha", "beta", "beta", "alpha"]


async def test_a_failed_notification_is_repeated_at_the_next_start_without_new_calls(
    tmp_path: Path, stub: StubProvider, empty_store: Path, wait_until: WaitUntil
) -> None:
    shutil.copy(empty_store, tmp_path / "serve.db")
    async with started(tmp_path, stub) as server:
        Told(server.service, error=StoreError("the disk is full"))
        run_id = await start(server.service)
        await wait_until(lambda: not server.service.runs)
    calls = len(stub.calls)
    async with started(tmp_path, stub) as server:
        heard = Told(server.service)
        await disown(server.service.store)
        await takeover.take_over(server.service)
        assert [trace.id for trace in heard.traces] == [run_id]
        assert await run_states.find(server.service.store, run_id) is None
    assert len(stub.calls) == calls


async def test_a_run_of_a_closed_key_fails_and_makes_no_call(server: Server) -> None:
    store = server.service.store
    key = await create_key(store, Caller(label="gone"))
    heard = Told(server.service)
    steps = server.stub.answer = Steps()
    await start(server.service, caller=key.row.caller)
    await server.stub.called(3)
    await server.service.close()  # hands it over
    await revoke_key(store, key.row.caller.key_id)
    steps.release.set()
    assert await takeover.take_over(server.service) == 1
    assert [(trace.status, "key" in trace.error) for trace in heard.traces] == [("failed", True)]
    assert asked(server.stub) == ["boss", "alpha", "beta"]


async def test_a_run_that_others_took_over_is_left_alone(server: Server, wait_until: WaitUntil) -> None:
    heard = Told(server.service)
    steps = server.stub.answer = Steps()
    run_id = await start(server.service)
    await server.stub.called(3)
    await change(server.service.store, owner="elsewhere/1/1")
    steps.release.set()
    await wait_until(lambda: not server.service.runs)
    assert heard.traces == []
    row = await run_states.find(server.service.store, run_id)
    assert row is not None
    assert row.owner == "elsewhere/1/1"
    assert asked(server.stub) == ["boss", "alpha", "beta"]


async def test_a_run_is_taken_over_when_its_process_is_silent_and_not_before(
    server: Server, wait_until: WaitUntil
) -> None:
    store = server.service.store
    steps = server.stub.answer = Steps()
    steps.release.set()
    begun = prepared(server.service)
    await run_states.begin(store, begun.id, key_id="local", body=row_of(begun))
    await change(store, owner="elsewhere/1/1")
    assert await takeover.take_over(server.service) == 0
    await change(store, owner="elsewhere/1/1", updated_at="2020-01-01T00:00:00.000000Z")
    heard = Told(server.service)
    assert await takeover.take_over(server.service) == 1
    await wait_until(lambda: not server.service.runs)
    assert [trace.answer for trace in heard.traces] == ["third is done"]


async def test_a_process_says_which_runs_it_is_at_and_stops_those_that_were_cancelled(server: Server) -> None:
    server.stub.answer = Steps()
    run_id = await start(server.service)
    await change(server.service.store, updated_at="2020-01-01T00:00:00.000000Z")
    await takeover.look_after(server.service)
    row = await run_states.find(server.service.store, run_id)
    assert row is not None
    assert row.updated_at > "2021"
    await run_states.cancel(server.service.store, run_id, key_id="local")
    await takeover.look_after(server.service)
    assert (await server.service.store.get(run_id)).status == "cancelled"


async def test_a_row_that_cannot_be_read_does_not_keep_the_others_from_going_on(
    server: Server, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    store = server.service.store
    heard = Told(server.service)
    for number in range(2):
        begun = prepared(server.service)
        await run_states.begin(store, begun.id, key_id="local", body=row_of(begun))
        if number == 0:
            damaged = begun.id
            await change(store, body=b"nonsense")
    await disown(store)
    assert await takeover.take_over(server.service) == 2
    await wait_until(lambda: not server.service.runs)
    assert [trace.status for trace in heard.traces] == ["done"]
    assert damaged in caplog.text
    assert await run_states.orphans(store) == []


async def test_a_row_of_an_older_format_ends_its_run_with_an_error_that_names_both(server: Server) -> None:
    store = server.service.store
    heard = Told(server.service)
    begun = prepared(server.service)
    await run_states.begin(store, begun.id, key_id="local", body=row_of(begun))
    await change(store, format=1)
    await disown(store)
    assert await takeover.take_over(server.service) == 1
    (ended,) = heard.traces
    assert (ended.id, ended.status) == (begun.id, "failed")
    assert "format 1" in ended.error
    assert str(run_states.FORMAT) in ended.error
    assert heard.purposes == [PURPOSE]
    assert (await store.get(begun.id)).error == ended.error
    assert await run_states.find(store, begun.id) is None
    assert server.stub.calls == [], "no worker is asked"


async def change(store: Store, **values: Any) -> None:
    await store.write(
        lambda connection, _: connection.execute(update(rows).values(**values)).rowcount, prepare=lambda: None
    )


async def disown(store: Store) -> None:
    """As if the process that has them had died."""
    await change(store, owner="")
