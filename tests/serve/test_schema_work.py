"""A caller's schema cannot keep the server busy, and schemas of other programs are accepted as before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dirigent.messages import Schema
from dirigent.serve.http.errors import Problem
from dirigent.serve.policy.json_schema import PATTERN_BYTES, TOO_MUCH, checker, pattern_bytes
from tests.facts import facts
from tests.serve.conftest import Server

TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}},
    "required": ["value"],
    "additionalProperties": False,
}


def twice(reference: str) -> dict[str, Any]:
    return {"allOf": [{"$ref": reference}, {"$ref": reference}]}


def doubling(steps: int) -> dict[str, Any]:
    """Each part is the next one twice."""
    parts = {f"a{i}": twice(f"#/$defs/a{i + 1}") for i in range(steps)}
    return {"$ref": "#/$defs/a0", "$defs": parts | {f"a{steps}": {"type": "object"}}}


def nested(depth: int) -> str:
    return '{"a":' * depth + "{}" + "}" * depth


async def test_a_schema_that_would_stop_the_server_is_refused_before_any_call(server: Server) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "laughs", "schema": doubling(60)}}
    answer = await server.chat(response_format=shape)
    assert (answer.status, answer.error["code"]) == (400, "invalid_schema")
    assert answer.error["param"] == "response_format.json_schema.schema"
    assert not server.stub.calls


def test_a_few_doublings_are_no_harm() -> None:
    check = checker(Schema(doubling(8)))
    assert check("{}") == ""
    assert check("[]")


def test_doubling_that_only_a_deep_value_shows_ends_as_a_fault() -> None:
    deeper = {f"a{i}": {"properties": {"a": twice(f"#/$defs/a{i + 1}")}} for i in range(60)}
    check = checker(Schema({"$ref": "#/$defs/a0", "$defs": deeper | {"a60": {}}}))
    assert check(nested(3)) == ""
    assert check(nested(60)) == TOO_MUCH


def test_doubling_around_a_circle_ends_as_a_fault() -> None:
    circle = doubling(16)
    circle["$defs"]["a16"] = {"properties": {"a": {"$ref": "#/$defs/a0"}}}
    assert checker(Schema(circle))(nested(60)) == TOO_MUCH


def test_a_schemas_fault_is_named_only_if_it_is_cheap_to_find() -> None:
    branch = {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/e"}}}
    check = checker(Schema({"$ref": "#/$defs/e", "$defs": {"e": {"anyOf": [branch, branch | {"title": "again"}]}}}))
    assert "anyOf" in check(nested(3))
    assert check(nested(60))
    assert "anyOf" not in check(nested(60))


def test_trees_and_expressions_are_checked_as_deep_as_they_are() -> None:
    tree: dict[str, Any] = {"value": 0}
    for _ in range(10):
        tree = {"value": 1, "left": tree, "right": tree}
    check = checker(Schema(TREE))
    assert check(json.dumps(tree)) == ""
    assert check('{"value": 1, "left": {"value": "one"}}').endswith("(at /left/value)")

    def operation(name: str) -> dict[str, Any]:
        sides = {"left": {"$ref": "#/$defs/sum"}, "right": {"$ref": "#/$defs/sum"}}
        return {"type": "object", "properties": {"op": {"const": name}, **sides}, "required": ["op", "left", "right"]}

    parts = {"sum": {"anyOf": [{"type": "number"}, *map(operation, ("add", "subtract", "multiply"))]}}
    said: Any = 1
    for _ in range(40):
        said = {"op": "multiply", "left": said, "right": 2}
    assert checker(Schema({"$ref": "#/$defs/sum", "$defs": parts}))(json.dumps(said)) == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "https://elsewhere.example/", "$ref": "#/$defs/b"}}},
        {"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a"}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "allOf": [{"id": "x", "$ref": "#/definitions/b"}]},
    ],
)
def test_references_that_could_mean_another_part_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(Problem, match=facts("#")):
        checker(Schema(schema))


def test_a_schema_may_have_an_address_and_properties_of_any_name() -> None:
    schema = {"$id": "https://here.example/", "type": "object", "properties": {"$id": {"type": "string"}}}
    assert checker(Schema(schema))('{"$id": "x"}') == ""
    escaped = {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "string"}}}
    assert checker(Schema(escaped))("1")
    assert checker(Schema(escaped))('"x"') == ""


def test_many_patterns_share_the_memory_of_one() -> None:
    many = {"allOf": [{"pattern": rf"\w{{5000}}{i}"} for i in range(1000)]}
    assert pattern_bytes(many) * 1000 <= PATTERN_BYTES
    with pytest.raises(Problem, match=facts("regex")):
        checker(Schema(many))
    plain = {"allOf": [{"pattern": "^[a-z0-9-]{1,64}$"}] * 1000}
    assert checker(Schema(plain))('"ok"') == ""
