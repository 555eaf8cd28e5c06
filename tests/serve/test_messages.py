"""`/v1/messages`: Anthropic's format over the same runs, its events, and its shape of errors."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dirigent.conduct import Conductor
from dirigent.messages import Attempt, ToolCall, Usage
from dirigent.planners.fixed import Single
from dirigent.run.step_prompt import TOOL_FAILED
from dirigent.run.trace import Round, StepRecord
from dirigent.serve.apis.anthropic.route import usage_of
from dirigent.serve.apis.anthropic.wire import read
from dirigent.store.keys import Caller, create_key
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from tests.serve.conftest import Answer, Server, Start
from tests.stub_wires import StubReply

TOOL = {"name": "weather", "description": "the weather", "input_schema": {"type": "object", "properties": {}}}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


async def ask(server: Server, said: Any = "hi", *, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
    whole = {"model": "worker/alpha", "max_tokens": 100, "messages": messages} | body
    versioned = {"anthropic-version": "2023-06-01"} | (headers or {})
    return await server.request("POST", "/v1/messages", json=whole, headers=versioned)


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """Every event, its name checked against its data."""
    found = []
    for frame in answer.frames:
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def told(server: Server, call: int = 0) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = server.stub.calls[call].body["messages"]
    return messages


def asks_for(*names: str, arguments: str = '{"city": "Oslo"}', text: str = "") -> StubReply:
    calls = tuple(ToolCall(f"id-{i}", name, arguments) for i, name in enumerate(names))
    return StubReply(text, tool_calls=calls, finish="tool_calls")


# ---- whole ------------------------------------------------------------------------------------------------


async def test_a_message_has_the_official_shape(server: Server) -> None:
    answer = await ask(server, system="be brief")
    message = answer.object
    assert answer.status == 200
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "worker/alpha")
    assert message["id"].startswith("msg_")
    assert message["content"] == [{"type": "text", "text": "alpha says hello there", "citations": None}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert answer.headers["request-id"].startswith("req_")
    assert answer.headers["X-Dirigent-Trace-Id"] == message["dirigent"]["trace_id"]
    assert [(m["role"], m["content"]) for m in told(server)] == [("system", "be brief"), ("user", "hi")]


async def test_cached_tokens_are_not_part_of_the_input_tokens(server: Server) -> None:
    server.stub.answer = lambda _: StubReply("x", usage=Usage(100, 5, cached_input_tokens=80))
    usage = (await ask(server)).object["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (20, 80, 5)
    assert usage["cache_creation_input_tokens"] == 0


def test_tokens_written_to_a_cache_have_a_field_of_their_own() -> None:
    trace = Conductor(Single(), Pool([Scripted("x")])).begin("hi").trace
    used = Attempt("x", 0.1, Usage(100, 5, cached_input_tokens=30, cache_write_input_tokens=50))
    step = StepRecord(0, "x", "say", attempts=(used,))
    usage = usage_of(msgspec.structs.replace(trace, rounds=(Round((), steps=(step,)),)))
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (20, 30, 50)


async def test_usage_counts_every_call_and_names_the_orchestration(server: Server) -> None:
    answer = await ask(server, model="ultra")
    usage = answer.object["usage"]
    trace = await server.service.store.get(answer.object["dirigent"]["trace_id"])
    assert (usage["input_tokens"], usage["output_tokens"]) == (trace.usage.input_tokens, trace.usage.output_tokens)
    assert usage["orchestration_input_tokens"] == trace.usage.orchestration_input_tokens > 0


async def test_blocks_of_every_kind_reach_the_worker(server: Server) -> None:
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "weather?", **cached}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hidden", "signature": "s"},
            {"type": "redacted_thinking", "data": "hidden"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "t2", "name": "weather", "input": {}, **cached},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True,
             "content": [{"type": "text", "text": "no such city"}, {"type": "image", "source": PIXEL}]},
            {"type": "text", "text": "so?"},
        ]},
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}]},
    ]  # fmt: skip
    answer = await ask(server, messages, tools=[TOOL | cached], system=[{"type": "text", "text": "sys", **cached}])
    assert answer.status == 200, answer.text
    seen = told(server)
    assert [m["role"] for m in seen] == ["system", "user", "assistant", "tool", "tool", "user", "user"]
    assert (seen[0]["content"], seen[1]["content"], seen[2]["content"]) == ("sys", "weather?", "I look.")
    assert [(c["id"], json.loads(c["function"]["arguments"])) for c in seen[2]["tool_calls"]] == [
        ("t1", {"city": "Oslo"}),
        ("t2", {}),
    ]
    assert (seen[3]["content"], seen[4]["content"]) == ("rain", TOOL_FAILED + "no such city")
    assert [part["type"] for part in seen[5]["content"]] == ["image_url", "text"]
    assert seen[6]["content"][0]["image_url"]["url"] == "https://example.org/a.png"
    assert "hidden" not in json.dumps(seen)


async def test_a_system_message_after_a_turn_is_said_before_it(server: Server) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
        {"role": "system", "content": "be kind"},
    ]
    assert (await ask(server, messages[:2])).status == 200
    assert (await ask(server, messages, tools=[TOOL])).status == 200
    assert [(m["role"], m["content"]) for m in told(server, 0)] == [("system", "be brief"), ("user", "weather?")]
    assert [m["role"] for m in told(server, 1)] == ["system", "user", "system", "assistant", "tool"]


@pytest.mark.parametrize(
    ("body", "effort"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 8000}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 32000}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}, "xhigh"),
        ({"thinking": {"type": "disabled"}}, None),
        ({}, None),
    ],
)
async def test_thinking_becomes_effort(server: Server, body: dict[str, Any], effort: str | None) -> None:
    assert (await ask(server, **body)).status == 200
    assert server.stub.calls[0].body.get("reasoning_effort") == effort


async def test_settings_reach_the_worker_and_labels_do_not(server: Server) -> None:
    answer = await ask(
        server,
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        max_tokens=7,
        metadata={"user_id": "u"},
        service_tier="auto",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    assert answer.status == 200, answer.text
    body = server.stub.calls[0].body
    assert (body["stop"], body["temperature"], body["top_p"]) == (["END"], 0.5, 0.9)
    assert 7 in (body.get("max_tokens"), body.get("max_completion_tokens"))
    assert "metadata" not in body


@pytest.mark.parametrize(("finish", "reason"), [("stop", "end_turn"), ("length", "max_tokens"), ("refused", "refusal")])
async def test_the_stop_reason_is_given_in_anthropics_words(server: Server, finish: Any, reason: str) -> None:
    server.stub.answer = lambda _: StubReply("some words", finish=finish)
    assert (await ask(server)).object["stop_reason"] == reason


async def test_json_of_a_shape_is_checked(server: Server) -> None:
    replies = iter(["nonsense", '{"a": 1}'])
    server.stub.answer = lambda _: next(replies)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    answer = await ask(server, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert answer.object["content"][0]["text"] == '{"a": 1}'


async def test_a_dry_run_gives_the_plan(server: Server) -> None:
    answer = await ask(server, model="ultra", headers={"X-Dirigent-Dry-Run": "true"})
    assert answer.object["object"] == "dirigent.plan"


# ---- tools ------------------------------------------------------------------------------------------------


async def test_a_tool_call_is_returned_and_its_result_resumes_the_run(server: Server) -> None:
    server.stub.answer = lambda call: "rainy" if '"tool"' in json.dumps(call.body) else asks_for("weather", text="hm")
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    first = (await ask(server, messages, tools=[TOOL])).object
    text, use = first["content"]
    assert text["text"] == "hm"
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "weather", {"city": "Oslo"})
    assert first["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "rain"}
    messages += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    second = await ask(server, messages, tools=[TOOL])
    assert second.object["content"][0]["text"] == "rainy"
    assert second.headers["X-Dirigent-Resumed"] == "yes"
    assert second.object["id"] != first["id"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
async def test_the_choice_of_a_tool_is_passed_on(server: Server, choice: dict[str, Any], expected: Any) -> None:
    assert (await ask(server, tools=[TOOL], tool_choice=choice)).status == 200
    assert server.stub.calls[0].body.get("tool_choice", "auto") == expected


async def test_calls_come_one_at_a_time_where_that_is_asked_for(server: Server) -> None:
    server.stub.answer = lambda _: asks_for("weather", "weather")
    assert len((await ask(server, tools=[TOOL])).object["content"]) == 2
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert len((await ask(server, tools=[TOOL], tool_choice=choice)).object["content"]) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_that_are_no_object_are_an_error(server: Server, stream: bool) -> None:
    server.stub.answer = lambda _: asks_for("weather", arguments="[1]")
    answer = await ask(server, tools=[TOOL], stream=stream)
    error = events_of(answer)[-1] if stream else answer.object
    assert (error["type"], error["error"]["type"]) == ("error", "api_error")


# ---- streams ----------------------------------------------------------------------------------------------


async def test_a_stream_has_the_official_events_in_order(server: Server) -> None:
    answer = await ask(server, stream=True)
    assert answer.headers["Content-Type"] == "text/event-stream"
    events = [event for event in events_of(answer) if event["type"] != "ping"]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert len(kinds[2:-3]) > 1
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert "".join(event["delta"]["text"] for event in events[2:-3]) == "alpha says hello there"
    ending = events[-2]
    assert ending["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ending["usage"]["input_tokens"] > 0
    assert ending["usage"]["output_tokens"] == 4
    assert ending["dirigent"]["trace_id"] == answer.headers["X-Dirigent-Trace-Id"]


async def test_earlier_steps_are_pings_alone(server: Server) -> None:
    events = events_of(await ask(server, stream=True, model="ultra"))
    assert [e["type"] for e in events[:5]] == ["message_start", "ping", "ping", "ping", "content_block_start"]
    assert events[1] == {"type": "ping"}
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert text == "beta says hello there"


async def test_tool_calls_stream_after_the_text(server: Server) -> None:
    server.stub.answer = lambda _: asks_for("weather", "weather", text="hm")
    events = events_of(await ask(server, stream=True, tools=[TOOL]))
    starts = [(e["index"], e["content_block"]["type"]) for e in events if e["type"] == "content_block_start"]
    assert starts == [(0, "text"), (1, "tool_use"), (2, "tool_use")]
    assert [e["index"] for e in events if e["type"] == "content_block_stop"] == [0, 1, 2]
    (start,) = [e["content_block"] for e in events if e["type"] == "content_block_start" and e["index"] == 1]
    assert (start["name"], start["input"]) == ("weather", {})
    (delta,) = [e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == 1]
    assert (delta["type"], json.loads(delta["partial_json"])) == ("input_json_delta", {"city": "Oslo"})
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_silence_is_filled_with_pings(start: Start) -> None:
    server = await start(hold_status_s=0.05, keep_alive_s=0.05)
    server.stub.delay_s = 0.4
    kinds = [event["type"] for event in events_of(await ask(server, stream=True))]
    assert kinds.count("ping") >= 4
    assert kinds[-1] == "message_stop"


async def test_a_fault_before_the_first_byte_has_its_own_status(server: Server) -> None:
    server.stub.faults = ["500"]
    answer = await ask(server, stream=True)
    assert (answer.status, answer.error["type"]) == (503, "overloaded_error")
    assert answer.headers["Retry-After"] == "1"


async def test_a_fault_after_the_first_byte_is_an_error_event_and_the_end(server: Server) -> None:
    server.stub.faults = ["truncated-sse"]
    answer = await ask(server, stream=True)
    *_, last = events_of(answer)
    assert answer.status == 200
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
    assert last["request_id"] == answer.headers["request-id"]
    assert "message_stop" not in answer.text


# ---- counting ---------------------------------------------------------------------------------------------


async def test_tokens_are_estimated_and_said_to_be(server: Server) -> None:
    async def count(**more: Any) -> Any:
        body = {"model": "worker/alpha", "messages": [{"role": "user", "content": "x" * 400}]} | more
        return await server.request("POST", "/v1/messages/count_tokens", json=body)

    plain = (await count()).object
    assert plain == {"input_tokens": 100, "estimated": True}
    assert (await count(system="y" * 40)).object["input_tokens"] == 110
    assert (await count(tools=[TOOL])).object["input_tokens"] > 100
    image = [{"role": "user", "content": [{"type": "image", "source": PIXEL}]}]
    assert (await count(messages=image)).object["input_tokens"] == 1500
    assert (await count(model="nobody")).status == 404
    assert (await count(max_tokens=5)).object["error"]["type"] == "invalid_request_error"
    assert server.stub.calls == []


# ---- refused ----------------------------------------------------------------------------------------------

USE = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"top_k": 5}, "top_k"),
    ({"temperature": 1.5}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [RESULT]}]}, "messages[0].content[0].tool_use_id"),
    ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [RESULT]},
                   {"role": "user", "content": "x"}]}, "messages[1].content[0]"),
    ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "I"}]}, "messages[1].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
     "messages[0].content[0].source.url"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]}, "tools[0].type"),
    ({"tools": [{"name": "weather"}]}, "tools[0].input_schema"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "nonsense"}}}},
     "output_config.format.schema"),
    ({"mcp_servers": [{"url": "https://example.org"}]}, "mcp_servers"),
    ({"dirigent": {"max_stepz": 1}}, "dirigent.max_stepz"),
    ({"dirigent": {"dry_run": True}, "stream": True}, "dirigent.dry_run"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[f"{param} {i}" for i, (_, param) in enumerate(REFUSED)])
async def test_an_unsupported_field_is_a_400_that_names_it(server: Server, body: dict[str, Any], param: str) -> None:
    answer = await ask(server, **body)
    assert answer.status == 400
    assert set(answer.object) == {"type", "error", "request_id"}
    assert (answer.object["type"], answer.error["type"]) == ("error", "invalid_request_error")
    assert param in answer.error["message"]
    assert answer.error["param"] == param
    assert answer.object["request_id"] == answer.headers["request-id"]
    assert server.stub.calls == []
    assert server.service.admission.in_flight == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thread_is_refused_so_that_clients_go_on_without_it(server: Server, stream: bool) -> None:
    headers = {"anthropic-beta": "message-threads-2026-08-12"}
    answer = await ask(server, headers=headers, thread={"type": "create"}, stream=stream)
    assert (answer.status, answer.error["param"]) == (400, "thread")
    assert answer.error["details"] == {"error_code": "thread_unsupported_request"}
    assert server.stub.calls == []


async def test_no_other_unknown_field_is_taken_for_a_thread(server: Server) -> None:
    for body in ({"threads": {}}, {"system": [{"type": "text", "text": "x", "thread": 1}]}):
        answer = await ask(server, **body)
        assert (answer.status, answer.error["code"]) == (400, "unknown_field")
        assert "details" not in answer.error


async def test_errors_from_before_the_route_have_anthropics_shape_too(server: Server) -> None:
    wrong = await server.get("/v1/messages")
    assert (wrong.status, wrong.error["type"]) == (405, "invalid_request_error")
    missing = await server.get("/v1/messages/nothing")
    assert (missing.status, missing.error["type"]) == (404, "not_found_error")
    body = await server.request("POST", "/v1/messages", data=b"{", headers={"Content-Type": "application/json"})
    assert (body.status, body.object["type"]) == (400, "error")


async def test_the_gates_errors_have_the_shape_of_the_route(server: Server) -> None:
    await create_key(server.service.store, Caller(label="somebody"))
    refused = await ask(server)
    assert (refused.status, refused.error["type"]) == (401, "authentication_error")
    assert set((await server.chat()).object) == {"error"}


async def test_a_key_may_come_as_anthropics_clients_send_it(server: Server) -> None:
    key = await create_key(server.service.store, Caller(label="somebody"))
    assert (await ask(server, headers={"x-api-key": key.text})).status == 200


async def test_a_spent_budget_is_a_billing_error(server: Server) -> None:
    key = await create_key(server.service.store, Caller(label="poor", budget_total_usd=1e-9))
    answer = await ask(server, headers={"x-api-key": key.text})
    assert (answer.status, answer.error["type"]) == (402, "billing_error")
    assert answer.headers["X-Dirigent-Trace-Id"]


async def test_a_bug_says_nothing_of_itself(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("something inside")

    monkeypatch.setattr("dirigent.serve.apis.anthropic.route.usage_of", broken)
    answer = await ask(server)
    assert (answer.status, answer.error["type"]) == (500, "api_error")
    assert "inside" not in answer.text


def test_marks_for_the_cache_are_read_at_the_ends_of_messages() -> None:
    mark, hour = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h", "scope": "global"}
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": hour}, {"type": "text", "text": "Be kind."}],
        "tools": [{"name": "t", "input_schema": {}, "cache_control": mark}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "t", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "cache_control": mark}]},
        ],
    }
    asked = read(json.dumps(body).encode())
    assert [message.cache for message in asked.question] == ["1h", "5m", "", "5m"]
    assert asked.options.tools[0].cache == "5m"
    whole = read(json.dumps(body | {"messages": body["messages"][:1], "cache_control": hour}).encode())  # type: ignore[index]
    assert [message.cache for message in whole.question] == ["1h", "1h"]
