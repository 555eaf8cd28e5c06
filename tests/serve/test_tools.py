"""Client tools through a plan, over HTTP: any step may ask, the result goes to exactly that step."""

from __future__ import annotations

import asyncio
import json
import shutil
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from dirigent.messages import ToolCall, Usage
from dirigent.serve.runs.resume import NOT_RESUMED
from dirigent.store import run_states
from dirigent.store.keys import Caller, create_key
from dirigent.store.ledger import usage
from dirigent.store.tables import run_states as rows
from dirigent.store.tables import traces
from tests.serve.conftest import PLAN, Answer, Server, Start, started
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall, StubReply

WaitUntil = Callable[..., Awaitable[None]]

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
SIDE_BY_SIDE = json.dumps(
    {
        "steps": [
            {"id": "0", "models": ["alpha"], "prompt": "left", "access_list": []},
            {"id": "1", "models": ["beta"], "prompt": "right", "access_list": []},
            {"id": "2", "models": ["alpha"], "prompt": "join", "access_list": ["0", "1"]},
        ]
    }
)


def asking(*models: str, plan: str = PLAN) -> Callable[[StubCall], str | StubReply]:
    """boss plans; these models ask for the weather until they know it; the others just answer."""

    def answer(call: StubCall) -> str | StubReply:
        if call.model == "boss":
            return plan
        told = call.body["messages"][-1]["role"] == "tool"
        if call.model in models and not told and "join" not in call.text:
            made = ToolCall("up_1", "weather", f'{{"for":"{call.model}"}}')
            return StubReply(tool_calls=(made,), finish="tool_calls", usage=Usage(10, 5))
        return StubReply(f"{call.model} is done", usage=Usage(10, 5))

    return answer


def continued(answer: Answer, *contents: str, before: list[Any] | None = None) -> list[Any]:
    """The history as a client sends it again, with its tools' results."""
    said = answer.object["choices"][0]["message"]
    first = before or [{"role": "user", "content": "Weather?"}]
    given = zip(said["tool_calls"], contents, strict=False)
    return [*first, said, *({"role": "tool", "tool_call_id": call["id"], "content": text} for call, text in given)]


async def ask(server: Server, said: Any = "Weather?", **more: Any) -> Answer:
    return await server.chat(said, **{"model": "ultra", "tools": [TOOL]} | more)


def text_of(answer: Answer) -> str:
    found: str = answer.object["choices"][0]["message"]["content"]
    return found


async def test_a_tool_call_of_the_first_step_comes_back_and_its_result_resumes_that_step(server: Server) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server)
    (choice,) = first.object["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"for":"alpha"}'}
    trace_id = first.headers["X-Dirigent-Trace-Id"]
    assert trace_id in call["id"]
    assert "X-Dirigent-Resumed" not in first.headers
    assert (await server.service.store.get(trace_id)).status == "waiting"

    second = await ask(server, continued(first, "rain"))
    assert text_of(second) == "beta is done"
    assert second.headers["X-Dirigent-Resumed"] == "yes"
    assert second.headers["X-Dirigent-Trace-Id"] == trace_id
    assert [c.model for c in server.stub.calls] == ["boss", "alpha", "alpha", "beta"], "no worker plans or works twice"
    *before, asked, told = server.stub.calls[2].body["messages"]
    assert before == server.stub.calls[1].body["messages"]
    assert asked["tool_calls"][0]["id"] == "up_1", "the provider sees the id it gave"
    assert (told["tool_call_id"], told["content"]) == ("up_1", "rain")
    assert "rain" not in json.dumps(server.stub.calls[3].body)
    trace = await server.service.store.get(trace_id)
    assert (trace.status, len(trace.attempts)) == ("done", 4)
    assert [row.status for row in await server.service.store.list()] == ["done"]
    assert await run_states.find(server.service.store, trace_id) is None


async def test_usage_and_cost_of_the_replies_add_up_to_the_run(server: Server) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server)
    second = await ask(server, continued(first, "rain"))
    trace = await server.service.store.get(first.headers["X-Dirigent-Trace-Id"])
    told = [answer.object["usage"]["completion_tokens"] for answer in (first, second)]
    assert sum(told) == trace.usage.output_tokens
    assert told[1] == 10
    costs = [float(answer.headers["X-Dirigent-Cost-USD"]) for answer in (first, second)]
    assert sum(costs) == pytest.approx(trace.cost_usd)
    assert costs[1] > 0
    assert (await usage(server.service.store)).cost_usd == pytest.approx(trace.cost_usd, abs=1e-8)
    page = (await server.get("/metrics")).text
    assert 'dirigent_calls_total{outcome="done",worker="alpha"} 2.0' in page


async def test_parallel_steps_wait_together_and_half_the_results_are_not_enough(server: Server) -> None:
    server.stub.answer = asking("alpha", "beta", plan=SIDE_BY_SIDE)
    first = await ask(server)
    left, right = first.object["choices"][0]["message"]["tool_calls"]
    half = await ask(server, continued(first, "LEFT"))
    assert (half.status, half.error["code"], half.error["param"]) == (400, "missing_tool_results", "messages")
    assert right["id"] in half.error["message"]
    assert left["id"] not in half.error["message"]
    whole = await ask(server, continued(first, "LEFT", "RIGHT"))
    assert text_of(whole) == "alpha is done"
    resumed = {c.model: json.dumps(c.body) for c in server.stub.calls[3:5]}
    assert ("LEFT" in resumed["alpha"], "RIGHT" in resumed["alpha"]) == (True, False)
    assert ("LEFT" in resumed["beta"], "RIGHT" in resumed["beta"]) == (False, True)


async def test_several_tool_rounds_with_the_whole_history_each_time(server: Server) -> None:
    left = iter(range(3))

    def answer(call: StubCall) -> str | StubReply:
        if call.model == "boss":
            return PLAN
        if call.model == "alpha" and (number := next(left, None)) is not None:
            return StubReply(tool_calls=(ToolCall("same", "weather", f'{{"n":{number}}}'),), finish="tool_calls")
        return f"{call.model} is done"

    server.stub.answer = answer
    reply = await ask(server)
    history: list[Any] = [{"role": "user", "content": "Weather?"}]
    for number in range(3):
        history = continued(reply, f"result {number}", before=history)
        reply = await ask(server, history)
        assert reply.headers["X-Dirigent-Resumed"] == "yes"
    assert text_of(reply) == "beta is done"
    assert [c.model for c in server.stub.calls] == ["boss", *["alpha"] * 4, "beta"]
    ids = [message["tool_call_id"] for message in history if message["role"] == "tool"]
    assert len(set(ids)) == 3


@pytest.mark.parametrize("model", ["worker/alpha", "mini"])
async def test_a_plan_of_one_step_continues_with_the_same_worker(server: Server, model: str) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server, model=model)
    second = await ask(server, continued(first, "rain"), model=model)
    assert text_of(second) == "alpha is done"
    assert [c.model for c in server.stub.calls] == ["alpha", "alpha"]
    sent = server.stub.calls[1].body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]


async def test_without_tool_results_at_its_end_a_request_looks_nothing_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find(*_: Any) -> None:
        raise AssertionError("looked up")

    server.stub.answer = asking("alpha")
    first = await ask(server)
    monkeypatch.setattr(run_states, "find", find)
    history = [*continued(first, "rain"), {"role": "assistant", "content": "It rains."}]
    later = await ask(server, [*history, {"role": "user", "content": "And now?"}], model="worker/beta")
    assert text_of(later) == "beta is done"
    foreign = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    plain = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [foreign]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    answer = await ask(server, plain, model="worker/beta")
    assert text_of(answer) == "beta is done"
    assert "X-Dirigent-Resumed" not in answer.headers


async def test_a_waiting_run_survives_a_restart(tmp_path: Path, stub: StubProvider, empty_store: Path) -> None:
    shutil.copy(empty_store, tmp_path / "serve.db")
    stub.answer = asking("alpha")
    async with started(tmp_path, stub) as server:
        first = await ask(server)
    async with started(tmp_path, stub) as server:
        second = await ask(server, continued(first, "rain"))
    assert text_of(second) == "beta is done"
    assert [c.model for c in stub.calls] == ["boss", "alpha", "alpha", "beta"]


async def test_a_run_that_is_not_kept_any_more_becomes_a_new_one_and_says_so(server: Server) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server)
    await run_states.prune(server.service.store, older_than_s=-1)
    second = await ask(server, continued(first, "rain"))
    assert second.status == 200
    assert second.headers["X-Dirigent-Resumed"] == "no"
    assert second.headers["X-Dirigent-Trace-Id"] != first.headers["X-Dirigent-Trace-Id"]
    trace = await server.service.store.get(second.headers["X-Dirigent-Trace-Id"])
    assert NOT_RESUMED in trace.notes
    roles = [message["role"] for message in server.stub.calls[3].body["messages"]]
    assert roles == ["user", "assistant", "tool", "user"], "the result stays beside its call, the subtask comes after"


@pytest.mark.parametrize("change", ["user", "model"])
async def test_another_conversation_is_not_mistaken_for_the_waiting_one(server: Server, change: str) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server)
    history = continued(first, "rain", before=[{"role": "user", "content": "Other"}] if change == "user" else None)
    second = await ask(server, history, model="twice" if change == "model" else "ultra")
    assert second.headers["X-Dirigent-Resumed"] == "no"
    right = await ask(server, continued(first, "rain"))
    assert right.headers["X-Dirigent-Resumed"] == "yes", "the one that waits still does"


async def test_instructions_that_tell_the_time_do_not_keep_a_run_from_going_on(server: Server) -> None:
    server.stub.answer = asking("alpha")
    before: list[Any] = [{"role": "system", "content": "It is 12:00."}, {"role": "user", "content": "Weather?"}]
    first = await ask(server, before)
    before[0] = {"role": "system", "content": "It is 12:01."}
    assert (await ask(server, continued(first, "rain", before=before))).headers["X-Dirigent-Resumed"] == "yes"


async def test_a_run_kept_in_an_older_format_is_refused_by_name_and_not_begun_anew(server: Server) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server)
    await server.service.store.write(
        lambda connection, _: connection.execute(update(rows).values(format=1)).rowcount, prepare=lambda: None
    )
    calls = len(server.stub.calls)
    refused = await ask(server, continued(first, "rain"))
    assert (refused.status, refused.error["code"]) == (409, "run_not_readable")
    assert first.headers["X-Dirigent-Trace-Id"] in refused.error["message"]
    assert "format 1" in refused.error["message"]
    assert len(server.stub.calls) == calls


async def test_another_keys_run_does_not_exist(server: Server) -> None:
    mine = await create_key(server.service.store, Caller(label="mine"))
    other = await create_key(server.service.store, Caller(label="other"))
    server.stub.answer = asking("alpha")
    first = await ask(server, headers={"Authorization": f"Bearer {mine.text}"})
    stolen = await ask(server, continued(first, "rain"), headers={"Authorization": f"Bearer {other.text}"})
    assert stolen.headers["X-Dirigent-Resumed"] == "no"
    assert stolen.headers["X-Dirigent-Trace-Id"] != first.headers["X-Dirigent-Trace-Id"]
    right = await ask(server, continued(first, "rain"), headers={"Authorization": f"Bearer {mine.text}"})
    assert right.headers["X-Dirigent-Resumed"] == "yes"


async def test_every_trace_of_a_run_is_kept_as_its_keys(server: Server) -> None:
    async def whose() -> tuple[str, str | None]:
        query = select(traces.c.status, traces.c.key_id)
        return await server.service.store.read(lambda connection: tuple(connection.execute(query).one()))

    made = await create_key(server.service.store, Caller(label="mine"))
    headers, key_id = {"Authorization": f"Bearer {made.text}"}, made.row.caller.key_id
    server.stub.answer = asking("alpha")
    first = await ask(server, model="worker/alpha", headers=headers)
    assert await whose() == ("waiting", key_id)
    server.stub.faults = ["500"]
    assert (await ask(server, continued(first, "rain"), model="worker/alpha", headers=headers)).status == 503
    assert await whose() == ("failed", key_id)
    assert (await ask(server, continued(first, "rain"), model="worker/alpha", headers=headers)).status == 200
    assert await whose() == ("done", key_id)


async def test_of_many_requests_that_resume_one_run_exactly_one_wins(server: Server) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server)
    server.stub.delay_s = 0.2
    answers = await asyncio.gather(*(ask(server, continued(first, "rain")) for _ in range(8)))
    statuses = sorted(answer.status for answer in answers)
    assert statuses == [200] + [409] * 7
    refused = next(answer for answer in answers if answer.status == 409)
    assert refused.error["code"] == "run_busy"
    assert refused.headers["Retry-After"]
    assert [c.model for c in server.stub.calls].count("beta") == 1


async def test_a_try_that_failed_can_be_made_again_and_stays_on_the_bill(server: Server) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server, model="worker/alpha")
    server.stub.faults = ["500"]
    failed = await ask(server, continued(first, "rain"), model="worker/alpha")
    assert failed.status == 503
    trace_id = first.headers["X-Dirigent-Trace-Id"]
    assert (await server.service.store.get(trace_id)).status == "failed"
    again = await ask(server, continued(first, "rain"), model="worker/alpha")
    assert text_of(again) == "alpha is done"
    trace = await server.service.store.get(trace_id)
    assert (trace.status, len(trace.attempts)) == ("done", 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_while_its_run_continues_may_come_back(
    server: Server, stream: bool, wait_until: WaitUntil
) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server)
    server.stub.delay_s = 30.0
    trying = asyncio.ensure_future(ask(server, continued(first, "rain"), stream=stream))
    await server.stub.called(3)
    trying.cancel()
    await wait_until(lambda: server.service.admission.in_flight == 0)
    server.stub.delay_s = 0.0
    again = await ask(server, continued(first, "rain"))
    assert again.headers["X-Dirigent-Resumed"] == "yes"
    assert text_of(again) == "beta is done"
    trace = await server.service.store.get(first.headers["X-Dirigent-Trace-Id"])
    assert [attempt.error for attempt in trace.steps[0].attempts] == ["", "cancelled", ""]


async def test_a_run_whose_process_died_while_it_went_on_can_be_resumed_again(server: Server) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server)
    changes = {"state": "running", "owner": "elsewhere/1/1", "updated_at": "2020-01-01T00:00:00.000000Z"}
    await server.service.store.write(
        lambda connection, _: connection.execute(update(rows).values(**changes)).rowcount, prepare=lambda: None
    )
    assert text_of(await ask(server, continued(first, "rain"))) == "beta is done"


async def test_tool_calls_of_an_earlier_step_stream_at_the_end_and_resume_as_a_stream(server: Server) -> None:
    server.stub.answer = asking("alpha")
    first = await ask(server, stream=True)
    *chunks, done = first.events
    assert done == "[DONE]"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    (delta,) = [c["choices"][0]["delta"] for c in chunks if "tool_calls" in c["choices"][0]["delta"]]
    (call,) = delta["tool_calls"]
    assert first.streamed_text == ""
    history = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [{k: v for k, v in call.items() if k != "index"}]},
        {"role": "tool", "tool_call_id": call["id"], "content": "rain"},
    ]
    second = await ask(server, history, stream=True)
    assert second.headers["X-Dirigent-Resumed"] == "yes"
    assert second.streamed_text == "beta is done"
    assert sum("content" in c["choices"][0]["delta"] for c in second.events[:-1]) > 2, "word by word"
    assert [c.model for c in server.stub.calls] == ["boss", "alpha", "alpha", "beta"]


async def test_the_stored_state_of_a_waiting_run_has_no_key(start: Start, tmp_path: Path) -> None:
    server = await start()
    secret = "sk-" + "abcdefgh12345678" * 2
    server.stub.answer = asking("alpha")
    first = await ask(server, f"my key is {secret}, Weather?")
    row = await run_states.find(server.service.store, first.headers["X-Dirigent-Trace-Id"])
    assert row is not None
    assert secret.encode() not in zlib.decompress(row.body)
    history = continued(first, "rain", before=[{"role": "user", "content": f"my key is {secret}, Weather?"}])
    second = await ask(server, history)
    assert text_of(second) == "beta is done"
    assert secret in json.dumps(server.stub.calls[2].body), "the worker sees what its caller wrote"


async def test_every_step_is_offered_the_tools_and_the_planner_is_not(server: Server) -> None:
    server.stub.answer = asking()
    await ask(server, tool_choice="required")
    assert ["tools" in call.body for call in server.stub.calls] == [False, True, True]
    assert [call.body.get("tool_choice", "auto") for call in server.stub.calls[1:]] == ["auto", "required"]


async def test_traces_can_be_listed_by_waiting(server: Server) -> None:
    server.stub.answer = asking("alpha")
    await ask(server)
    listed = (await server.get("/v1/traces?status=waiting")).object["data"]
    assert [row["status"] for row in listed] == ["waiting"]
