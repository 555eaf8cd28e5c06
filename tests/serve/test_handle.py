"""A run as a handle: every watcher sees all of it, however late. Rows of an older format end with a named error."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import update

from dirigent.messages import Event, Message, Request
from dirigent.run.trace import Planned, RunEnded, StepDelta, StepEnded, StepStarted
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Asked
from dirigent.serve.runs.handle import Run
from dirigent.serve.runs.start import begin, prepare
from dirigent.serve.runs.takeover import take_over
from dirigent.store import Store, run_states
from dirigent.store.keys import LOCAL_ADMIN
from dirigent.store.tables import run_states as rows
from dirigent.store.writer import Writer
from tests.serve.conftest import Server, by_model
from tests.stub_wires import StubCall, StubReply

WaitUntil = Callable[..., Awaitable[None]]


def prepared(server: Server, model: str = "ultra") -> Run:
    asked = Asked(model=model, question=(Message("user", "hi"),), options=Request(()))
    return prepare(server.service, asked, caller=LOCAL_ADMIN, began=time.monotonic())


def words(events: list[Event], index: int) -> str:
    return "".join(event.text for event in events if isinstance(event, StepDelta) and event.index == index)


async def test_a_late_watcher_sees_the_same_events_as_an_early_one(server: Server) -> None:
    release = asyncio.Event()

    async def answer(call: StubCall) -> str | StubReply:
        if call.model == "beta":
            await release.wait()
        return by_model(call)

    server.stub.answer = answer
    run = prepared(server)
    early: list[Event] = []
    late: list[Event] = []
    run.watch(early.append)
    task = run.start(stream=True)
    await server.stub.called(3)
    run.watch(late.append)
    assert [event.index for event in late if isinstance(event, StepStarted)] == [0, 1]
    release.set()
    trace = await task
    for kind in (Planned, StepStarted, StepEnded, RunEnded):
        assert [e for e in late if isinstance(e, kind)] == [e for e in early if isinstance(e, kind)]
    for index, name in enumerate(("alpha", "beta")):
        assert words(late, index) == words(early, index) == f"{name} says hello there"
    after: list[Event] = []
    run.watch(after.append)
    assert after == run.events()
    assert [event.trace for event in after if isinstance(event, RunEnded)] == [trace]
    assert server.service.runs == set()


async def test_a_watcher_that_stops_sees_no_more(server: Server) -> None:
    run = prepared(server, "worker/alpha")
    seen: list[Event] = []
    stop = run.watch(seen.append)
    stop()
    await run.start()
    assert seen == []


async def test_a_cancelled_run_ends_for_everybody_and_is_stored_as_cancelled(server: Server) -> None:
    server.stub.delay_s = 60.0
    run = prepared(server, "worker/alpha")
    task = run.start()
    call = await server.stub.called(1)
    assert server.service.runs == {run}
    run.cancel()
    await run.over()
    with pytest.raises(Problem) as stopped:
        await task
    assert (stopped.value.status, stopped.value.code) == (409, "cancelled")
    await asyncio.wait_for(call.ended.wait(), 5)
    assert (await server.service.store.get(run.id)).status == "cancelled"


async def test_cancelling_the_caller_that_awaits_a_run_cancels_the_run(server: Server) -> None:
    server.stub.delay_s = 60.0
    run = prepared(server, "worker/alpha")

    async def waits() -> None:
        await run.start()

    waiting = asyncio.ensure_future(waits())
    await server.stub.called(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (await server.service.store.get(run.id)).status == "cancelled"


OURS: contextvars.ContextVar[bool] = contextvars.ContextVar("ours", default=False)
"""Set in the test's task and the tasks that it starts, so that the server's own writes are not counted."""


@pytest.fixture
def waited(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every write of the test's runs that is waited for; each is a commit, or shares one."""
    found: list[str] = []
    write = Writer.write

    async def counted(writer: Writer, work: Any, *, prepare: Any) -> Any:
        if OURS.get():
            found.append(getattr(work, "__name__", "statement"))
        return await write(writer, work, prepare=prepare)

    monkeypatch.setattr(Writer, "write", counted)
    OURS.set(True)
    return found


@pytest.mark.parametrize(("model", "calls"), [("worker/alpha", 1), ("mini", 1), ("ultra", 3), ("twice", 4)])
async def test_a_foreground_run_waits_for_one_commit_a_call_and_one_for_its_trace(
    server: Server, waited: list[str], model: str, calls: int
) -> None:
    server.stub.answer = by_model
    run = prepared(server, model)
    await run.start()
    assert len(server.stub.calls) == calls
    assert waited == ["statement"] * (calls + 1), "no state is written: only background runs are journaled"


async def test_a_background_run_is_stored_before_any_call_and_after_its_plan_and_every_step(
    server: Server, waited: list[str], wait_until: WaitUntil
) -> None:
    server.stub.answer = by_model
    await begin(prepared(server, "ultra"), purpose={})
    assert len(waited) == 1
    assert server.stub.calls == []
    await wait_until(lambda: not server.service.runs)
    assert len(server.stub.calls) == 3
    assert len(waited) >= 1 + 3 + 3 + 1, "its beginning, its calls, its plan and two steps, its trace"


async def test_a_failed_run_is_a_problem_that_has_its_trace(server: Server) -> None:
    server.stub.faults = ["500"]
    run = prepared(server, "worker/alpha")
    with pytest.raises(Problem) as failed:
        await run.start()
    assert (failed.value.status, failed.value.headers["X-Dirigent-Trace-Id"]) == (503, run.id)


# ---- rows of an older format ------------------------------------------------------------------------------


async def age(store: Store, **values: Any) -> None:
    """As if an earlier version had written every row."""
    changed = {"format": run_states.FORMAT - 1} | values
    await store.write(
        lambda connection, _: connection.execute(update(rows).values(**changed)).rowcount, prepare=lambda: None
    )


async def test_a_background_response_of_an_older_format_ends_with_a_named_error(
    server: Server, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    server.stub.delay_s = 60.0
    body = {"model": "worker/alpha", "input": "hi", "background": True}
    begun = (await server.request("POST", "/v1/responses", json=body)).object
    await server.stub.called(1)
    await server.service.close()  # hands it over
    await age(server.service.store)
    assert await take_over(server.service) == 1
    assert f"format {run_states.FORMAT - 1}" in caplog.text
    assert await run_states.orphans(server.service.store) == []
    ended = await server.get(f"/v1/responses/{begun['id']}")
    assert (ended.status, ended.object["status"]) == (200, "failed")
    assert ended.object["error"]["code"] == "server_error"
    assert f"format {run_states.FORMAT - 1}" in ended.object["error"]["message"]
