"""A worker that writes more than it was allowed, as callers and operators see it."""

from __future__ import annotations

import pytest

from dirigent.messages import Usage
from tests.serve.conftest import PLAN, Server
from tests.stub_wires import StubCall, StubReply

LONG = "again and " * 4000


def dear(call: StubCall) -> str | StubReply:
    """alpha writes a million tokens, at $2."""
    return PLAN if call.model == "boss" else StubReply("much", usage=Usage(10, 1_000_000))


async def test_a_stream_ends_as_length_and_says_so(server: Server) -> None:
    server.stub.answer = lambda call: LONG
    server.stub.chunk_delay_s = 0.001
    answer = await server.chat(stream=True, max_tokens=50)
    assert answer.events[-1] == "[DONE]"
    assert answer.events[-2]["choices"][0]["finish_reason"] == "length"
    assert len(answer.streamed_text) < 1000
    await server.stub.calls[0].ended.wait()
    assert server.stub.calls[0].aborted
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    assert [attempt.overran for attempt in trace.attempts] == [True]


async def test_a_step_that_used_the_cap_up_is_the_last_to_begin(server: Server) -> None:
    server.stub.answer = dear
    answer = await server.chat(model="ultra")  # may cost $1
    assert (answer.status, answer.error["code"]) == (402, "cost_cap")
    assert [call.model for call in server.stub.calls] == ["boss", "alpha"]
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    assert trace.cost_usd == pytest.approx(2.0, abs=1e-3), "the debt, not the allowance"
    assert [attempt.overran for attempt in trace.attempts] == [False, True]
    page = (await server.get("/metrics")).text
    assert 'dirigent_overruns_total{worker="alpha"} 1.0' in page


async def test_an_answer_that_was_paid_is_given(server: Server) -> None:
    server.stub.answer = dear
    answer = await server.chat(dirigent={"max_cost_usd": 0.5})
    assert answer.status == 200
    assert float(answer.headers["X-Dirigent-Cost-USD"]) == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_count_that_no_store_could_keep_is_a_fault_like_any_other(server: Server, stream: bool) -> None:
    server.stub.answer = lambda call: StubReply("hi", usage=Usage(2**63, 1))
    answer = await server.chat(stream=stream)
    error = answer.events[-1]["error"] if stream else answer.error
    assert error["code"] in ("worker_failed", "answer_cut")
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    assert trace.status == "failed"
    total = (await server.get("/v1/usage")).object["total"]
    assert (total["calls"], total["held_nusd"]) == (1, 0)
