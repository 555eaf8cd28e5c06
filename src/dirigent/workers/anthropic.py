"""Anthropic's Messages format.

Pure: requests to bytes, bytes to replies. System messages travel apart from the conversation, tool results
inside user messages, and thinking blocks go back with the tool calls they led to (Anthropic refuses the
calls without them), which is what `ToolCall.signature` carries here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from dirigent.messages import Cache, Finish, Image, Message, Part, Reply, Request, ToolCall, Usage, estimate_tokens
from dirigent.workers.wire import (
    Count,
    Decoder,
    HttpCall,
    ServerEvent,
    arguments_object,
    decode,
    finish_of,
    inline,
    named_tool,
    only_text,
    refuse_error,
    system_text,
    uncarried,
    unreadable,
)
from dirigent.workers.worker import WorkerInfo

VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 4096
"""The format requires a limit; this one is used if neither the request nor the worker's card has one."""

FINISH: dict[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refused",
}

BUDGET_TOKENS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32000}
LEAST_BUDGET_TOKENS = 1024

Thinking = Literal["adaptive", "budget", "always"]


class AnthropicWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages. `base_url` is the bare host, as Anthropic's own client takes it."""

    thinking: Literal["auto", "adaptive", "budget", "always"] = "auto"
    """How the request states the effort: a level that the model adapts to (Claude 4.6 and later), a budget of thinking
    tokens (earlier ones), or a level only, for models that always think. `auto` goes by the model's name."""
    extra: dict[str, Any] = {}
    """Fields put into every request's body as they are, last, so they win."""

    def build(self, request: Request, *, info: WorkerInfo, base_url: str, stream: bool) -> HttpCall:
        _refuse_uncarried(request)
        max_tokens = request.max_output_tokens or info.output_tokens or DEFAULT_MAX_TOKENS
        body: dict[str, Any] = {
            "model": info.model,
            "max_tokens": max_tokens,
            "messages": _conversation(request.messages),
        }
        system = system_text(request.messages)
        if system:
            body["system"] = system
        _mark_for_cache(body, tools := _tools(request), request)
        body |= tools | _sampling(request) | self._thinking(request, info.model, max_tokens)
        if request.schema is not None:
            shape = {"type": "json_schema", "schema": request.schema.schema}
            body["output_config"] = {**body.get("output_config", {}), "format": shape}
        if stream:
            body["stream"] = True
        encoded = msgspec.json.encode(body | self.extra)
        return HttpCall(f"{base_url}/v1/messages", encoded, {"anthropic-version": VERSION})

    def key_headers(self, key: str) -> Mapping[str, str]:
        return {"x-api-key": key}

    def parse(self, body: bytes) -> Reply:
        message = decode(body, _Message)
        refuse_error(message.error)
        if message.content is None:
            raise unreadable("the reply has no content")
        return _reply(message, message.content)

    def decoder(self) -> Decoder:
        return _Decoder()

    def _thinking(self, request: Request, model: str, max_tokens: int) -> dict[str, Any]:
        """https://platform.claude.com/docs/en/build-with-claude/adaptive-thinking and .../effort"""
        effort = request.effort
        if effort is None:
            return {}
        way = thinking_of(model) if self.thinking == "auto" else self.thinking
        if effort == "none":
            if way == "always":
                raise uncarried("effort", f"{model} always thinks: ask for 'minimal' in place of 'none'")
            return {"thinking": {"type": "disabled"}}
        if way == "budget":
            return {"thinking": {"type": "enabled", "budget_tokens": _budget_tokens(effort, max_tokens)}}
        level = {"output_config": {"effort": "low" if effort == "minimal" else effort}}
        return level if way == "always" else {"thinking": {"type": "adaptive"}} | level


_MODEL = re.compile(r"claude-(?:opus|sonnet|haiku)-(\d+)(?:[-.](\d{1,2})(?!\d))?")


def thinking_of(model: str) -> Thinking:
    """How the request states the effort, by the model's name. Unknown names count as newer than this file."""
    if re.search(r"fable|mythos", model):
        return "always"
    if re.search(r"claude-(?:\d|instant)", model):  # claude-3-7-sonnet and before: the version came first
        return "budget"
    version = _MODEL.search(model)
    if version and (int(version[1]), int(version[2] or 0)) < (4, 6):
        return "budget"
    return "adaptive"


def _budget_tokens(effort: str, max_tokens: int) -> int:
    """Thinking counts against `max_tokens`, so it gets half of it at most, but the least that is allowed."""
    if max_tokens <= LEAST_BUDGET_TOKENS:
        raise uncarried("effort", f"thinking needs max_output_tokens above {LEAST_BUDGET_TOKENS}, not {max_tokens}")
    return max(LEAST_BUDGET_TOKENS, min(BUDGET_TOKENS[effort], max_tokens // 2))


def _refuse_uncarried(request: Request) -> None:
    if request.grammar:
        raise uncarried("grammar", "Anthropic's models do not decode under a grammar; use a schema")
    if request.json_mode and request.schema is None:
        raise uncarried("json_mode", "Anthropic has no JSON mode without a schema; give a schema")
    if request.seed is not None:
        raise uncarried("seed", "Anthropic's models take no seed")


def _conversation(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """User and assistant turns in alternation: results of parallel calls must share one message."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    blocks = _plain_blocks(message)
    if message.cache and blocks:
        blocks[-1]["cache_control"] = _control(message.cache)
    return blocks


def _plain_blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id), "content": _parts(message)}
        return [result]
    if message.role == "user":
        return _parts(message)
    text = only_text(message)
    blocks = [block for call in message.tool_calls for block in _kept_thinking(call.signature)]
    blocks += [{"type": "text", "text": text}] if text else []
    for call in message.tool_calls:
        use = {"type": "tool_use", "id": _id(call.id), "name": call.name, "input": arguments_object(call)}
        blocks.append(use)
    return blocks


def _parts(message: Message) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}] if message.content else []
    return [_part(part) for part in message.content]


def _part(part: Part) -> dict[str, Any]:
    if not isinstance(part, Image):
        return {"type": "text", "text": part.text}
    image = inline(part)
    if image.data:
        source = {"type": "base64", "media_type": image.media_type, "data": image.data}
    else:
        source = {"type": "url", "url": image.url}
    return {"type": "image", "source": source}


def _id(id: str) -> str:
    """Other providers' ids may hold dots and colons, which Anthropic refuses."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", id)


def _kept_thinking(signature: str) -> list[dict[str, Any]]:
    """The thinking blocks a call's signature carries; another provider's signature carries none."""
    if not signature.startswith("[{"):
        return []
    try:
        return msgspec.json.decode(signature, type=list[dict[str, Any]])
    except msgspec.MsgspecError:
        return []


def _tools(request: Request) -> dict[str, Any]:
    named = named_tool(request)
    if not request.tools:
        return {}
    tools = []
    for tool in request.tools:
        sent: dict[str, Any] = {"name": tool.name, "input_schema": tool.parameters}
        if tool.description:
            sent["description"] = tool.description
        if tool.strict:
            sent["strict"] = True
        if tool.cache:
            sent["cache_control"] = _control(tool.cache)
        tools.append(sent)
    kinds = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
    return {
        "tools": tools,
        "tool_choice": {"type": "tool", "name": named} if named else kinds[request.tool_choice],
    }


MOST_MARKS = 4
"""Anthropic takes so many in one request."""
WORTH_CACHING_TOKENS = 1024
"""Anthropic caches no shorter prompt."""


def _mark_for_cache(body: dict[str, Any], tools: dict[str, Any], request: Request) -> None:
    """Marks what the provider is to keep in its cache: as the caller asked, else the parts that later prompts repeat.

    Those are tools and system message, and the whole of a continued conversation. What is written to the cache costs
    a quarter more, so nothing else is marked, and nothing that is too short to be kept.
    """
    system_cache: Cache = next((m.cache for m in request.messages if m.role == "system" and m.cache), "")
    asked = system_cache or any(m.cache for m in request.messages) or any(tool.cache for tool in request.tools)
    turns = body["messages"]
    if not asked:
        stable = estimate_tokens(body.get("system", "")) + estimate_tokens(str(tools.get("tools", "")))
        if stable >= WORTH_CACHING_TOKENS:
            if "system" in body:
                system_cache = "5m"
            else:
                tools["tools"][-1]["cache_control"] = _control("5m")
        said = sum(estimate_tokens(str(turn["content"])) for turn in turns)
        if request.goes_on and turns and stable + said >= WORTH_CACHING_TOKENS:
            turns[-1]["content"][-1]["cache_control"] = _control("5m")
    if system_cache:
        body["system"] = [{"type": "text", "text": body["system"], "cache_control": _control(system_cache)}]
    blocks = [*tools.get("tools", ()), *(body["system"] if system_cache else ())]
    blocks += [block for turn in turns for block in turn["content"]]
    marked = [block for block in blocks if "cache_control" in block]
    for block in marked[: max(0, len(marked) - MOST_MARKS)]:  # the later ones hold the earlier ones
        del block["cache_control"]


def _control(cache: Cache) -> dict[str, str]:
    return {"type": "ephemeral"} if cache == "5m" else {"type": "ephemeral", "ttl": cache}


def _sampling(request: Request) -> dict[str, Any]:
    fields = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop_sequences": list(request.stop) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


class _Block(msgspec.Struct, omit_defaults=True):
    """A content block, or the next part of one in a stream."""

    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""  # of redacted thinking
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    partial_json: str = ""


class _Usage(msgspec.Struct):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None


class _Message(msgspec.Struct):
    content: list[_Block] | None = None
    model: str = ""
    stop_reason: str | None = None
    usage: _Usage = msgspec.field(default_factory=_Usage)
    error: Any = None


class _StopDelta(msgspec.Struct):
    stop_reason: str | None = None


class _Started(msgspec.Struct):
    message: _Message


class _BlockStarted(msgspec.Struct):
    index: int
    content_block: _Block


class _BlockGrew(msgspec.Struct):
    index: int
    delta: _Block


class _Changed(msgspec.Struct):
    delta: _StopDelta
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Kind(msgspec.Struct):
    type: str
    error: Any = None


def _reply(message: _Message, blocks: list[_Block]) -> Reply:
    calls = tuple(_call(block) for block in blocks if block.type == "tool_use")
    thought = [block for block in blocks if block.type in ("thinking", "redacted_thinking")]
    if calls and any(block.signature or block.data for block in thought):
        kept = msgspec.json.encode([_kept(block) for block in thought]).decode()
        calls = (msgspec.structs.replace(calls[0], signature=kept), *calls[1:])
    usage = _usage(message.usage)
    return Reply(
        text="".join(block.text for block in blocks if block.type == "text"),
        tool_calls=calls,
        finish=finish_of(message.stop_reason, FINISH, calls, usage),
        usage=usage,
        model=message.model,
        reasoning="".join(block.thinking for block in thought),
    )


def _call(block: _Block) -> ToolCall:
    if not block.id or not block.name:
        raise unreadable("a tool call has no id or no name")
    return ToolCall(block.id, block.name, block.partial_json or msgspec.json.encode(block.input).decode())


def _kept(block: _Block) -> dict[str, str]:
    if block.type == "redacted_thinking":
        return {"type": block.type, "data": block.data}
    return {"type": block.type, "thinking": block.thinking, "signature": block.signature}


def _usage(usage: _Usage) -> Usage:
    """Anthropic counts tokens that it reads from its cache or writes to it beside `input_tokens`; ours counts all
    input."""
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return Usage(
        input_tokens=(usage.input_tokens or 0) + read + written,
        output_tokens=usage.output_tokens or 0,
        cached_input_tokens=read,
        cache_write_input_tokens=written,
    )


class _Decoder:
    """Joins the events of one stream, which ends with `message_stop`."""

    def __init__(self) -> None:
        self.done = False
        self.written_chars = 0
        self._message = _Message()
        self._blocks: dict[int, _Block] = {}

    def feed(self, event: ServerEvent) -> str:
        kind = decode(event.data, _Kind)
        if kind.type == "error" or kind.error:
            refuse_error(kind.error or event.data)
        if kind.type == "message_start":
            self._message = decode(event.data, _Started).message
        elif kind.type == "content_block_start":
            started = decode(event.data, _BlockStarted)
            self._blocks[started.index] = started.content_block
            return started.content_block.text
        elif kind.type == "content_block_delta":
            return self._grow(decode(event.data, _BlockGrew))
        elif kind.type == "message_delta":
            self._change(decode(event.data, _Changed))
        self.done = self.done or kind.type == "message_stop"
        return ""

    def _grow(self, grew: _BlockGrew) -> str:
        block, delta = self._blocks.get(grew.index), grew.delta
        if block is None:
            raise unreadable(f"the stream adds to block {grew.index}, which it has not started")
        self.written_chars += len(delta.text) + len(delta.thinking) + len(delta.partial_json)
        block.text += delta.text
        block.thinking += delta.thinking
        block.signature += delta.signature
        block.partial_json += delta.partial_json
        return delta.text

    def _change(self, change: _Changed) -> None:
        self._message.stop_reason = change.delta.stop_reason or self._message.stop_reason
        for name in self._message.usage.__struct_fields__:  # counts here are cumulative: the last one holds
            count = getattr(change.usage, name)
            if count is not None:
                setattr(self._message.usage, name, count)

    def finish(self) -> Reply:
        if not self.done:
            raise unreadable("the stream ended before its message_stop")
        return _reply(self._message, [self._blocks[index] for index in sorted(self._blocks)])
