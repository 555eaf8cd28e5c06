"""Background responses, streamed while they run: each step as it is asked, by any server, with the same replay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dirigent.conduct import Conductor
from dirigent.limits import Limits
from dirigent.plan.plan import Plan, Step
from dirigent.planners.fixed import Single
from dirigent.run.trace import Round, StepRecord, Trace
from dirigent.serve.apis.responses.reply import summary_of
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from tests.facts import says
from tests.serve.conftest import Server, Start, by_model
from tests.serve.test_responses import events_of, respond
from tests.stub_wires import StubCall, StubReply

SUMMARY = "response.reasoning_summary_text.done"


def held(release: asyncio.Event, model: str) -> Callable[[StubCall], Awaitable[str | StubReply]]:
    """The model's answer waits until it is released."""

    async def answer(call: StubCall) -> str | StubReply:
        if call.model == model:
            await release.wait()
        return by_model(call)

    return answer


class Stream:
    """The events of one stream, one after the other."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.seen: list[dict[str, Any]] = []

    async def until(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while True:
                line = await self._response.content.readline()
                if line.startswith(b"data: "):
                    self.seen.append(json.loads(line.removeprefix(b"data: ")))
                    if self.seen[-1]["type"] == kind:
                        return self.seen[-1]
                assert line, f"the stream ended before {kind}"


@asynccontextmanager
async def told(server: Server, id: str, *, after: int = -1) -> AsyncIterator[Stream]:
    path = f"{server.url}/v1/responses/{id}?stream=true" + (f"&starting_after={after}" if after >= 0 else "")
    async with server.session.get(path) as response:
        yield Stream(response)


async def begun(server: Server) -> str:
    answer = await respond(server, model="ultra", background=True)
    id: str = answer.object["id"]
    return id


async def test_a_step_is_streamed_while_it_is_asked(server: Server) -> None:
    release = asyncio.Event()
    server.stub.answer = held(release, "alpha")
    async with told(server, await begun(server)) as stream:
        line = await stream.until(SUMMARY)
        assert says(line["text"], "alpha find it")
        assert not any(call.finished for call in server.stub.calls if call.model == "alpha")
        release.set()
        last = await stream.until("response.completed")
    assert last["response"]["output"][-1]["content"][0]["text"] == "beta says hello there"
    assert [event["sequence_number"] for event in stream.seen] == list(range(len(stream.seen)))


async def test_streamed_events_are_replayed_unchanged(server: Server) -> None:
    release = asyncio.Event()
    server.stub.answer = held(release, "beta")
    id = await begun(server)
    async with told(server, id) as stream, told(server, id) as other:
        number = (await stream.until(SUMMARY))["sequence_number"]
        await other.until(SUMMARY)
        async with told(server, id, after=number) as later:
            release.set()
            for each in (stream, other, later):
                await each.until("response.completed")
    assert stream.seen == other.seen == events_of(await server.get(f"/v1/responses/{id}?stream=true"))
    assert later.seen == stream.seen[number + 1 :]


async def test_another_server_of_the_store_streams_it_too(start: Start) -> None:
    server, other = await start(), await start()
    release = asyncio.Event()
    server.stub.answer = held(release, "beta")
    async with told(other, await begun(server)) as stream:
        assert says((await stream.until(SUMMARY))["text"], "alpha find it")
        release.set()
        await stream.until("response.completed")


async def test_a_run_that_fails_after_a_step_keeps_its_events(server: Server) -> None:
    release = asyncio.Event()
    server.stub.answer = held(release, "alpha")
    server.stub.faults = [None, None, "500", "500"]  # boss and alpha answer; beta and its substitute do not
    id = await begun(server)
    async with told(server, id) as stream:
        await stream.until(SUMMARY)
        release.set()
        last = await stream.until("response.failed")
    assert [item["type"] for item in last["response"]["output"]] == ["reasoning"]
    assert stream.seen == events_of(await server.get(f"/v1/responses/{id}?stream=true"))


async def test_a_cancelled_run_keeps_its_events(server: Server) -> None:
    server.stub.answer = held(asyncio.Event(), "beta")
    id = await begun(server)
    async with told(server, id) as stream:
        await stream.until(SUMMARY)
        await server.request("POST", f"/v1/responses/{id}/cancel")
        last = await stream.until("response.failed")
    assert last["response"]["status"] == "cancelled"
    assert stream.seen == events_of(await server.get(f"/v1/responses/{id}?stream=true"))


def trace_of(plan: Plan, records: list[StepRecord], *, max_rounds: int) -> Trace:
    begun = Conductor(Single(), Pool([Scripted("x")]), limits=Limits(max_rounds=max_rounds)).begin("hi").trace
    return msgspec.structs.replace(begun, rounds=(Round((), plan=plan, steps=tuple(records)),))


@given(data=st.data(), max_rounds=st.sampled_from([1, 2]))
def test_lines_are_only_ever_added_at_the_end(data: st.DataObject, max_rounds: int) -> None:
    count = data.draw(st.integers(1, 5))
    steps = []
    for index in range(count):
        access = data.draw(st.lists(st.integers(0, index - 1), unique=True)) if index else []
        steps.append(Step(f"w{index}", f"do {index}", tuple(sorted(access))))
    plan = Plan(tuple(steps))
    known: list[str] = []
    done: list[StepRecord] = []
    while len(done) < count:
        lines = summary_of(trace_of(plan, sorted(done, key=lambda r: r.index), max_rounds=max_rounds))
        assert lines[: len(known)] == known
        known = lines
        ended = {record.index for record in done}
        ready = [i for i in range(count) if i not in ended and ended >= set(steps[i].access)]
        index = data.draw(st.sampled_from(ready))
        seconds = float(len(done)) + data.draw(st.floats(0.1, 1.0))
        done.append(StepRecord(index, f"w{index}", f"do {index}", steps[index].access, ended_s=seconds))
    assert len(summary_of(trace_of(plan, done, max_rounds=max_rounds))) == count - (max_rounds == 1)
