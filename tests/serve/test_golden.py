"""The whole replies of the three APIs, compared with the files in `golden/`.

A change inside the server leaves every file as it is. After a change that a client may see, renew the files with
`RENEW_GOLDEN=1 make test PYTEST=tests/serve/test_golden.py` and read the difference.

Ids, times and the server's own milliseconds become placeholders. The stub worker reports fixed token counts, so the
costs are exact.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.messages import ToolCall, Usage
from dirigent.serve.http.body import MAX_BODY_BYTES
from dirigent.store.keys import Caller, create_key
from tests.serve.conftest import ACCEPT, PLAN, Answer, Server
from tests.stub_wires import StubCall, StubReply

FOLDER = Path(__file__).parent / "golden"
RENEW = bool(os.environ.get("RENEW_GOLDEN"))

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
UNSEEN_HEADERS = {"date", "server", "connection", "transfer-encoding", "content-length", "x-request-id"}
"""No golden file has these headers: they differ from run to run, or belong to the connection."""

LONGEST_BODY_SHOWN = 2000
WORDS_APART_S = 0.02
"""The server may send words together that arrive together, so the stub worker sends them apart."""

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = {
    "chat": {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    "responses": {"type": "function", "name": "weather", "parameters": CITY},
    "messages": {"name": "weather", "input_schema": CITY},
}


class Talk:
    """One API of one server; it writes down every request and its answer."""

    def __init__(self, server: Server, api: str) -> None:
        self.server, self.api, self.shown = server, api, ""

    async def ask(self, said: Any = "hi", *, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
        body = {"model": "worker/alpha", self.field: said} | fields
        if self.api != "responses" and isinstance(said, str):
            body[self.field] = [{"role": "user", "content": said}]
        if self.api == "messages":
            body["max_tokens"] = 100
        return await self.send("POST", PATHS[self.api], json.dumps(body), headers=headers)

    @property
    def field(self) -> str:
        return "input" if self.api == "responses" else "messages"

    async def send(self, method: str, path: str, body: str = "", *, headers: dict[str, str] | None = None) -> Answer:
        sent = {"Content-Type": "application/json"} | (headers or {})
        answer = await self.server.request(method, path, data=io.BytesIO(body.encode()), headers=sent)
        shown = body if len(body) <= LONGEST_BODY_SHOWN else f"({len(body)} bytes)"
        extra = "".join(f"{name}: {value}\n" for name, value in (headers or {}).items())
        self.shown += (
            f">>> {method} {path}\n{extra}{shown}\n<<< {answer.status}\n{_headers(answer)}\n{_body(answer)}\n\n"
        )
        return answer


def _headers(answer: Answer) -> str:
    pairs = sorted((name.lower(), value) for name, value in answer.headers.items())
    return "".join(f"{name}: {value}\n" for name, value in pairs if name not in UNSEEN_HEADERS)


def _body(answer: Answer) -> str:
    """JSON is shown with indents, a stream as it came."""
    if not answer.headers.get("Content-Type", "").startswith("application/json"):
        return answer.text
    assert msgspec.json.format(answer.text, indent=-1) == answer.text, "not the shortest form, which the file implies"
    assert int(answer.headers["Content-Length"]) == len(answer.text.encode())
    return msgspec.json.format(answer.text)


def normalised(text: str) -> str:
    """Replace ids by numbers in the order in which they appear, and times and ports by a placeholder."""
    ids: dict[str, str] = {}
    text = re.sub(r"(?<![0-9a-f])[0-9a-f]{12,}(?![0-9a-f])", lambda id: ids.setdefault(id[0], f"ID{len(ids)}"), text)
    text = re.sub(r'("(?:created|created_at|completed_at)": ?)\d+', r"\1TIME", text)
    text = re.sub(r'((?:"overhead_ms": ?|x-dirigent-overhead-ms: ))[\d.e-]+', r"\1MS", text)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)


# ---- the scenes, one file for each of them and each API ---------------------------------------------------


def worker(call: StubCall) -> StubReply:
    """boss plans; alpha calls the tool that it is given; every other call is answered with two words."""
    used = Usage(100, 10, cached_input_tokens=20, reasoning_tokens=4)
    if call.model == "boss":
        return StubReply(
            ACCEPT if any(turn["role"] == "assistant" for turn in call.body["messages"]) else PLAN, usage=used
        )
    if call.model == "alpha" and call.body.get("tools") and call.body["messages"][-1]["role"] != "tool":
        asked = ToolCall("up_1", "weather", '{"city": "Oslo"}')
        return StubReply(tool_calls=(asked,), finish="tool_calls", usage=used)
    return StubReply(f"{call.model} answers", usage=used)


async def plain(talk: Talk) -> None:
    for model in ("worker/alpha", "mini", "ultra", "twice"):
        await talk.ask(model=model)


async def stream(talk: Talk) -> None:
    for model in ("worker/alpha", "mini", "ultra", "twice"):
        await talk.ask(model=model, stream=True)
    if talk.api == "chat":
        await talk.ask(model="ultra", stream=True, stream_options={"include_usage": True})


async def cut_by_length(talk: Talk) -> None:
    talk.server.stub.answer = lambda _: StubReply("half", finish="length", usage=Usage(100, 10))
    await talk.ask()
    await talk.ask(stream=True)


async def settings(talk: Talk) -> None:
    """Fields that a reply may repeat, and the routes of one API alone."""
    system = {"chat": "user", "responses": "instructions", "messages": "system"}[talk.api]
    answer = await talk.ask(temperature=0.5, top_p=0.5, metadata={"user_id": "u"}, **{system: "be brief"})
    if talk.api == "responses":
        kept = f"/v1/responses/{answer.object['id']}"
        await talk.ask("and now?", previous_response_id=answer.object["id"], store=False)
        for method, path in (("GET", kept), ("GET", f"{kept}/input_items"), ("DELETE", kept), ("GET", kept)):
            await talk.send(method, path)
    if talk.api == "messages":
        said = {"model": "worker/alpha", "messages": [{"role": "user", "content": "hi"}]}
        await talk.send("POST", "/v1/messages/count_tokens", json.dumps(said))
    if talk.api == "chat":
        await talk.send("GET", "/v1/models/ultra")


async def shape(talk: Talk) -> None:
    """JSON that follows a schema; then a worker that does not follow it."""
    named = {"name": "it", "schema": CITY, "strict": True}
    fields: dict[str, Any] = {
        "chat": {"response_format": {"type": "json_schema", "json_schema": named}},
        "responses": {"text": {"format": {"type": "json_schema", **named}}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
    }[talk.api]
    for said in ('{"city": "Oslo"}', "Oslo"):
        talk.server.stub.answer = lambda _, said=said: StubReply(said, usage=Usage(100, 10))
        await talk.ask(**fields)


async def tools_of_a_worker(talk: Talk) -> None:
    await _tools(talk, model="worker/alpha")


async def tools_of_a_plan(talk: Talk) -> None:
    await _tools(talk, model="ultra")


async def _tools(talk: Talk, *, model: str) -> None:
    """A worker asks for a tool; the client sends the tool's result; then both once more as streams."""
    fields = {"model": model, "tools": [TOOLS[talk.api]]}
    first = {"role": "user", "content": "Weather?"}
    for streamed in ({}, {"stream": True}):
        asked = (await talk.ask([first], **fields)).object
        if streamed:
            await talk.ask([first], **fields, **streamed)
        await talk.ask([first, *_result(talk.api, asked)], **fields, **streamed)


def _result(api: str, asked: Any) -> list[Any]:
    """The call as the client repeats it, and its result."""
    if api == "chat":
        said = asked["choices"][0]["message"]
        return [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "rain"}]
    if api == "responses":
        (call,) = [item for item in asked["output"] if item["type"] == "function_call"]
        return [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]
    (call,) = [block for block in asked["content"] if block["type"] == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "rain"}
    return [{"role": "assistant", "content": asked["content"]}, {"role": "user", "content": [result]}]


async def refused(talk: Talk) -> None:
    """Requests that no worker gets to see."""
    await talk.ask(model="nobody")
    await talk.ask(model="nobody", stream=True)
    for fields in ({"temperature": "hot"}, {"top_p": 7}, {"temprature": 1}, {"tools": [{"type": "nothing"}]}):
        await talk.ask(**fields)
    await talk.ask([{"role": "nobody", "content": "hi"}])
    for body in ('{"model": "worker/alpha"}', '{"model":', "[]", ""):
        await talk.send("POST", PATHS[talk.api], body)
    await talk.send("PUT", PATHS[talk.api])
    for cap in ("much", "0.0000001"):
        await talk.ask(model="ultra", headers={"X-Dirigent-Max-Cost-USD": cap})


async def too_large(talk: Talk) -> None:
    await talk.ask("x" * MAX_BODY_BYTES)


async def without_key(talk: Talk) -> None:
    await create_key(talk.server.service.store, Caller("", label="team"))
    await talk.ask()
    await talk.ask(stream=True, headers={"Authorization": "Bearer dg_wrong"})


async def worker_fails(talk: Talk) -> None:
    for fault in ("500", "429-retry-after", "400", "garbage-json"):
        talk.server.stub.faults = [fault]
        await talk.ask()
    for fault in ("500", "truncated-sse"):
        talk.server.stub.faults = [fault]
        await talk.ask(stream=True)


SCENES: tuple[Callable[[Talk], Awaitable[None]], ...] = (
    *(plain, stream, cut_by_length, settings, shape, tools_of_a_worker, tools_of_a_plan),
    *(refused, too_large, without_key, worker_fails),
)


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_a_client_gets_the_same_bytes_as_ever(server: Server, api: str, scene: Any) -> None:
    server.stub.answer, server.stub.chunk_delay_s = worker, WORDS_APART_S
    talk = Talk(server, api)
    await scene(talk)
    shown = normalised(talk.shown)
    file = FOLDER / f"{api}_{scene.__name__}.txt"
    if RENEW:
        file.write_text(shown)
    assert shown == file.read_text()


def test_every_golden_file_belongs_to_a_scene() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == {f"{api}_{scene.__name__}" for api in PATHS for scene in SCENES}
