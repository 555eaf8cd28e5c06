"""No API returns a provider's own key, whatever the provider's model says."""

from __future__ import annotations

from typing import Any

import pytest

from dirigent.messages import ToolCall
from tests.serve.conftest import CONFIG, Server, Start
from tests.stub_wires import StubCall, StubReply

KEY = "provider-key 0123456789"
"""With a blank, at which the stub begins another piece of its stream."""
FOREIGN = "sk-proj-abcdefghijklmnopqrstuvwx"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
ROUTES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}]},
        {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    ),
    "responses": ("/v1/responses", {"input": "hi"}, {"type": "function", "name": "weather", "parameters": CITY}),
    "messages": (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100},
        {"name": "weather", "input_schema": CITY},
    ),
}


@pytest.fixture
async def telling(start: Start, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("ALPHA_KEY", KEY)
    server = await start(config=CONFIG.replace('model = "alpha"', 'model = "alpha"\napi_key_env = "ALPHA_KEY"'))

    def quotes(call: StubCall) -> StubReply:
        key = call.headers["Authorization"].removeprefix("Bearer ")
        assert key == KEY
        if call.body.get("tools"):
            asked = ToolCall("up_1", "weather", f'{{"city": "{key}"}}')
            return StubReply(tool_calls=(asked,), finish="tool_calls")
        return StubReply(f"You sent {key} and not {FOREIGN}")

    server.stub.answer = quotes
    return server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ROUTES)
async def test_a_key_that_a_worker_quotes_does_not_reach_the_caller(telling: Server, api: str, stream: bool) -> None:
    path, said, tool = ROUTES[api]
    said = {"model": "worker/alpha", "stream": stream, **said}
    words = await telling.request("POST", path, json=said)
    call = await telling.request("POST", path, json=said | {"tools": [tool]})
    for answer in (words, call):
        assert answer.status == 200
        assert "0123456789" not in answer.text
        assert "***" in answer.text
    assert FOREIGN in words.text
