"""The chat completions format of OpenAI and of servers that speak it: vLLM, llama.cpp, Ollama, OpenRouter, DeepSeek and
other gateways. Pure: requests to bytes, bytes to replies. Differences between the servers are settings of `OpenAIWire`;
other fields that a server understands go through its `extra`.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from dirigent.messages import Finish, Image, Message, Part, Reply, Request, ToolCall, Usage
from dirigent.workers.wire import (
    Count,
    Decoder,
    HttpCall,
    ServerEvent,
    decode,
    finish_of,
    inline,
    named_tool,
    only_text,
    refuse_error,
    uncarried,
    unreadable,
)
from dirigent.workers.worker import WorkerInfo

FINISH: dict[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "model_length": "length",  # Mistral
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
}

_COMPLETION_TOKENS_MODELS = re.compile(r"(?:.*/)?(?:o\d|gpt-[5-9]|gpt-\d\d)")
"""Reasoning models refuse `max_tokens`: https://platform.openai.com/docs/api-reference/chat/create"""


class Lora(msgspec.Struct, frozen=True):
    """An adapter of a llama.cpp server, by its place in the server's list."""

    id: int
    scale: float = 1.0


class OpenAIWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Chat completions. `base_url` ends in `/v1`, as OpenAI's own client takes it."""

    max_tokens_field: Literal["auto", "max_tokens", "max_completion_tokens"] = "auto"
    """`auto`: `max_completion_tokens` for api.openai.com and reasoning models' names, else `max_tokens`."""
    stream_usage: bool = True
    """Ask for a usage chunk at the end of a stream; off for servers that do not know `stream_options`."""
    lora: tuple[Lora, ...] | None = None
    """llama.cpp: this worker's adapters. Those not named are off; None leaves the server's own scales."""
    extra: dict[str, Any] = {}
    """Fields put into every request's body as they are, last, so they win."""

    def build(self, request: Request, *, info: WorkerInfo, base_url: str, stream: bool) -> HttpCall:
        body: dict[str, Any] = {
            "model": info.model,
            "messages": [_message(m, info) for m in request.messages],
        }
        body |= _tools(request) | _format(request) | _sampling(request)
        if request.max_output_tokens is not None:
            body[self._max_tokens_field(info.model, base_url)] = request.max_output_tokens
        if request.grammar:
            if "grammar" not in info.abilities:
                raise uncarried("grammar", f"{info.name} is not known to decode under a grammar")
            body["grammar"] = request.grammar
        if self.lora is not None:
            body["lora"] = [{"id": lora.id, "scale": lora.scale} for lora in self.lora]
        if stream:
            body["stream"] = True
            if self.stream_usage:
                body["stream_options"] = {"include_usage": True}
        body |= self.extra
        return HttpCall(f"{base_url}/chat/completions", msgspec.json.encode(body))

    def key_headers(self, key: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def parse(self, body: bytes) -> Reply:
        completion = decode(body, _Completion)
        refuse_error(completion.error)
        if not completion.choices:
            raise unreadable("the reply has no choices")
        choice = completion.choices[0]
        message = choice.message
        calls = tuple(
            _call(call.id, call.function, call.extra_content, reply_id=completion.id, index=index)
            for index, call in enumerate(message.tool_calls or ())
        )
        usage = _usage(completion.usage)
        return Reply(
            text=_text(message.content) or message.refusal or "",
            tool_calls=calls,
            finish="refused" if message.refusal else finish_of(choice.finish_reason, FINISH, calls, usage),
            usage=usage,
            model=completion.model or "",
            reasoning=message.reasoning_content or message.reasoning or "",
        )

    def decoder(self) -> Decoder:
        return _Decoder()

    def _max_tokens_field(self, model: str, base_url: str) -> str:
        if self.max_tokens_field != "auto":
            return self.max_tokens_field
        return _usual_max_tokens_field(model, base_url)


@functools.lru_cache(maxsize=256)
def _usual_max_tokens_field(model: str, base_url: str) -> str:
    openai = urlsplit(base_url).hostname == "api.openai.com" or _COMPLETION_TOKENS_MODELS.match(model)
    return "max_completion_tokens" if openai else "max_tokens"


def _message(message: Message, info: WorkerInfo) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": only_text(message)}
    said: dict[str, Any] = {"role": message.role}
    if message.name:
        said["name"] = message.name
    if message.role != "user":
        said["content"] = only_text(message)
        if message.tool_calls:
            said["tool_calls"] = [_sent_call(call, info) for call in message.tool_calls]
            said["content"] = said["content"] or None
    elif isinstance(message.content, str):
        said["content"] = message.content
    else:
        said["content"] = [_part(part) for part in message.content]
    return said


def _sent_call(call: ToolCall, info: WorkerInfo) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    sent: dict[str, Any] = {"id": call.id, "type": "function", "function": function}
    if call.signature and "gemini" in info.model:  # Google's compatible endpoint; others refuse the field
        sent["extra_content"] = {"google": {"thought_signature": call.signature}}
    return sent


def _part(part: Part) -> dict[str, Any]:
    if not isinstance(part, Image):
        return {"type": "text", "text": part.text}
    image = inline(part)
    url = f"data:{image.media_type};base64,{image.data}" if image.data else image.url
    detail = {"detail": image.detail} if image.detail else {}
    return {"type": "image_url", "image_url": {"url": url, **detail}}


def _tools(request: Request) -> dict[str, Any]:
    named = named_tool(request)
    if not request.tools:
        return {}
    tools = []
    for tool in request.tools:
        function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters}
        if tool.description:
            function["description"] = tool.description
        if tool.strict:
            function["strict"] = True
        tools.append({"type": "function", "function": function})
    choice = {"type": "function", "function": {"name": named}} if named else request.tool_choice
    return {"tools": tools, "tool_choice": choice}


def _format(request: Request) -> dict[str, Any]:
    schema = request.schema
    if schema is not None:
        shape = {"name": schema.name, "schema": schema.schema, "strict": schema.strict}
        return {"response_format": {"type": "json_schema", "json_schema": shape}}
    return {"response_format": {"type": "json_object"}} if request.json_mode else {}


def _sampling(request: Request) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if request.temperature is not None:
        fields["temperature"] = request.temperature
    if request.top_p is not None:
        fields["top_p"] = request.top_p
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.stop:
        fields["stop"] = request.stop
    if request.effort is not None:
        # "max" is no value of OpenAI's; its highest is "xhigh". Servers that know more take it through `extra`.
        fields["reasoning_effort"] = "xhigh" if request.effort == "max" else request.effort
    return fields


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None  # some servers send the object itself


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)
    extra_content: dict[str, Any] | None = None


class _Piece(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Said(msgspec.Struct):
    """A message, or the next part of one in a stream."""

    content: str | list[_Piece] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None  # DeepSeek, vLLM, llama.cpp
    reasoning: str | None = None  # OpenRouter, newer vLLM
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Said = msgspec.field(default_factory=_Said)
    delta: _Said = msgspec.field(default_factory=_Said)
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: Count | None = None  # DeepSeek


class _Completion(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


def _text(content: str | list[_Piece] | None) -> str:
    if isinstance(content, list):
        return "".join(piece.text for piece in content if piece.type == "text")
    return content or ""


def _call(
    id: str | None, function: _Function, extra: dict[str, Any] | None, *, reply_id: str | None, index: int
) -> ToolCall:
    if not function.name:
        raise unreadable(f"tool call {index} has no name")
    arguments = function.arguments or "{}"
    if isinstance(arguments, dict):
        arguments = msgspec.json.encode(arguments).decode()
    google = (extra or {}).get("google")
    signature = google.get("thought_signature", "") if isinstance(google, dict) else ""
    return ToolCall(id or f"call_{reply_id or 'x'}_{index}", function.name, arguments, str(signature))


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    asked, written = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = (asked.cached_tokens if asked else None) or usage.prompt_cache_hit_tokens or 0
    return Usage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_input_tokens=cached,
        reasoning_tokens=(written.reasoning_tokens if written else None) or 0,
    )


class _Decoder:
    """Joins the chunks of one stream, which ends with `[DONE]`."""

    def __init__(self) -> None:
        self.done = False
        self.written_chars = 0
        self._reply_id = self._model = ""
        self._text = io.StringIO()
        self._reasoning = io.StringIO()
        self._refusal = ""
        self._calls: list[_Call] = []
        self._last_call: dict[int | None, _Call] = {}
        """By the index under which it grows."""
        self._finish: str | None = None
        self._usage: _Usage | None = None

    def feed(self, event: ServerEvent) -> str:
        if event.data.strip() == "[DONE]":
            self.done = True
            return ""
        chunk = decode(event.data, _Completion)
        refuse_error(chunk.error)
        self._reply_id = chunk.id or self._reply_id
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self._finish = choice.finish_reason or self._finish
        return self._grow(choice.delta)

    def _grow(self, delta: _Said) -> str:
        text, reasoning = _text(delta.content), delta.reasoning_content or delta.reasoning or ""
        self.written_chars += len(text) + len(reasoning)
        self._text.write(text)
        self._reasoning.write(reasoning)
        self._refusal += delta.refusal or ""
        for fragment in delta.tool_calls or ():
            self._grow_call(fragment)
        return text

    def _grow_call(self, fragment: _Call) -> None:
        self.written_chars += len(fragment.function.arguments or "")
        same = self._last_call.get(fragment.index)
        # A second id under one index is a second call: some servers number all of them 0, or not at all.
        if same is None or (fragment.id and same.id and fragment.id != same.id):
            self._calls.append(fragment)
            self._last_call[fragment.index] = fragment
            return
        call, more = same.function, fragment.function
        call.name = call.name or more.name
        if isinstance(more.arguments, str):
            call.arguments = (call.arguments if isinstance(call.arguments, str) else "") + more.arguments

    def finish(self) -> Reply:
        if not self.done:
            raise unreadable("the stream ended before its [DONE]")
        calls = tuple(
            _call(call.id, call.function, call.extra_content, reply_id=self._reply_id, index=index)
            for index, call in enumerate(self._calls)
        )
        usage = _usage(self._usage)
        return Reply(
            text=self._text.getvalue() or self._refusal,
            tool_calls=calls,
            finish="refused" if self._refusal else finish_of(self._finish, FINISH, calls, usage),
            usage=usage,
            model=self._model,
            reasoning=self._reasoning.getvalue(),
        )
