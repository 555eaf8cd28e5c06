"""Streams: early words, silent steps, faults before and after the first byte, clients that leave."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import pytest

from dirigent.conduct import Conductor
from dirigent.errors import StoreError
from dirigent.messages import Delta, Observe, Reply, Request, ToolCall, ignore
from dirigent.planners.fixed import Single
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Price, WorkerInfo
from tests.serve.conftest import Server, Start
from tests.stub_wires import StubCall, StubReply

WaitUntil = Callable[..., Awaitable[None]]


async def test_a_stream_has_the_official_shape(server: Server) -> None:
    answer = await server.chat(stream=True)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/event-stream"
    *chunks, done = answer.events
    assert done == "[DONE]"
    assert answer.streamed_text == "alpha says hello there"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    assert chunks[-1]["dirigent"]["trace_id"] == trace.id
    assert chunks[-1]["dirigent"]["cost_usd"] == pytest.approx(trace.cost_usd)


async def test_usage_comes_last_and_only_where_asked_for(server: Server) -> None:
    answer = await server.chat(stream=True, stream_options={"include_usage": True}, model="ultra")
    *chunks, last, done = answer.events
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_the_last_step_streams_and_earlier_steps_are_comments(server: Server) -> None:
    server.stub.chunk_delay_s = 0.02
    answer = await server.chat(stream=True, model="ultra")
    assert answer.streamed_text == "beta says hello there"
    assert answer.comments == ["round 0: 2 steps planned", "step 0: alpha", "step 1: beta"]
    pieces = [event for event in answer.events if event != "[DONE]" and event["choices"][0]["delta"].get("content")]
    assert len(pieces) > 1


async def test_words_arrive_while_the_worker_still_writes(server: Server) -> None:
    server.stub.chunk_delay_s = 0.1
    body = {"model": "worker/alpha", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with server.session.post(server.url + "/v1/chat/completions", json=body) as response:
        async for line in response.content:
            if b"alpha" in line:
                break
        assert not server.stub.calls[0].finished
        await response.read()


class Bursting:
    """Writes all its words before any other task has a turn."""

    info = WorkerInfo("burst", price=Price())

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        for word in WORDS:
            observe(Delta(word))
        return Reply("".join(WORDS))


WORDS = [f"word{n} " for n in range(1000)]


async def test_words_that_wait_together_leave_together(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    conductor = Conductor(Single("burst"), Pool([Bursting()]))
    monkeypatch.setattr(server.service.models, "conductor", lambda *_, **__: conductor)
    answer = await server.chat(stream=True)
    assert answer.streamed_text == "".join(WORDS)
    pieces = [event for event in answer.events if event != "[DONE]" and event["choices"][0]["delta"].get("content")]
    assert len(pieces) <= 3
    assert answer.comments == ["round 0: 1 step planned", "step 0: burst"]


async def test_an_answer_that_may_be_replaced_is_held_back_until_it_is_final(server: Server) -> None:
    answer = await server.chat(stream=True, model="twice")
    texts = [e["choices"][0]["delta"].get("content") for e in answer.events if e != "[DONE]"]
    assert [text for text in texts if text] == ["beta says hello there"]
    assert [call.model for call in server.stub.calls] == ["boss", "alpha", "beta", "boss"]


async def test_a_checked_answer_streams_only_after_it_was_mended(server: Server) -> None:
    replies = iter(["nonsense", '{"a": 1}'])
    server.stub.answer = lambda _: next(replies)
    answer = await server.chat(stream=True, response_format={"type": "json_object"})
    assert answer.streamed_text == '{"a": 1}'


async def test_tool_calls_stream_too(server: Server) -> None:
    call = ToolCall("call_1", "weather", "{}")
    server.stub.answer = lambda _: StubReply(tool_calls=(call,), finish="tool_calls")
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    answer = await server.chat(stream=True, tools=[tool])
    calls = [
        e["choices"][0]["delta"]["tool_calls"]
        for e in answer.events[:-1]
        if "tool_calls" in json.dumps(e["choices"][0]["delta"])
    ]
    ((made,),) = calls
    assert (made["index"], made["type"]) == (0, "function")
    assert made["function"] == {"name": "weather", "arguments": "{}"}
    assert answer.events[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_silence_is_filled_with_comments(start: Start) -> None:
    server = await start(hold_status_s=0.05, keep_alive_s=0.05)
    server.stub.delay_s = 0.4
    answer = await server.chat(stream=True)
    assert answer.comments.count("keep-alive") >= 2
    assert answer.streamed_text == "alpha says hello there"


async def test_a_fault_before_the_first_byte_has_its_own_status(server: Server) -> None:
    server.stub.faults = ["500"]
    answer = await server.chat(stream=True)
    assert (answer.status, answer.error["code"]) == (503, "worker_failed")


ROUTES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("error", "status"), [(StoreError("locked"), 503), (RuntimeError("something inside"), 500)])
async def test_faults_outside_the_run_have_their_status_and_shape_too(
    server: Server, monkeypatch: pytest.MonkeyPatch, path: str, error: Exception, status: int
) -> None:
    """As where a rule cannot be put in the audit log, or a waiting run cannot be taken up."""

    async def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Conductor, "run", failing)
    answer = await server.request("POST", path, json={"model": "worker/alpha", "stream": True} | ROUTES[path])
    assert (answer.status, answer.error["code"]) == (status, {503: "store_failed", 500: "bug"}[status])
    assert str(error) not in answer.text
    assert server.service.admission.in_flight == 0


@pytest.mark.parametrize("path", ROUTES)
async def test_a_reader_of_the_last_byte_frees_its_place(server: Server, path: str) -> None:
    body = {"model": "worker/alpha", "stream": True} | ROUTES[path]
    for _ in range(20):
        assert (await server.request("POST", path, json=body)).status == 200
        assert server.service.admission.in_flight == 0


@pytest.mark.parametrize("fault", ["truncated-sse", "reset-mid-stream"])
@pytest.mark.parametrize("model", ["worker/alpha", "mini"])
async def test_a_fault_after_the_first_byte_is_one_error_event_and_no_done(
    server: Server, fault: str, model: str
) -> None:
    server.stub.faults = [fault]
    answer = await server.chat(stream=True, model=model)
    assert answer.status == 200
    assert "[DONE]" not in answer.events
    errors = [event for event in answer.events if "error" in event]
    assert errors == [answer.events[-1]]
    assert set(errors[0]["error"]) == {"message", "type", "param", "code"}
    assert len(server.stub.calls) == 1  # no worker continues another's sentence


async def test_a_fault_after_the_status_was_given_up_is_an_error_event(start: Start) -> None:
    server = await start(hold_status_s=0.02)
    server.stub.delay_s = 0.2
    server.stub.faults = ["500"]
    answer = await server.chat(stream=True)
    assert answer.status == 200
    assert answer.events[-1]["error"]["code"] == "worker_failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_run(server: Server, stream: bool, wait_until: WaitUntil) -> None:
    release = asyncio.Event()

    async def hang(call: StubCall) -> str:
        await release.wait()
        return "late"

    server.stub.answer = hang
    asking = asyncio.ensure_future(server.chat(stream=stream))
    call = await server.stub.called(1)
    asking.cancel()
    left_at = time.monotonic()
    await asyncio.wait_for(call.ended.wait(), 5)
    assert call.aborted_at is not None
    assert call.aborted_at - left_at < 1.0
    await wait_until(lambda: server.service.admission.in_flight == 0)
    assert [row.status for row in await server.service.store.list()] == ["cancelled"]
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_client_that_leaves_in_the_middle_of_the_words_cancels_too(
    server: Server, wait_until: WaitUntil
) -> None:
    server.stub.answer = lambda _: "word " * 200
    server.stub.chunk_delay_s = 0.02
    body = {"model": "worker/alpha", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with server.session.post(server.url + "/v1/chat/completions", json=body) as response:
        async for line in response.content:
            if b"word" in line:
                break
        response.close()
    call = server.stub.calls[0]
    await asyncio.wait_for(call.ended.wait(), 5)
    assert call.aborted
    await wait_until(lambda: server.service.admission.in_flight == 0)
    (row,) = await server.service.store.list()
    trace = await server.service.store.get(row.id)
    assert trace.status == "cancelled"
    assert trace.cost_usd > 0  # its input and output are billed
