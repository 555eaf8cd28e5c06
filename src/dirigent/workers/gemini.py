"""Google's generateContent format.

Pure: requests to bytes, bytes to replies. System messages travel apart, tool results name their tool, and a
call's thought signature goes back with it (Gemini 3 refuses the call without one), which
`ToolCall.signature` carries. A stream has no closing event: it is whole when some chunk gave a finish
reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import quote as url_quote

import msgspec

from dirigent.messages import Finish, Image, Message, Part, Reply, Request, ToolCall, Usage
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

FINISH: dict[str, Finish] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "refused",
    "RECITATION": "refused",
    "LANGUAGE": "refused",
    "BLOCKLIST": "refused",
    "PROHIBITED_CONTENT": "refused",
    "SPII": "refused",
}
"""Others (MALFORMED_FUNCTION_CALL, OTHER...) mean that no usable answer was written."""

BUDGET_TOKENS = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
LEVELS = {
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}

UNSIGNED = "skip_thought_signature_validator"
"""What Google documents for calls that another model made: https://ai.google.dev/gemini-api/docs/thought-signatures"""


class GeminiWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """generateContent. `base_url` is the bare host, as Google's own client takes it."""

    thinking: Literal["auto", "level", "budget"] = "auto"
    """How the request states the effort: a level (Gemini 3 and later) or a budget. `auto` goes by its name."""
    extra: dict[str, Any] = {}
    """Fields put into every request's body as they are, last, so they win."""

    def build(self, request: Request, *, info: WorkerInfo, base_url: str, stream: bool) -> HttpCall:
        if request.grammar:
            raise uncarried("grammar", "Gemini does not decode under a grammar; use a schema")
        modern = _is_modern(info.model)
        body: dict[str, Any] = {"contents": _contents(request.messages, signed=modern)}
        system = system_text(request.messages)
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        by_level = modern if self.thinking == "auto" else self.thinking == "level"
        settings = _settings(request) | _thinking(request, info.model, by_level=by_level)
        if settings:
            body["generationConfig"] = settings
        body |= _tools(request)
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        model = info.model if "/" in info.model else f"models/{info.model}"
        url = f"{base_url}/v1beta/{url_quote(model)}:{verb}"
        return HttpCall(url, msgspec.json.encode(body | self.extra))

    def key_headers(self, key: str) -> Mapping[str, str]:
        return {"x-goog-api-key": key}

    def parse(self, body: bytes) -> Reply:
        decoder = _Decoder()
        decoder.add(decode(body, _Response))
        return decoder.finish()

    def decoder(self) -> Decoder:
        return _Decoder()


def _is_modern(model: str) -> bool:
    """Gemini 3 or later. Names without a number (gemini-flash-latest) are taken for new."""
    version = re.search(r"gemini-(\d+)", model)
    return version is None or int(version[1]) >= 3


def _contents(messages: Iterable[Message], *, signed: bool) -> list[dict[str, Any]]:
    """User and model turns in alternation: results of parallel calls must share one turn."""
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.role == "system":
            continue
        names |= {call.id: call.name for call in message.tool_calls}
        role = "model" if message.role == "assistant" else "user"
        parts = _parts(message, names, signed=signed)
        if turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": role, "parts": parts})
    return turns


def _parts(message: Message, names: Mapping[str, str], *, signed: bool) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [{"functionResponse": _result(message, names)}]
    if message.role == "assistant":
        text = only_text(message)
        parts: list[dict[str, Any]] = [{"text": text}] if text else []
        return parts + [_sent_call(call, signed=signed and index == 0) for index, call in enumerate(message.tool_calls)]
    if isinstance(message.content, str):
        return [{"text": message.content}] if message.content else []
    return [_part(part) for part in message.content]


def _result(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    name = message.name or names.get(message.tool_call_id)
    if not name:
        raise uncarried(
            "messages",
            f"the tool message for {message.tool_call_id!r} names no tool and answers no earlier call",
        )
    text = only_text(message)
    try:
        response: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        response = {"result": text}  # a response must be an object
    return {"id": message.tool_call_id, "name": name, "response": response}


def _sent_call(call: ToolCall, *, signed: bool) -> dict[str, Any]:
    """Only a turn's first call needs a signature. Anthropic's, which start with a bracket, stay out."""
    part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": arguments_object(call)}}
    signature = "" if call.signature.startswith("[") else call.signature
    if signature or signed:
        part["thoughtSignature"] = signature or UNSIGNED
    return part


def _part(part: Part) -> dict[str, Any]:
    if not isinstance(part, Image):
        return {"text": part.text}
    image = inline(part)
    if image.data:
        return {"inlineData": {"mimeType": image.media_type, "data": image.data}}
    named = {"mimeType": image.media_type} if image.media_type else {}
    return {"fileData": {"fileUri": image.url, **named}}


def _settings(request: Request) -> dict[str, Any]:
    fields = {
        "maxOutputTokens": request.max_output_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "seed": request.seed,
        "stopSequences": list(request.stop) or None,
        "responseMimeType": "application/json" if request.schema or request.json_mode else None,
        "responseJsonSchema": request.schema.schema if request.schema else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _thinking(request: Request, model: str, *, by_level: bool) -> dict[str, Any]:
    """https://ai.google.dev/gemini-api/docs/thinking"""
    effort = request.effort
    if effort is None:
        return {}
    if not by_level:
        shown = {"includeThoughts": True} if effort != "none" else {}
        return {"thinkingConfig": {"thinkingBudget": BUDGET_TOKENS[effort], **shown}}
    if effort == "none":
        raise uncarried("effort", f"{model} cannot stop thinking: ask for 'minimal' in place of 'none'")
    return {"thinkingConfig": {"thinkingLevel": LEVELS[effort], "includeThoughts": True}}


def _tools(request: Request) -> dict[str, Any]:
    named = named_tool(request)
    if not request.tools:
        return {}
    declarations = []
    for tool in request.tools:
        sent: dict[str, Any] = {"name": tool.name, "parametersJsonSchema": tool.parameters}
        if tool.description:
            sent["description"] = tool.description
        declarations.append(sent)
    strict = any(tool.strict for tool in request.tools)
    modes = {"auto": "VALIDATED" if strict else "AUTO", "none": "NONE", "required": "ANY"}
    calling = {"mode": "ANY", "allowedFunctionNames": [named]} if named else {"mode": modes[request.tool_choice]}
    return {
        "tools": [{"functionDeclarations": declarations}],
        "toolConfig": {"functionCallingConfig": calling},
    }


class _FunctionCall(msgspec.Struct):
    name: str
    args: dict[str, Any] | None = None
    id: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    text: str = ""
    thought: bool = False
    thought_signature: str = ""
    function_call: _FunctionCall | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct, rename="camel"):
    content: _Content = msgspec.field(default_factory=_Content)
    finish_reason: str | None = None


class _Feedback(msgspec.Struct, rename="camel"):
    block_reason: str | None = None


class _Usage(msgspec.Struct, rename="camel"):
    prompt_token_count: Count | None = None
    cached_content_token_count: Count | None = None
    candidates_token_count: Count | None = None
    thoughts_token_count: Count | None = None
    tool_use_prompt_token_count: Count | None = None


class _Response(msgspec.Struct, rename="camel"):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Usage | None = None
    model_version: str = ""
    response_id: str = ""
    error: Any = None


class _Decoder:
    """Joins one or more responses; a whole reply is a stream of one. Read to its end: usage comes last."""

    def __init__(self) -> None:
        self.done = False
        self.written_chars = 0
        self._last = _Response()
        self._parts: list[_Part] = []
        self._finish: str | None = None
        self._blocked: str | None = None

    def feed(self, event: ServerEvent) -> str:
        return self.add(decode(event.data, _Response))

    def add(self, response: _Response) -> str:
        refuse_error(response.error)
        last, self._last = self._last, response
        response.usage_metadata = response.usage_metadata or last.usage_metadata
        response.model_version = response.model_version or last.model_version
        response.response_id = response.response_id or last.response_id
        if response.prompt_feedback:
            self._blocked = response.prompt_feedback.block_reason or self._blocked
        if not response.candidates:
            return ""
        candidate = response.candidates[0]
        self._finish = candidate.finish_reason or self._finish
        parts = candidate.content.parts or []
        self._parts += parts
        self.written_chars += sum(len(part.text) for part in parts)
        return "".join(part.text for part in parts if not part.thought)

    def finish(self) -> Reply:
        calls = self._calls()
        if self._finish is None and self._blocked is None:
            raise unreadable("the reply ended before its finishReason, or has no candidates")
        usage = _usage(self._last.usage_metadata)
        return Reply(
            text="".join(part.text for part in self._parts if not part.thought),
            tool_calls=calls,
            finish="refused" if self._blocked else finish_of(self._finish, FINISH, calls, usage),
            usage=usage,
            model=self._last.model_version,
            reasoning="".join(part.text for part in self._parts if part.thought),
        )

    def _calls(self) -> tuple[ToolCall, ...]:
        """Gemini gives some calls no id; one made from the response's own is unique in a conversation."""
        calls: list[ToolCall] = []
        for part in self._parts:
            if call := part.function_call:
                id = call.id or f"call_{self._last.response_id or 'x'}_{len(calls)}"
                arguments = msgspec.json.encode(call.args or {}).decode()
                calls.append(ToolCall(id, call.name, arguments, part.thought_signature))
        return tuple(calls)


def _usage(usage: _Usage | None) -> Usage:
    """Gemini counts thoughts beside the answer, cached input inside the prompt."""
    if usage is None:
        return Usage()
    thoughts = usage.thoughts_token_count or 0
    return Usage(
        input_tokens=(usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        output_tokens=(usage.candidates_token_count or 0) + thoughts,
        cached_input_tokens=usage.cached_content_token_count or 0,
        reasoning_tokens=thoughts,
    )
