"""Callers read our own words about a failed worker. The provider's words are in the trace alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dirigent.errors import FAULT_TEXTS, WorkerError
from dirigent.serve.http.errors import problem_of
from dirigent.serve.runs.report import report_of
from tests.facts import says
from tests.serve.conftest import Answer, Server, Start

PROVIDERS_WORDS = ("bad gateway", "slow down", "please log in", "it broke", "nonsense", "127.0.0.1", "<html>")

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "worker/alpha", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"model": "worker/alpha", "input": "hi"},
    "/v1/messages": {"model": "worker/alpha", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]},
}

FAULTS = {
    "429": "alpha HTTP 429",
    "500": "alpha HTTP 500",
    "wrong-content-type": "alpha",
    "200-error-body": "alpha",
    "garbage-json": "alpha",
}


def quoted(text: str) -> list[str]:
    return [words for words in PROVIDERS_WORDS if words in text]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_providers_words_reach_the_trace_only(server: Server, path: str, fault: str, stream: bool) -> None:
    server.stub.faults = [fault]
    answer = await server.request("POST", path, json=BODIES[path] | {"stream": stream})
    trace_id = answer.headers["X-Dirigent-Trace-Id"]
    assert answer.status == 503
    assert quoted(answer.text) == []
    assert says(answer.error["message"], FAULTS[fault])
    assert says(answer.error["message"], trace_id)
    trace = (await server.get(f"/v1/traces/{trace_id}")).object
    assert quoted(trace["error"])
    assert quoted(trace["rounds"][0]["steps"][0]["error"])


@pytest.mark.parametrize("path", BODIES)
async def test_an_event_that_ends_a_stream_has_our_words_too(start: Start, path: str) -> None:
    server = await start(hold_status_s=0.02)
    server.stub.delay_s = 0.2
    server.stub.faults = ["500"]
    answer = await server.request("POST", path, json=BODIES[path] | {"stream": True})
    assert answer.status == 200
    assert says(answer.text, FAULTS["500"])
    assert quoted(answer.text) == []


async def test_a_response_of_the_background_is_kept_with_our_words(server: Server) -> None:
    server.stub.faults = ["500"]
    begun = await server.request("POST", "/v1/responses", json=BODIES["/v1/responses"] | {"background": True})
    kept = await ended(server, begun.object["id"])
    assert kept.object["status"] == "failed"
    assert says(kept.object["error"]["message"], FAULTS["500"])
    assert quoted(kept.text) == []


def test_a_failure_outside_a_run_is_reported_in_our_words() -> None:
    problem = problem_of(WorkerError("boss: HTTP 500: <html>bad gateway</html>", worker="boss", fault="overloaded"))
    assert (problem.status, problem.code) == (503, "worker_failed")
    assert quoted(problem.body().decode()) == []


async def test_the_steps_of_a_reply_tell_that_one_failed_without_quoting(server: Server) -> None:
    server.stub.faults = ["500"]
    answer = await server.chat()
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    report = report_of(trace, seconds=0.0, whole=True)
    assert [bool(step.error) for step in report.steps or ()] == [True]
    assert quoted(trace.steps[0].error)


async def test_our_own_refusals_are_reported_in_full(server: Server) -> None:
    server.stub.answer = lambda call: "not json"
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}}
    answer = await server.chat(response_format=schema)
    assert says(answer.error["message"], "alpha JSON")


async def test_an_old_trace_without_our_words_does_not_show_the_providers(server: Server) -> None:
    server.stub.faults = ["500"]
    answer = await server.chat()
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    old = type(trace)(**{name: getattr(trace, name) for name in trace.__struct_fields__} | {"error_said": ""})
    assert quoted(old.error_for_caller) == []


@pytest.mark.parametrize("fault", FAULT_TEXTS)
def test_every_faults_message_names_the_remedy(fault: Any) -> None:
    error = WorkerError("its body", worker="a", fault=fault, status=418)
    assert says(error.for_caller, "a HTTP 418")
    assert error.for_caller.endswith(FAULT_TEXTS[fault])


async def ended(server: Server, id: str) -> Answer:
    async with asyncio.timeout(10):
        while True:
            answer = await server.get(f"/v1/responses/{id}")
            if answer.object["status"] not in ("queued", "in_progress"):
                return answer
            await asyncio.sleep(0.02)
