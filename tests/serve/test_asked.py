"""Asked: the three APIs read the same request alike, nothing of it is lost in the store, and errors name its fields."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dirigent.messages import Image, Request, Schema, Text, Tool, ToolCall
from dirigent.serve.apis.anthropic import wire as anthropic
from dirigent.serve.apis.chat import wire as chat
from dirigent.serve.apis.responses import wire as responses
from dirigent.serve.http.errors import Problem
from dirigent.serve.runs.asked import Asked, Extension, Fields, PoolChoice
from tests.serve.test_wire import VALUES, places

SOURCES = Path(__file__).parents[2] / "src"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
URL = "https://example.org/a.png"

CHAT: dict[str, Any] = {
    "model": "ultra",
    "messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "weather?"},
                                     {"type": "image_url", "image_url": {"url": URL}}]},
        {"role": "assistant", "content": "I look.", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
    ],
    "max_completion_tokens": 50, "temperature": 0.5, "top_p": 0.9, "reasoning_effort": "low",
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
    "dirigent": {"max_steps": 2, "pool": {"deny": ["b"]}},
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "model": "ultra",
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"},
                                     {"type": "input_image", "image_url": URL}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "t1", "name": "weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call_output", "call_id": "t1", "output": "rain"},
    ],
    "max_output_tokens": 50, "temperature": 0.5, "top_p": 0.9, "reasoning": {"effort": "low"},
    "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}],
    "tool_choice": {"type": "function", "name": "weather"},
    "text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}},
    "dirigent": {"max_steps": 2, "pool": {"deny": ["b"]}},
}  # fmt: skip
MESSAGES: dict[str, Any] = {
    "model": "ultra",
    "system": "be brief",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "weather?"},
                                     {"type": "image", "source": {"type": "url", "url": URL}}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "rain"}]},
    ],
    "max_tokens": 50, "temperature": 0.5, "top_p": 0.9, "output_config": {
        "effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "tools": [{"name": "weather", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "weather"},
    "dirigent": {"max_steps": 2, "pool": {"deny": ["b"]}},
}  # fmt: skip


def read(api: str, body: dict[str, Any]) -> Asked:
    encoded = json.dumps(body).encode()
    if api == "responses":
        return responses.asked_of(responses.read(encoded), history=())
    return (chat if api == "chat" else anthropic).read(encoded)


def read_or_refused(api: str, body: dict[str, Any]) -> Asked | Problem:
    try:
        return read(api, body)
    except Problem as problem:
        return problem


BODIES = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}


def test_the_same_request_is_the_same_whichever_api_it_comes_through() -> None:
    first, *others = [msgspec.structs.replace(read(api, body), fields=Fields()) for api, body in BODIES.items()]
    assert others == [first, first]
    assert [message.role for message in first.question] == ["system", "user", "assistant", "tool"]
    assert first.question[1].content == (Text("weather?"), Image(url=URL))
    assert first.question[2].tool_calls == (ToolCall("t1", "weather", '{"city":"Oslo"}'),)
    assert first.question[3].name == "weather"
    assert first.options == Request(
        (),
        tools=(Tool("weather", SCHEMA),),
        tool_choice="weather",
        schema=Schema(SCHEMA),
        max_output_tokens=50,
        temperature=0.5,
        top_p=0.9,
        effort="low",
    )
    assert first.dirigent == Extension(max_steps=2, pool=PoolChoice(deny=("b",)))


@pytest.mark.parametrize("api", BODIES)
def test_a_stored_request_is_read_back_whole(api: str) -> None:
    asked = read(api, BODIES[api])
    assert msgspec.json.decode(msgspec.json.encode(asked), type=Asked) == asked


@pytest.mark.parametrize(
    ("api", "fields"),
    [
        ("chat", ("messages", "messages[3]", "response_format", "response_format.json_schema.schema", "stop")),
        ("responses", ("input", "input[3]", "text.format", "text.format.schema", "stop")),
        ("messages", ("messages", "messages[2].content[0]", "output_config.format", "output_config.format.schema",
                      "stop_sequences")),
    ],
)  # fmt: skip
def test_a_request_has_its_own_apis_names_of_fields(api: str, fields: tuple[str, ...]) -> None:
    names = read(api, BODIES[api]).fields
    assert (names.messages, names.message(3), names.response_format, names.schema, names.stop) == fields


@pytest.mark.parametrize(
    ("api", "param"),
    [("chat", "messages[1].tool_call_id"), ("responses", "input[1].call_id"),
     ("messages", "messages[1].content[0].tool_use_id")],
)  # fmt: skip
def test_a_result_without_its_call_is_refused_by_its_own_name(api: str, param: str) -> None:
    said = [{"role": "user", "content": "hi"}]
    results = {
        "chat": {"role": "tool", "tool_call_id": "lost", "content": "rain"},
        "responses": {"type": "function_call_output", "call_id": "lost", "output": "rain"},
        "messages": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "lost", "content": "rain"}]},
    }
    field = "input" if api == "responses" else "messages"
    body = {"model": "m", field: [*said, results[api]]} | ({"max_tokens": 5} if api == "messages" else {})
    with pytest.raises(Problem) as refused:
        read(api, body)
    assert (refused.value.status, refused.value.param) == (400, param)


@settings(max_examples=200, deadline=None)
@given(st.data(), VALUES, st.booleans())
@pytest.mark.parametrize("api", BODIES)
def test_any_value_in_any_place_is_understood_or_refused(
    api: str, data: st.DataObject, value: Any, added: bool
) -> None:
    body = json.loads(json.dumps(BODIES[api]))
    place = data.draw(st.sampled_from(places(body)))
    at = body
    for key in place[:-1]:
        at = at[key]
    at[f"{place[-1]}x" if added and isinstance(at, dict) else place[-1]] = value
    found = read_or_refused(api, body)
    if isinstance(found, Problem):
        assert found.status == 400
        assert str(found)
    else:
        assert msgspec.json.decode(msgspec.json.encode(found), type=Asked) == found


def test_a_sampling_setting_is_known_to_few_files() -> None:
    """One for each API and each wire, the request itself and a worker's defaults: a new setting touches no other."""
    knowing = [file for file in SOURCES.rglob("*.py") if "top_p" in names_in(file)]
    assert len(knowing) <= 8, knowing


def names_in(file: Path) -> set[str]:
    """Every attribute, keyword, annotated name and text of a file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword):
            found.add(node.arg or "")
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found
