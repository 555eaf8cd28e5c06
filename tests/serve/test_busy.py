"""No request of 4 MiB keeps the server from other callers: its work grows with its length, not faster.

What grows with the square of its length takes minutes here, and the tests are ended.
"""

from __future__ import annotations

import json

import pytest

from dirigent.messages import Message, Request
from dirigent.serve.apis.anthropic import wire as anthropic
from dirigent.serve.apis.responses import wire as responses
from dirigent.serve.policy.routing_rules import task_kind
from dirigent.serve.runs.asked import Asked

pytestmark = pytest.mark.timeout(30)


def test_a_guess_at_the_request_size() -> None:
    for said, kind in (("class " * 100_000, "chat"), ("class " * 100_000 + "\ndef f(x)", "code")):
        assert task_kind(Asked(model="m", question=(Message("user", said),), options=Request(()))) == kind


def test_system_messages_after_a_long_turn() -> None:
    turn = [{"role": "user", "content": ""}] * 60_000
    after = [{"role": "system", "content": ""}] * 60_000
    body = {"model": "m", "max_tokens": 1, "messages": turn + after}
    asked = anthropic.read(json.dumps(body, separators=(",", ":")).encode())
    roles = [message.role for message in asked.question]
    assert roles == ["system"] * 60_000 + ["user"] * 60_000


def test_many_calls_of_one_reply() -> None:
    calls = [responses.CallItem(f"c{i}", "f", "{}") for i in range(250_000)]
    said, result = responses.MessageItem("user", "hi"), responses.CallOutputItem("c0", "done")
    wanted = responses.Wanted(responses.ResponseRequest("m", ()), (said, *calls, result))
    asked = responses.asked_of(wanted, history=())
    assert [len(message.tool_calls) for message in asked.question] == [0, 250_000, 0]
    assert asked.fields.places == ("input[0]", "input[1]", "input[250001]")
