"""Whole chat completions: every model name, every field, every refusal."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest

from dirigent.messages import ToolCall, Usage
from dirigent.store.ledger import usage
from tests.facts import says
from tests.serve.conftest import CONFIG, PLAN, Server, Start, by_model
from tests.stub_wires import StubCall, StubReply


async def test_a_worker_is_asked_straight(server: Server) -> None:
    answer = await server.chat("hello", model="worker/alpha")
    assert answer.status == 200
    assert answer.object["object"] == "chat.completion"
    assert answer.object["model"] == "worker/alpha"
    (choice,) = answer.object["choices"]
    assert choice["message"] == {"role": "assistant", "content": "alpha says hello there", "refusal": None}
    assert choice["finish_reason"] == "stop"
    (call,) = server.stub.calls
    assert call.body["messages"] == [{"role": "user", "content": "hello"}]
    assert not call.stream


async def test_a_profile_plans_and_its_last_step_answers(server: Server) -> None:
    answer = await server.chat("hello", model="dirigent-ultra", dirigent={"trace": True})
    assert answer.object["choices"][0]["message"]["content"] == "beta says hello there"
    assert [call.model for call in server.stub.calls] == ["boss", "alpha", "beta"]
    steps = answer.object["dirigent"]["steps"]
    assert [(step["worker"], step["subtask"], step["access"]) for step in steps] == [
        ("alpha", "find it", []),
        ("beta", "say it", [0]),
    ]
    assert all(step["cost_usd"] > 0 and step["status"] == "done" for step in steps)


@pytest.mark.parametrize(
    ("model", "workers"),
    [
        ("dirigent-mini", ["alpha"]),
        ("mini", ["alpha"]),
        ("ultra", ["boss", "alpha", "beta"]),
        ("planner/single", ["boss"]),
        ("worker/beta", ["beta"]),
        ("twice", ["boss", "alpha", "beta", "boss"]),
    ],
)
async def test_every_kind_of_model_name_answers(server: Server, model: str, workers: list[str]) -> None:
    answer = await server.chat(model=model)
    assert answer.status == 200, answer.text
    assert [call.model for call in server.stub.calls] == workers


async def test_usage_counts_every_call_and_names_the_orchestration(server: Server) -> None:
    def answer(call: StubCall) -> StubReply:
        return StubReply(PLAN if call.model == "boss" else "x", usage=Usage(100, 10))

    server.stub.answer = answer
    told = (await server.chat(model="ultra")).object["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"], told["total_tokens"]) == (300, 30, 330)
    assert told["prompt_tokens_details"]["orchestration_input_tokens"] == 200
    assert told["completion_tokens_details"]["orchestration_output_tokens"] == 20


async def test_every_reply_says_its_trace_its_cost_and_our_own_time(server: Server) -> None:
    server.stub.delay_s = 0.2
    answer = await server.chat(model="worker/alpha")
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    assert trace.answer == "alpha says hello there"
    assert float(answer.headers["X-Dirigent-Cost-USD"]) == pytest.approx(trace.cost_usd, abs=1e-9)
    assert trace.cost_usd > 0
    assert answer.object["id"] == f"chatcmpl-{trace.id}"
    assert 0 < float(answer.headers["X-Dirigent-Overhead-Ms"]) < 1000 * trace.seconds - 190


async def test_history_roles_and_images_reach_the_worker(server: Server) -> None:
    image = "data:image/png;base64," + base64.b64encode(b"png").decode()
    messages: list[Any] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three", "refusal": None, "annotations": [], "audio": None},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": image, "detail": "low"}},
                {"type": "text", "text": "?"},
            ],
        },
    ]
    answer = await server.chat(messages)
    assert answer.status == 200, answer.text
    sent = server.stub.calls[0].body["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert sent[1]["content"] == "one\ntwo"
    assert sent[3]["content"][0]["image_url"] == {"url": image, "detail": "low"}


async def test_the_names_of_speakers_reach_the_worker_in_every_step(server: Server) -> None:
    said = [
        {"role": "system", "content": "be brief", "name": "house"},
        {"role": "user", "content": "I am for it.", "name": "ann"},
        {"role": "assistant", "content": "Noted.", "name": "clerk"},
        {"role": "user", "content": "Who is for it?", "name": "bob"},
    ]
    answer = await server.chat(said)
    assert answer.status == 200, answer.text
    assert server.stub.calls[0].body["messages"] == said
    await server.chat(said, model="ultra")
    for call in server.stub.calls[2:]:  # after the planner, which is shown the conversation as one text
        assert [message.get("name") for message in call.body["messages"]] == ["house", "ann", "clerk", "bob"]


async def test_a_name_that_is_too_long_or_of_another_tool_is_refused(server: Server) -> None:
    long = await server.chat([{"role": "user", "content": "hi", "name": "x" * 65}])
    assert (long.status, long.error["param"]) == (400, "messages[0].name")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    asked = [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]}]
    for name, status in (("weather", 200), ("clock", 400)):
        result = {"role": "tool", "tool_call_id": "c1", "content": "rain", "name": name}
        answer = await server.chat([*asked, result], tools=[TOOL])
        assert answer.status == status, answer.text
    assert answer.error["param"] == "messages[2].name"


async def test_sampling_settings_reach_the_worker(server: Server) -> None:
    await server.chat(
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop="END",
        max_tokens=20,
        reasoning_effort="low",
        user="me",
        n=1,
        logprobs=False,
    )
    body = server.stub.calls[0].body
    assert (body["temperature"], body["top_p"], body["seed"], body["stop"]) == (0.5, 0.9, 7, ["END"])
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 20


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


async def test_tool_calls_of_the_last_step_are_returned_and_the_result_comes_with_the_history(server: Server) -> None:
    call = ToolCall("call_1", "weather", '{"city":"Oslo"}')
    server.stub.answer = lambda _: StubReply(tool_calls=(call,), finish="tool_calls")
    first = await server.chat("Weather?", tools=[TOOL])
    (choice,) = first.object["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (made,) = choice["message"]["tool_calls"]
    assert (made["type"], made["function"]) == ("function", {"name": "weather", "arguments": '{"city":"Oslo"}'})
    server.stub.answer = lambda _: "It rains."
    history = [
        {"role": "user", "content": "Weather?"},
        choice["message"],
        {"role": "tool", "tool_call_id": made["id"], "content": "rain"},
    ]
    second = await server.chat(history, tools=[TOOL])
    assert second.object["choices"][0]["message"]["content"] == "It rains."
    assert server.stub.calls[1].body["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}


SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "age",
        "schema": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
    },
}


async def test_json_that_breaks_its_schema_is_mended_once(server: Server) -> None:
    replies = iter(['{"age": "old"}', '{"age": 40}'])
    server.stub.answer = lambda _: next(replies)
    answer = await server.chat(response_format=SCHEMA, dirigent={"trace": True})
    assert json.loads(answer.object["choices"][0]["message"]["content"]) == {"age": 40}
    assert "is not of type" in server.stub.calls[1].text
    trace = await server.service.store.get(answer.object["dirigent"]["trace_id"])
    assert len(trace.attempts) == 2


async def test_json_that_stays_wrong_is_never_returned(server: Server) -> None:
    server.stub.answer = lambda _: "not json at all"
    answer = await server.chat(response_format=SCHEMA)
    assert answer.status == 503
    assert says(answer.error["message"], "alpha JSON")
    assert len(server.stub.calls) == 2


async def test_json_mode_wants_an_object(server: Server) -> None:
    replies = iter(["[1]", '{"ok": true}'])
    server.stub.answer = lambda _: next(replies)
    answer = await server.chat(response_format={"type": "json_object"})
    assert answer.object["choices"][0]["message"]["content"] == '{"ok": true}'


async def test_a_schema_may_not_refer_outside_itself(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text("{}")
    for ref in (file.as_uri(), server.stub.url("openai") + "/models"):  # both are there, and would be schemas
        shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": ref}}}
        answer = await server.chat(response_format=shape)
        assert (answer.status, answer.error["param"]) == (400, "response_format.json_schema.schema")
    assert server.stub.calls == []


async def test_a_dry_run_plans_and_prices_but_asks_no_worker(server: Server) -> None:
    answer = await server.chat(model="ultra", dirigent={"dry_run": True})
    assert answer.object["object"] == "dirigent.plan"
    assert [step["worker"] for step in answer.object["steps"]] == ["alpha", "beta"]
    assert 0 < answer.object["estimate"]["low_usd"] < answer.object["estimate"]["high_usd"]
    assert [call.model for call in server.stub.calls] == ["boss"]
    assert (await usage(server.service.store)).calls == 1  # the planning itself is in the book
    page = server.service.metrics.page().decode()
    assert 'dirigent_calls_total{outcome="done",worker="boss"} 1.0' in page
    assert "dirigent_runs_total{" not in page


async def test_a_dry_run_is_settled_when_its_caller_hears_of_it(start: Start) -> None:
    server = await start(config=CONFIG.replace('planner_worker = "boss"', 'planner_worker = "beta"\nfallback = "none"'))
    for said, status in ((PLAN, 200), ("no plan", 502)):  # what came to nothing was paid as well
        server.stub.answer = lambda call, said=said: said
        before = await usage(server.service.store)
        answer = await server.chat(model="ultra", dirigent={"dry_run": True})
        after = await usage(server.service.store)
        assert answer.status == status
        assert after.calls > before.calls
        assert after.held_usd == 0, "a kill in this moment would charge the worst case"
        assert after.output_tokens > before.output_tokens
        assert after.cost_usd > before.cost_usd


async def test_every_attempt_is_in_the_book_before_its_call(server: Server) -> None:
    held: list[float] = []

    async def look(call: StubCall) -> str:
        held.append((await usage(server.service.store)).held_usd)
        return "x"

    server.stub.answer = look
    answer = await server.chat(model="worker/beta")
    assert held[0] > 0
    after = await usage(server.service.store)
    assert (after.calls, after.held_usd) == (1, 0)
    assert after.cost_usd == pytest.approx(answer.object["dirigent"]["cost_usd"], abs=1e-9)


async def test_a_request_narrows_its_pool(server: Server) -> None:
    pinned = await server.chat(model="planner/single", dirigent={"pool": {"pin": "beta"}})
    assert pinned.object["choices"][0]["message"]["content"].startswith("beta")
    regional = await server.chat(model="planner/single", dirigent={"region": "eu"})
    assert regional.object["choices"][0]["message"]["content"].startswith("alpha")
    denied = await server.chat(model="planner/moa", dirigent={"pool": {"deny": ["beta", "boss"]}})
    assert denied.status == 200
    assert {call.model for call in server.stub.calls[2:]} == {"alpha"}


async def test_the_planning_worker_is_within_the_region_too(server: Server) -> None:
    await server.chat(model="ultra", dirigent={"region": "eu"})
    assert {call.model for call in server.stub.calls} == {"alpha"}


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"n": 2}, 400, "n"),
    ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
    ({"logprobs": True}, 400, "logprobs"),
    ({"temprature": 1}, 400, "temprature"),
    ({"temperature": 3}, 400, "temperature"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, 400, "max_tokens"),
    ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop"),
    ({"stop": ""}, 400, "stop"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, 400, "messages[0].mood"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]}, 400, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "messages[0].content[0].type"),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}
            ]
        },
        400,
        "messages[0].content[0].image_url.url",
    ),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"model": "worker/alhpa"}, 404, "model"),
    ({"model": "gpt-4"}, 404, "model"),
    ({"dirigent": {"max_step": 3}}, 400, "dirigent.max_step"),
    ({"model": "ultra", "dirigent": {"max_steps": 5}}, 400, "dirigent.max_steps"),
    ({"model": "ultra", "dirigent": {"max_cost_usd": 2}}, 400, "dirigent.max_cost_usd"),
    ({"dirigent": {"pool": {"allow": ["nobody"]}}}, 400, "dirigent.pool.allow"),
    ({"dirigent": {"pool": {"deny": ["alpha"]}}}, 400, "dirigent.pool"),
    ({"dirigent": {"dry_run": True}, "stream": True}, 400, "dirigent.dry_run"),
]


async def test_an_unsupported_field_is_refused_by_name(server: Server) -> None:
    for fields, status, param in REFUSED:
        answer = await server.chat(**fields)
        assert (answer.status, answer.error["param"]) == (status, param), f"{fields}: {answer.text}"
        assert set(answer.error) == {"message", "type", "param", "code"}
    assert server.stub.calls == []


async def test_a_misspelt_field_names_its_neighbour(server: Server) -> None:
    answer = await server.chat(max_token=5)
    assert says(answer.error["message"], "max_token max_tokens")


async def test_a_field_that_no_worker_can_honour_is_refused_before_anyone_is_paid(server: Server) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    answer = await server.chat([{"role": "user", "content": [image]}], model="worker/beta")
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert server.stub.calls == []


async def test_bodies_are_bounded_in_size_and_depth(server: Server) -> None:
    json_type = {"Content-Type": "application/json"}
    large = io.BytesIO(b" " * (4 * 1024 * 1024 + 1))
    assert (await server.request("POST", "/v1/chat/completions", data=large, headers=json_type)).status == 413
    deep: Any = {}
    for _ in range(70):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "t", "parameters": deep}}
    assert (await server.chat(tools=[tool])).error["param"] == "tools[0].function.parameters"
    nested = b'{"model":"worker/alpha","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for body in (nested, b"{", b"\xff\xfe", b"[]", b"null", b""):
        answer = await server.request("POST", "/v1/chat/completions", data=body, headers=json_type)
        assert answer.status == 400, body[:20]
        assert answer.error["type"] == "invalid_request_error"


async def test_only_json_is_read(server: Server) -> None:
    body = json.dumps({"model": "worker/alpha", "messages": [{"role": "user", "content": "x"}]})
    answer = await server.request("POST", "/v1/chat/completions", data=body, headers={"Content-Type": "text/plain"})
    assert answer.status == 415


async def test_a_body_that_does_not_arrive_is_given_up(start: Start) -> None:
    server = await start(body_timeout_s=0.1)
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = (
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        "Content-Length: 50",
    )
    writer.write("\r\n".join((*head, "", '{"model"')).encode())
    assert b"408" in await reader.readline()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [("500", 503, "worker_failed"), ("garbage-json", 503, "worker_failed"), ("400", 400, "worker_refused")],
)
async def test_a_run_that_fails_has_a_status_and_a_trace(server: Server, fault: str, status: int, code: str) -> None:
    server.stub.faults = [fault]
    answer = await server.chat(model="worker/alpha")
    assert (answer.status, answer.error["code"]) == (status, code)
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    assert trace.status == "failed"


async def test_a_deadline_is_a_504_and_a_cost_cap_a_402(server: Server) -> None:
    server.stub.delay_s = 5.0
    late = await server.chat(model="worker/alpha", dirigent={"deadline_s": 0.1})
    assert (late.status, late.error["code"]) == (504, "deadline")
    server.stub.delay_s = 0.0
    dear = await server.chat(model="worker/beta", dirigent={"max_cost_usd": 0.0000001})
    assert (dear.status, dear.error["type"]) == (402, "insufficient_quota")


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tools", [{}, {"tools": [WEATHER], "tool_choice": "none"}])
async def test_an_unrequested_tool_call_is_no_answer(server: Server, tools: dict[str, Any], stream: bool) -> None:
    call = ToolCall("call_1", "weather", '{"city":"Oslo"}')
    reply = StubReply(tool_calls=(call,), finish="tool_calls", usage=Usage(100, 10))
    server.stub.answer = lambda _: reply
    answer = await server.chat(stream=stream, **tools)
    assert (answer.status, answer.error["code"]) == (503, "worker_failed")
    trace = await server.service.store.get(answer.headers["X-Dirigent-Trace-Id"])
    assert (trace.status, trace.cost_usd) == ("failed", pytest.approx(120e-6)), "its provider bills it all the same"
    server.stub.answer = lambda _: dataclasses.replace(reply, text="Oslo, I think.")
    spoke = await server.chat(stream=stream, **tools)
    text = spoke.streamed_text if stream else spoke.object["choices"][0]["message"]["content"]
    assert text == "Oslo, I think."
    assert "weather" not in spoke.text


async def test_a_step_that_only_calls_an_unoffered_tool_is_given_to_another_worker(server: Server) -> None:
    call = ToolCall("call_1", "weather", "{}")

    def answer(asked: StubCall) -> str | StubReply:
        return StubReply(tool_calls=(call,), finish="tool_calls") if asked.model == "beta" else by_model(asked)

    server.stub.answer = answer
    whole = (await server.chat(model="ultra", dirigent={"trace": True})).object
    assert whole["choices"][0]["message"]["content"] == "alpha says hello there"
    assert whole["dirigent"]["steps"][1]["planned_worker"] == "beta"


async def test_another_worker_takes_over_a_failed_step(server: Server) -> None:
    server.stub.faults = [None, None, "500"]  # boss, alpha, then beta fails
    answer = await server.chat(model="ultra", dirigent={"trace": True})
    assert answer.status == 200
    assert answer.object["dirigent"]["steps"][1]["planned_worker"] == "beta"
