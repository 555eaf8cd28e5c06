"""What a provider's answers look like on the wire, for `stub_provider.py`.

The three formats are written here a second time, apart from the code under test, so that they can disagree.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from typing import Any, Literal

from dirigent.messages import ToolCall, Usage

WireName = Literal["openai", "anthropic", "gemini"]
WIRES: tuple[WireName, ...] = ("openai", "anthropic", "gemini")


@dataclasses.dataclass(frozen=True)
class StubReply:
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Literal["stop", "length", "tool_calls", "refused"] = "stop"
    reasoning: str = ""
    usage: Usage | None = None
    """None: words of the question and of the answer."""


@dataclasses.dataclass
class StubCall:
    """One call as the provider saw it. Times are `time.monotonic`."""

    wire: WireName
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    stream: bool
    started_at: float
    peer: int = 0
    """The client's port: two calls with the same one shared a connection."""
    fault: str | None = None
    aborted_at: float | None = None
    finished_at: float | None = None
    ended: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    """Set once the call was answered or given up."""

    @property
    def text(self) -> str:
        """The last user text of the question."""
        messages = self.body["contents" if self.wire == "gemini" else "messages"]
        users = [message for message in messages if message["role"] == "user"]
        return _text_in(users[-1]) if users else ""

    @property
    def model(self) -> str:
        return self.path.split("/models/")[-1].split(":")[0] if self.wire == "gemini" else self.body["model"]

    @property
    def aborted(self) -> bool:
        return self.aborted_at is not None

    @property
    def finished(self) -> bool:
        return self.finished_at is not None


def render(call: StubCall, reply: StubReply) -> list[bytes]:
    """The answer as pieces to send: the events of a stream, or a JSON body in two halves."""
    usage = reply.usage or Usage(len(json.dumps(call.body).split()), max(1, len(reply.text.split())))
    reply = dataclasses.replace(reply, usage=usage)
    id = f"stub-{call.started_at:.9f}".replace(".", "-")
    make = {"openai": _openai, "anthropic": _anthropic, "gemini": _gemini}[call.wire]
    frames = make(call, reply, id)
    if call.stream:
        return [frame.encode() for frame in frames]
    body = "".join(frames).encode()
    return [body[: len(body) // 2], b"", body[len(body) // 2 :]]


def _openai(call: StubCall, reply: StubReply, id: str) -> list[str]:
    head = {"id": id, "model": call.model, "object": "chat.completion"}
    assert reply.usage is not None
    usage = {
        "prompt_tokens": reply.usage.input_tokens,
        "completion_tokens": reply.usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.usage.cached_input_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.usage.reasoning_tokens},
    }
    finish = "content_filter" if reply.finish == "refused" else reply.finish
    calls = [
        {"index": i, "id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for i, c in enumerate(reply.tool_calls)
    ]
    if not call.stream:
        said = {
            "role": "assistant",
            "content": reply.text or None,
            "reasoning_content": reply.reasoning or None,
        }
        choice = {"index": 0, "message": {**said, "tool_calls": calls or None}, "finish_reason": finish}
        return [json.dumps({**head, "choices": [choice], "usage": usage})]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": reply.reasoning}] if reply.reasoning else []
    deltas += [{"content": word} for word in _words(reply.text)]
    for sent in calls:
        name, arguments = sent["function"]["name"], sent["function"]["arguments"]
        deltas.append({"tool_calls": [{**sent, "function": {"name": name, "arguments": ""}}]})
        for half in (arguments[:3], arguments[3:]):
            deltas.append({"tool_calls": [{"index": sent["index"], "function": {"arguments": half}}]})
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if call.body.get("stream_options", {}).get("include_usage"):
        chunks.append({"choices": [], "usage": usage})
    return [f"data: {json.dumps({**head, **chunk})}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]


def _anthropic(call: StubCall, reply: StubReply, id: str) -> list[str]:
    assert reply.usage is not None
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "refused": "refusal"}
    read, kept = reply.usage.cached_input_tokens, reply.usage.cache_write_input_tokens
    asked = {
        "input_tokens": reply.usage.input_tokens - read - kept,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": kept,
    }
    written = {"output_tokens": reply.usage.output_tokens}
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        blocks.append({"type": "thinking", "thinking": reply.reasoning, "signature": "signed"})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    for c in reply.tool_calls:
        blocks.append({"type": "tool_use", "id": c.id, "name": c.name, "input": json.loads(c.arguments)})
    head = {"id": id, "type": "message", "role": "assistant", "model": call.model}
    stop = {"stop_reason": reasons[reply.finish], "stop_sequence": None}
    if not call.stream:
        return [json.dumps({**head, "content": blocks, **stop, "usage": {**asked, **written}})]
    start = {**head, "content": [], "stop_reason": None, "usage": {**asked, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(blocks):
        events += _anthropic_block(index, block)
    events.append({"type": "message_delta", "delta": stop, "usage": written})
    events.append({"type": "message_stop"})
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]


def _anthropic_block(index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
    started = {**block, **empty[block["type"]]}
    yield {"type": "content_block_start", "index": index, "content_block": started}
    deltas: list[dict[str, str]]
    if block["type"] == "text":
        deltas = [{"type": "text_delta", "text": word} for word in _words(block["text"])]
    elif block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    else:
        text = json.dumps(block["input"])
        deltas = [{"type": "input_json_delta", "partial_json": half} for half in (text[:3], text[3:])]
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _gemini(call: StubCall, reply: StubReply, id: str) -> list[str]:
    assert reply.usage is not None
    usage = {
        "promptTokenCount": reply.usage.input_tokens,
        "candidatesTokenCount": reply.usage.output_tokens - reply.usage.reasoning_tokens,
        "thoughtsTokenCount": reply.usage.reasoning_tokens,
        "cachedContentTokenCount": reply.usage.cached_input_tokens,
    }
    finish = {"length": "MAX_TOKENS", "refused": "SAFETY"}.get(reply.finish, "STOP")
    head = {"modelVersion": call.model, "responseId": id}
    thoughts = [{"text": reply.reasoning, "thought": True}] if reply.reasoning else []
    calls: list[dict[str, Any]] = []
    for c in reply.tool_calls:
        part: dict[str, Any] = {"functionCall": {"name": c.name, "args": json.loads(c.arguments)}}
        calls.append({**part, "thoughtSignature": c.signature} if c.signature else part)
    texts = [reply.text] if reply.text and not call.stream else _words(reply.text)
    parts = [*thoughts, *({"text": text} for text in texts), *calls]
    if not call.stream:
        candidate = {"content": {"role": "model", "parts": parts}, "finishReason": finish}
        return [json.dumps({"candidates": [candidate], "usageMetadata": usage, **head})]
    chunks = [{"candidates": [{"content": {"role": "model", "parts": [part]}}], **head} for part in parts]
    last = {
        "candidates": [{"content": {"parts": []}, "finishReason": finish}],
        "usageMetadata": usage,
        **head,
    }
    return [f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in [*chunks, last]]


def _words(text: str) -> list[str]:
    """Pieces of a text that join to it again."""
    return [word + " " for word in text.split(" ")[:-1]] + [text.split(" ")[-1]] if text else []


def _text_in(message: dict[str, Any]) -> str:
    content = message.get("content", message.get("parts", ""))
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)
