"""No request of 4 MiB keeps the server from everybody else: what is done for it grows as it does, not faster.

What grows with the square of its length takes minutes here, and the tests are ended.
"""

from __future__ import annotations

import json

import pytest

from dirigent.messages import Message, Request
from dirigent.serve.apis.anthropic.translate import told as messages_told
from dirigent.serve.apis.anthropic.wire import read_messages_request
from dirigent.serve.apis.responses.translate import told as response_told
from dirigent.serve.apis.responses.wire import CallItem, InputText, MessageItem, ResponseRequest
from dirigent.serve.policy.routing_rules import task_kind

pytestmark = pytest.mark.timeout(30)


def test_a_guess_at_what_is_asked() -> None:
    asked = (Message("user", "class " * 100_000),)
    assert task_kind(asked, Request(messages=())) == "chat"
    asked = (Message("user", "class " * 100_000 + "\ndef f(x)"),)
    assert task_kind(asked, Request(messages=())) == "code"


def test_system_messages_after_a_long_turn() -> None:
    turn = [{"role": "user", "content": ""}] * 60_000
    after = [{"role": "system", "content": ""}] * 60_000
    body = {"model": "m", "max_tokens": 1, "messages": turn + after}
    request, _ = read_messages_request(json.dumps(body, separators=(",", ":")).encode())
    roles = [message.role for message in messages_told(request).messages]
    assert roles == ["system"] * 60_000 + ["user"] * 60_000


def test_many_calls_of_one_reply() -> None:
    calls = [CallItem(f"c{i}", "f", "{}") for i in range(250_000)]
    items = [MessageItem("user", (InputText("hi"),)), *calls]
    conversation = response_told(ResponseRequest("m", ()), items, history=())
    assert [len(message.tool_calls or ()) for message in conversation.messages] == [0, 250_000]
    assert conversation.places == ("input[0]", "input[1]")
