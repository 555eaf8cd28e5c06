"""`/v1/responses`: stored answers, chains of them, their events, tools, and refusals."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dirigent.messages import ToolCall
from dirigent.store.keys import Caller, create_key
from dirigent.store.responses import KeptResponse, find_response, finish_response, keep_response
from dirigent.store.tables import responses
from dirigent.workers.secret import Secret
from tests.facts import says
from tests.serve.conftest import Answer, Server, Start
from tests.stub_wires import StubCall, StubReply

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
PNG = "data:image/png;base64,iVBORw0KGgo="


async def respond(server: Server, input: Any = "hi", *, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    whole = {"model": "worker/alpha", "input": input} | body
    return await server.request("POST", "/v1/responses", json=whole, headers=headers)


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """Every event, its name checked against its data."""
    found = []
    for frame in answer.frames:
        if frame.startswith(":"):
            continue
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def kinds_of(answer: Answer) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events_of(answer)]


def said_to(call: StubCall) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in call.body["messages"]]


def asks_for(*names: str) -> StubReply:
    calls = tuple(ToolCall(f"id-{i}", name, '{"city": "Oslo"}') for i, name in enumerate(names))
    return StubReply(tool_calls=calls, finish="tool_calls")


# ---- whole ------------------------------------------------------------------------------------------------


async def test_a_response_has_the_official_shape_and_is_found_again(server: Server) -> None:
    answer = await respond(server, metadata={"a": "b"}, temperature=0.5, user="me")
    response = answer.object
    assert answer.status == 200
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "worker/alpha")
    assert response["id"].startswith("resp_")
    (message,) = response["output"]
    text = {"type": "output_text", "text": "alpha says hello there", "annotations": [], "logprobs": []}
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert message["content"] == [text]
    assert (response["metadata"], response["temperature"], response["user"]) == ({"a": "b"}, 0.5, "me")
    assert (response["error"], response["incomplete_details"], response["tools"]) == (None, None, [])
    assert answer.headers["X-Dirigent-Trace-Id"] == response["dirigent"]["trace_id"]
    assert (await server.get(f"/v1/responses/{response['id']}")).object == response


async def test_usage_adds_up_and_names_the_orchestration(server: Server) -> None:
    answer = await respond(server, model="ultra")
    usage = answer.object["usage"]
    trace = await server.service.store.get(answer.object["dirigent"]["trace_id"])
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (trace.usage.input_tokens, trace.usage.output_tokens)
    details = usage["input_tokens_details"]
    assert 0 < details["orchestration_input_tokens"] == trace.usage.orchestration_input_tokens
    assert details["cached_tokens"] == usage["output_tokens_details"]["reasoning_tokens"] == 0
    assert details["cache_write_tokens"] == trace.usage.cache_write_input_tokens


async def test_the_choice_of_a_named_function_comes_back_whole(server: Server) -> None:
    wanted = {"type": "function", "name": "weather"}
    answer = await respond(server, tools=[TOOL], tool_choice=wanted)
    assert answer.object["tool_choice"] == wanted
    assert (await server.get(f"/v1/responses/{answer.object['id']}")).object["tool_choice"] == wanted


async def test_the_reasoning_summary_lists_the_workers_asked(server: Server) -> None:
    reasoning, message = (await respond(server, model="ultra")).object["output"]
    (part,) = reasoning["summary"]
    assert (part["type"], says(part["text"], "alpha find it")) == ("summary_text", True)
    assert message["content"][0]["text"] == "beta says hello there"


async def test_a_second_round_is_part_of_the_summary(server: Server) -> None:
    reasoning, _ = (await respond(server, model="twice")).object["output"]
    first, second = (part["text"] for part in reasoning["summary"])
    assert says(first, "alpha find it")
    assert says(second, "beta say it")


async def test_items_of_every_kind_reach_the_worker(server: Server) -> None:
    items = [
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": [{"type": "x"}]}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "sun"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "so?"},
                                     {"type": "input_image", "image_url": PNG, "detail": "high"}]},
    ]  # fmt: skip
    answer = await respond(server, items, instructions="speak English", tools=[TOOL])
    assert answer.status == 200, answer.text
    told = server.stub.calls[0].body["messages"]
    assert [m["role"] for m in told] == ["system", "system", "user", "assistant", "tool", "tool", "user"]
    assert [m["content"] for m in told[:3]] == ["speak English", "be brief", "weather?"]
    assert told[3]["content"] == "I look."
    assert [call["id"] for call in told[3]["tool_calls"]] == ["c1", "c2"]
    assert [(m["tool_call_id"], m["content"]) for m in told[4:6]] == [("c1", "rain"), ("c2", "sun")]
    assert told[6]["content"][1]["image_url"] == {"url": PNG, "detail": "high"}
    assert "xyz" not in json.dumps(told)


async def test_settings_reach_the_worker(server: Server) -> None:
    labels = {"prompt_cache_key": "k", "client_metadata": {"turn_id": "t"}, "include": ["reasoning.encrypted_content"]}
    settings = {"max_output_tokens": 7, "top_p": 0.5, "reasoning": {"effort": "low", "summary": "auto"}}
    assert (await respond(server, **settings, **labels)).status == 200
    body = server.stub.calls[0].body
    assert (body["top_p"], body["reasoning_effort"]) == (0.5, "low")
    assert 7 in (body.get("max_tokens"), body.get("max_completion_tokens"))


async def test_an_answer_cut_by_its_length_is_incomplete(server: Server) -> None:
    server.stub.answer = lambda _: StubReply("half an ans", finish="length")
    response = (await respond(server)).object
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    assert kinds_of(await respond(server, stream=True))[-1] == "incomplete"


async def test_json_of_a_shape_is_checked(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    replies = iter(["nonsense", '{"a": 1}'])
    server.stub.answer = lambda _: next(replies)
    shape = {"format": {"type": "json_schema", "name": "it", "schema": schema, "strict": True}}
    response = (await respond(server, text=shape)).object
    assert response["output"][0]["content"][0]["text"] == '{"a": 1}'
    assert response["text"] == shape


async def test_a_dry_run_gives_the_plan(server: Server) -> None:
    answer = await respond(server, model="ultra", dirigent={"dry_run": True})
    assert answer.object["object"] == "dirigent.plan"
    assert [call.model for call in server.stub.calls] == ["boss"]


async def test_limits_may_come_as_headers(server: Server) -> None:
    answer = await respond(server, model="ultra", headers={"X-Dirigent-Max-Steps": "1"})
    assert answer.status == 200
    assert [part["type"] for part in answer.object["output"]] == ["message"]


# ---- chains -----------------------------------------------------------------------------------------------


async def test_a_previous_response_brings_the_whole_conversation_without_its_instructions(server: Server) -> None:
    first = (await respond(server, "one", instructions="only once")).object
    second = (await respond(server, "two", previous_response_id=first["id"])).object
    third = await respond(server, [{"role": "user", "content": "three"}], previous_response_id=second["id"])
    hello = ("assistant", "alpha says hello there")
    assert said_to(server.stub.calls[2]) == [("user", "one"), hello, ("user", "two"), hello, ("user", "three")]
    assert third.object["previous_response_id"] == second["id"]


async def test_a_conversation_that_would_fill_the_memory_is_not_gone_on_with(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await respond(server, "x" * 3000)).object["id"]
    second = (await respond(server, "y" * 3000, previous_response_id=first)).object["id"]
    monkeypatch.setattr("dirigent.serve.apis.responses.kept.MAX_CHAIN_BYTES", 6000)
    assert (await respond(server, previous_response_id=first)).status == 200
    refused = await respond(server, previous_response_id=second)
    assert (refused.status, refused.error["code"]) == (413, "too_large")
    assert refused.error["param"] == "previous_response_id"
    assert len(server.stub.calls) == 3
    listed = await server.get(f"/v1/responses/{second}/input_items")
    assert [item["content"][0]["text"][0] for item in listed.object["data"]] == ["y", "a", "x"]


async def test_responses_survive_a_restart(start: Start) -> None:
    first = (await respond(await start(), "one")).object
    again = await start()
    assert (await again.get(f"/v1/responses/{first['id']}")).object == first
    await respond(again, "two", previous_response_id=first["id"])
    assert len(said_to(again.stub.calls[1])) == 3


async def test_a_response_that_must_not_be_stored_is_not_stored(server: Server) -> None:
    response = (await respond(server, store=False)).object
    assert response["store"] is False
    missing = await server.get(f"/v1/responses/{response['id']}")
    assert (missing.status, missing.error["code"]) == (404, "response_not_found")


async def test_the_items_a_response_was_made_from_are_listed_in_pages(server: Server) -> None:
    first = (await respond(server, "one")).object
    second = (await respond(server, "two", previous_response_id=first["id"])).object
    path = f"/v1/responses/{second['id']}/input_items"
    newest = (await server.get(path)).object
    texts = [item["content"][0]["text"] for item in newest["data"]]
    assert texts == ["two", "alpha says hello there", "one"]
    assert (newest["object"], newest["has_more"]) == ("list", False)
    assert (newest["first_id"], newest["last_id"]) == (newest["data"][0]["id"], newest["data"][-1]["id"])
    page = (await server.get(f"{path}?order=asc&limit=1&after={newest['data'][2]['id']}")).object
    assert (page["data"], page["has_more"]) == ([newest["data"][1]], True)
    for query, param in (("limit=0", "limit"), ("order=up", "order"), ("after=x", "after"), ("colour=red", "colour")):
        assert (await server.get(f"{path}?{query}")).error["param"] == param


async def test_deleting_a_response_deletes_its_continuations(server: Server) -> None:
    first = (await respond(server)).object
    second = (await respond(server, previous_response_id=first["id"])).object
    gone = await server.request("DELETE", f"/v1/responses/{first['id']}")
    assert gone.object == {"id": first["id"], "object": "response", "deleted": True}
    assert (await server.request("DELETE", f"/v1/responses/{first['id']}")).status == 404
    assert (await server.get(f"/v1/responses/{second['id']}")).status == 200
    broken = await respond(server, previous_response_id=second["id"])
    assert (broken.status, broken.error["param"]) == (404, "previous_response_id")
    assert first["id"] in broken.error["message"]
    assert len(server.stub.calls) == 2


async def test_another_keys_response_does_not_exist(server: Server) -> None:
    keys = [await create_key(server.service.store, Caller(label=label)) for label in ("mine", "theirs")]
    mine, theirs = ({"Authorization": f"Bearer {key.text}"} for key in keys)
    response = (await respond(server, headers=mine)).object
    path = f"/v1/responses/{response['id']}"
    for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"), ("GET", f"{path}/input_items")):
        assert (await server.request(method, where, headers=theirs)).status == 404
    assert (await respond(server, previous_response_id=response["id"], headers=theirs)).status == 404
    assert (await server.get(path, headers=mine)).status == 200


async def test_secrets_do_not_reach_the_disk(server: Server) -> None:
    secret = Secret("value-that-must-not-be-kept")
    answer = await respond(server, f"my key\nis {secret.reveal()}")
    assert answer.status == 200
    rows = await server.service.store.read(
        lambda c: list(c.scalars(responses.select().with_only_columns(responses.c.body)))
    )
    assert secret.reveal().encode() not in rows[0]
    assert b"***" in rows[0]


# ---- streams ----------------------------------------------------------------------------------------------


async def test_a_stream_has_the_official_events_in_order(server: Server) -> None:
    answer = await respond(server, stream=True)
    assert answer.headers["Content-Type"] == "text/event-stream"
    events = events_of(answer)
    kinds = kinds_of(answer)
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert len(kinds[4:-4]) > 1
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(e["delta"] for e in events if e["type"].endswith("text.delta")) == "alpha says hello there"
    assert events[0]["response"]["status"] == "in_progress"
    final = events[-1]["response"]
    assert final["output"] == [events[-2]["item"]]
    assert final["usage"]["total_tokens"] > 0
    assert (await server.get(f"/v1/responses/{final['id']}")).object == final


async def test_progress_is_streamed_as_a_summary_while_earlier_steps_run(server: Server) -> None:
    release = asyncio.Event()

    async def first_writes_slowly(call: StubCall) -> str | StubReply:
        if call.model == "beta":
            await release.wait()
        return json.dumps(PLAN) if call.model == "boss" else f"{call.model}'s own words"

    server.stub.answer = first_writes_slowly
    body = {"model": "ultra", "input": "hi", "stream": True}
    async with server.session.post(server.url + "/v1/responses", json=body) as response:
        seen = b""
        async for line in response.content:
            seen += line
            if b"reasoning_summary_part.done" in line and line.startswith(b"data"):
                break
        assert says(seen.decode(), "alpha find it")
        assert b"own words" not in seen
        release.set()
        rest = await response.read()
    assert b"beta's own words" in rest
    assert b"alpha's own words" not in rest


PLAN = {
    "steps": [
        {"id": "0", "models": ["alpha"], "prompt": "find it", "access_list": []},
        {"id": "1", "models": ["beta"], "prompt": "say it", "access_list": ["0"]},
    ]
}


async def test_the_summary_item_is_done_before_the_message_is_added(server: Server) -> None:
    events = events_of(await respond(server, stream=True, model="ultra"))
    items = [(e["type"].removeprefix("response.output_item."), e["item"]["type"]) for e in events if "item" in e]
    assert items == [("added", "reasoning"), ("done", "reasoning"), ("added", "message"), ("done", "message")]
    assert [e["output_index"] for e in events if "item" in e] == [0, 0, 1, 1]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


async def test_a_fault_before_the_first_byte_has_its_own_status(server: Server) -> None:
    server.stub.faults = ["500"]
    answer = await respond(server, stream=True)
    assert (answer.status, answer.error["code"]) == (503, "worker_failed")


async def test_a_fault_after_the_first_byte_is_a_failed_response_and_the_end(server: Server) -> None:
    server.stub.faults = ["truncated-sse"]
    answer = await respond(server, stream=True)
    *_, last = events_of(answer)
    assert (answer.status, last["type"]) == (200, "response.failed")
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert "completed" not in kinds_of(answer)
    kept = (await server.get(f"/v1/responses/{last['response']['id']}")).object
    assert kept["status"] == "failed"


async def test_silence_is_filled_with_comments(start: Start) -> None:
    server = await start(hold_status_s=0.05, keep_alive_s=0.05)
    server.stub.delay_s = 0.4
    answer = await respond(server, stream=True)
    assert answer.comments.count("keep-alive") >= 2
    assert kinds_of(answer)[-1] == "completed"


# ---- tools ------------------------------------------------------------------------------------------------


async def test_a_tool_call_is_returned_and_its_result_resumes_the_run(server: Server) -> None:
    server.stub.answer = lambda call: "rainy" if '"tool"' in json.dumps(call.body) else asks_for("weather")
    first = (await respond(server, "weather?", tools=[TOOL])).object
    (call,) = first["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "weather", {"city": "Oslo"})
    assert first["status"] == "completed"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    second = await respond(server, [result], previous_response_id=first["id"], tools=[TOOL])
    assert second.object["output"][0]["content"][0]["text"] == "rainy"
    assert second.headers["X-Dirigent-Resumed"] == "yes"
    assert second.object["dirigent"]["trace_id"] == first["dirigent"]["trace_id"]
    trace = await server.service.store.get(first["dirigent"]["trace_id"])
    total = first["usage"]["total_tokens"] + second.object["usage"]["total_tokens"]
    assert total == trace.usage.input_tokens + trace.usage.output_tokens


async def test_a_client_that_keeps_its_own_history_resumes_too(server: Server) -> None:
    server.stub.answer = lambda call: "rainy" if '"tool"' in json.dumps(call.body) else asks_for("weather")
    items: list[Any] = [{"role": "user", "content": "weather?"}]
    first = (await respond(server, items, tools=[TOOL], store=False)).object
    items += first["output"]
    items.append({"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "rain"})
    second = await respond(server, items, tools=[TOOL], store=False)
    assert second.headers["X-Dirigent-Resumed"] == "yes"


async def test_tool_calls_stream_too(server: Server) -> None:
    server.stub.answer = lambda _: asks_for("weather")
    answer = await respond(server, stream=True, tools=[TOOL])
    assert kinds_of(answer) == [
        "created", "in_progress", "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    added, delta, done = events_of(answer)[2:5]
    assert added["item"]["arguments"] == ""
    assert json.loads(delta["delta"]) == json.loads(done["arguments"]) == {"city": "Oslo"}
    assert added["item"]["id"] == delta["item_id"] == done["item_id"]


@pytest.mark.parametrize(("parallel", "count"), [(True, 2), (None, 2), (False, 1)])
async def test_calls_come_one_at_a_time_where_that_is_asked_for(
    server: Server, parallel: bool | None, count: int
) -> None:
    server.stub.answer = lambda _: asks_for("weather", "weather")
    answer = await respond(server, tools=[TOOL], parallel_tool_calls=parallel)
    assert len(answer.object["output"]) == count


# ---- refused ----------------------------------------------------------------------------------------------

DEEP: list[Any] = []
for _ in range(70):
    DEEP = [DEEP]
SAID = {"role": "assistant", "content": [{"type": "output_text", "text": "y", "annotations": DEEP}]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"conversation": "conv_1"}, "conversation"),
    ({"input": [SAID, {"role": "user", "content": "x"}]}, "input[0].content[0].annotations"),
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": "x", "colour": "red"}]}, "input[0].colour"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}]},
     "input[0].content[0].image_url"),
    ({"input": [{"role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "c", "output": ""}]},
     "input[1].call_id"),
    ({"input": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}, "input[1].role"),
    ({"tools": [{"search_context_size": "low", "type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].type"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nonsense"}}}}, "text.format.schema"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"truncation": "auto"}, "truncation"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"]}, "include[0]"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"stream_options": {}}, "stream_options"),
    ({"dirigent": {"max_stepz": 1}}, "dirigent.max_stepz"),
    ({"dirigent": {"dry_run": True}, "stream": True}, "dirigent.dry_run"),
    ({"background": True, "store": False}, "store"),
    ({"background": True, "dirigent": {"dry_run": True}}, "dirigent.dry_run"),
    ({"background": True, "parallel_tool_calls": False}, "parallel_tool_calls"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[f"{param} {i}" for i, (_, param) in enumerate(REFUSED)])
async def test_an_unsupported_field_is_a_400_that_names_it(server: Server, body: dict[str, Any], param: str) -> None:
    answer = await respond(server, **body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.text
    assert answer.error["type"] == "invalid_request_error"
    assert server.stub.calls == []
    assert server.service.admission.in_flight == 0


async def test_unknown_models_and_responses_are_404(server: Server) -> None:
    assert (await respond(server, model="nobody")).error["code"] == "model_not_found"
    assert (await respond(server, previous_response_id="resp_x")).error["code"] == "response_not_found"
    for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        assert (await server.request(method, f"/v1/responses/resp_x{tail}")).status == 404


async def test_only_background_responses_can_be_cancelled_or_replayed(server: Server) -> None:
    id = (await respond(server)).object["id"]
    assert (await server.request("POST", f"/v1/responses/{id}/cancel")).error["code"] == "not_background"
    assert (await server.get(f"/v1/responses/{id}?stream=true")).error["param"] == "stream"
    assert (await server.get(f"/v1/responses/{id}?starting_after=3")).error["param"] == "starting_after"


async def test_an_end_is_given_once(server: Server) -> None:
    kept = KeptResponse("resp_1", "local", "run", "in_progress", b"[]", b"{}")
    await keep_response(server.service.store, kept)
    assert await find_response(server.service.store, "resp_1", key_id="local") == kept
    done = KeptResponse("resp_1", "local", "run", "completed", b"[]", b'{"a":1}')
    late = KeptResponse("resp_1", "local", "run", "failed", b"[]", b"{}")
    assert await finish_response(server.service.store, done)
    assert not await finish_response(server.service.store, late)
    assert await find_response(server.service.store, "resp_1", key_id="local") == done
