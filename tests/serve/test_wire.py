"""The door from bytes to a request: any bytes give a request or a 400 that names a field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dirigent.messages import Schema
from dirigent.serve.apis.chat.wire import ChatRequest, read
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.json_schema import checker

GOOD: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "tools": [{"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "stop": ["a"],
    "dirigent": {"max_steps": 2, "pool": {"allow": ["a"]}},
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.extend(places(item, (*path, key)))
    return found


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(places(GOOD)), VALUES, st.booleans())
def test_any_value_in_any_place_is_understood_or_refused(place: tuple[Any, ...], value: Any, added: bool) -> None:
    body = json.loads(json.dumps(GOOD))
    at = body
    for key in place[:-1]:
        at = at[key]
    at[f"{place[-1]}x" if added and isinstance(at, dict) else place[-1]] = value
    problem = refusal(json.dumps(body).encode())
    if problem is not None:
        assert problem.status == 400
        assert msgspec.json.decode(problem.body())["error"]["message"]


def refusal(body: bytes) -> Problem | None:
    try:
        read(body)
    except Problem as problem:
        return problem
    return None


def test_the_unchanged_request_is_understood() -> None:
    assert refusal(json.dumps(GOOD).encode()) is None


def test_half_a_surrogate_pair_is_refused() -> None:
    refused = refusal(json.dumps(GOOD | {"model": "x"}).encode().replace(b'"x"', b'"\\ud800"', 1))
    assert refused is not None
    assert refused.status == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_politely(body: bytes) -> None:
    with pytest.raises(Problem) as refused:
        read(body)
    assert refused.value.status == 400


def test_free_form_values_may_not_be_deep() -> None:
    for depth in (70, 5_000, 200_000):
        nested = b"[" * depth + b"]" * depth
        body = json.dumps(GOOD).encode().replace(b'{"type": "object"}', b'{"a": ' + nested + b"}", 1)
        with pytest.raises(Problem) as refused:
            read(body)
        assert refused.value.status == 400


def test_every_field_of_a_request_is_known_to_the_translation() -> None:
    """A field that is decoded and then forgotten would be one that is silently ignored."""
    ignored_on_purpose = {"user", "metadata", "safety_identifier", "prompt_cache_key"}
    only_without_effect = {
        *("n", "parallel_tool_calls", "store", "logprobs", "service_tier"),
        *("frequency_penalty", "presence_penalty"),
    }
    honoured = {
        *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature"),
        *("top_p", "seed", "stop", "reasoning_effort", "tools", "tool_choice", "response_format", "dirigent"),
    }
    assert set(ChatRequest.__struct_fields__) == honoured | ignored_on_purpose | only_without_effect


def test_a_pattern_cannot_keep_the_server_busy() -> None:
    check = checker(Schema({"type": "string", "pattern": "^(a+)+$"}))
    assert check(json.dumps("a" * 5_000 + "b"))
    with pytest.raises(Problem, match="schema"):
        checker(Schema({"type": "string", "pattern": "(?=a)b"}))
