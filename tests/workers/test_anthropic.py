"""Anthropic's wire: its requests, replies, thinking, cache marks and refusals."""

import json

import pytest

from dirigent.errors import WorkerError
from dirigent.messages import Image, Message, Request, Schema, Text, Tool, ToolCall, Usage
from dirigent.workers.anthropic import AnthropicWire, thinking_of
from dirigent.workers.wire import EventParser
from dirigent.workers.worker import WorkerInfo
from tests.facts import facts

ASK = (Message("user", "hi"),)


def build(*, wire=None, model="claude-sonnet-4-6", output_tokens=None, stream=False, **fields):
    request = Request(**{"messages": ASK, **fields})
    info = WorkerInfo("w", model=model, output_tokens=output_tokens)
    return (wire or AnthropicWire()).build(request, info=info, base_url="https://a.example", stream=stream)


def body(**fields):
    return json.loads(build(**fields).body)


def parsed(*content, stop="end_turn", usage=None):
    message = {"type": "message", "model": "claude-x", "content": content, "stop_reason": stop}
    return AnthropicWire().parse(json.dumps({**message, "usage": usage or {}}).encode())


def streamed(*events):
    decoder, parser = AnthropicWire().decoder(), EventParser()
    lines = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    texts = [decoder.feed(event) for event in parser.feed(lines.encode())]
    return [text for text in texts if text], decoder.finish()


def started(index, **block):
    return {"type": "content_block_start", "index": index, "content_block": block}


def grew(index, kind, **more):
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **more}}


START = {
    "type": "message_start",
    "message": {"model": "claude-x", "content": [], "usage": {"input_tokens": 5, "output_tokens": 1}},
}
STOP = {"type": "message_stop"}


def ended(reason, output_tokens=9):
    usage = {"output_tokens": output_tokens}
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def test_a_plain_request():
    call = build()
    assert call.url == "https://a.example/v1/messages"
    assert call.headers == {"anthropic-version": "2023-06-01"}
    assert json.loads(call.body) == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }
    assert body(stream=True)["stream"] is True
    assert AnthropicWire().key_headers("k") == {"x-api-key": "k"}


def test_the_limit_is_the_requests_then_the_cards():
    assert body(output_tokens=64000)["max_tokens"] == 64000
    assert body(output_tokens=64000, max_output_tokens=10)["max_tokens"] == 10


def test_system_messages_travel_apart():
    messages = (Message("system", "be brief"), Message("user", "hi"), Message("system", "be kind"))
    sent = body(messages=messages)
    assert sent["system"] == "be brief\n\nbe kind"
    assert [turn["role"] for turn in sent["messages"]] == ["user"]


def test_sampling_and_structured_output():
    sent = body(temperature=0.5, top_p=0.9, stop=("END",), schema=Schema({"type": "object"}), effort="high")
    assert (sent["temperature"], sent["top_p"], sent["stop_sequences"]) == (0.5, 0.9, ["END"])
    assert sent["output_config"] == {
        "effort": "high",
        "format": {"type": "json_schema", "schema": {"type": "object"}},
    }


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"grammar": "g"}, "grammar"), ({"seed": 1}, "seed"), ({"json_mode": True}, "json_mode")],
)
def test_a_field_that_anthropic_lacks_is_refused_by_name(fields, name):
    with pytest.raises(WorkerError, match=facts(name)) as caught:
        body(**fields)
    assert caught.value.fault == "request"


@pytest.mark.parametrize(
    ("model", "way"),
    [
        ("claude-3-7-sonnet-latest", "budget"),
        ("claude-sonnet-4-20250514", "budget"),
        ("claude-haiku-4-5", "budget"),
        ("claude-opus-4-6", "adaptive"),
        ("anthropic/claude-opus-4.7", "adaptive"),
        ("claude-sonnet-5", "adaptive"),
        ("claude-fable-5", "always"),
    ],
)
def test_the_form_of_thinking_depends_on_the_models_name(model, way):
    assert thinking_of(model) == way


def test_effort_as_a_level():
    sent = body(effort="minimal")
    assert (sent["thinking"], sent["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
    assert body(effort="none")["thinking"] == {"type": "disabled"}
    always = body(effort="max", wire=AnthropicWire(thinking="always"))
    assert always["output_config"] == {"effort": "max"}
    assert "thinking" not in always
    with pytest.raises(WorkerError, match=facts("effort")):
        body(effort="none", model="claude-fable-5")


@pytest.mark.parametrize(("max_tokens", "budget"), [(40000, 8192), (4096, 2048), (1100, 1024)])
def test_effort_as_a_budget_leaves_room_for_the_answer(max_tokens, budget):
    sent = body(effort="medium", model="claude-haiku-4-5", max_output_tokens=max_tokens)
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": budget}
    assert budget < sent["max_tokens"] == max_tokens


def test_a_budget_that_does_not_fit_is_refused():
    with pytest.raises(WorkerError, match=facts("effort max_output_tokens 1024 800")):
        body(effort="low", model="claude-haiku-4-5", max_output_tokens=800)


def test_images_by_link_and_by_data():
    content = (Text("what?"), Image(url="https://x/y.png"), Image(url="data:image/png;base64,QUJD"))
    blocks = body(messages=(Message("user", content),))["messages"][0]["content"]
    assert [block.get("source") for block in blocks] == [
        None,
        {"type": "url", "url": "https://x/y.png"},
        {"type": "base64", "media_type": "image/png", "data": "QUJD"},
    ]


def test_results_of_parallel_calls_share_one_turn():
    calls = (
        ToolCall("functions.a:0", "a", "{}"),
        ToolCall("c2", "b", '{"x":1}', signature="of another provider"),
    )
    messages = (
        Message("user", "go"),
        Message("assistant", "on it", tool_calls=calls),
        Message("tool", "A", tool_call_id="functions.a:0"),
        Message("tool", (Text("B"), Image(data="QUJD", media_type="image/png")), tool_call_id="c2"),
        Message("user", "and?"),
    )
    turns = body(messages=messages)["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == [
        {"type": "text", "text": "on it"},
        {"type": "tool_use", "id": "functions_a_0", "name": "a", "input": {}},
        {"type": "tool_use", "id": "c2", "name": "b", "input": {"x": 1}},
    ]
    first, second, more = turns[2]["content"]
    assert (first["tool_use_id"], first["content"]) == ("functions_a_0", [{"type": "text", "text": "A"}])
    assert [block["type"] for block in second["content"]] == ["text", "image"]
    assert more == {"type": "text", "text": "and?"}


def test_tools_and_their_choice():
    tool = Tool("add", {"type": "object"}, "adds", strict=True)
    sent = body(tools=(tool,), tool_choice="add")
    assert sent["tools"] == [{"name": "add", "input_schema": {"type": "object"}, "description": "adds", "strict": True}]
    assert sent["tool_choice"] == {"type": "tool", "name": "add"}
    choices = {
        choice: body(tools=(tool,), tool_choice=choice)["tool_choice"] for choice in ("auto", "none", "required")
    }
    assert choices == {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}


def test_arguments_that_are_no_object_cannot_be_sent():
    messages = (Message("assistant", tool_calls=(ToolCall("c", "add", "[1"),)),)
    with pytest.raises(WorkerError, match=facts("tool_calls add JSON")):
        body(messages=messages)


def test_a_whole_reply_counts_all_input():
    usage = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 30,
        "output_tokens": 7,
    }
    reply = parsed(
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "hello"},
        usage=usage,
    )
    assert (reply.text, reply.reasoning, reply.finish, reply.model) == ("hello", "hm", "stop", "claude-x")
    assert reply.usage == Usage(60, 7, cached_input_tokens=30, cache_write_input_tokens=20)


def test_thinking_is_returned_with_the_calls_it_led_to():
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    reply = parsed(thought, hidden, {"type": "text", "text": "so"}, use, {**use, "id": "c2"}, stop="tool_use")
    assert [(call.id, call.arguments, bool(call.signature)) for call in reply.tool_calls] == [
        ("c1", '{"a":1}', True),
        ("c2", '{"a":1}', False),
    ]
    again = body(messages=(Message("user", "go"), Message("assistant", reply.text, tool_calls=reply.tool_calls)))
    assert again["messages"][1]["content"][:3] == [thought, hidden, {"type": "text", "text": "so"}]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refused"),
    ],
)
def test_reasons_to_stop(reason, finish):
    assert parsed({"type": "text", "text": "x"}, stop=reason).finish == finish


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error","message":"busy"}}', "busy"),
        (b"{}", "content"),
        (b'{"content": [], "stop_reason": "pause_turn"}', "pause_turn"),
        (b'{"content": [], "stop_reason": null}', "None"),
        (b'{"content": [{"type": "tool_use", "name": "a"}], "stop_reason": "tool_use"}', "id"),
        (b'{"content": [{"type": "text", "text": 5}]}', "Expected `str`"),
    ],
)
def test_a_body_that_is_no_answer_is_an_error(raw, words):
    with pytest.raises(WorkerError, match=facts(words)) as caught:
        AnthropicWire().parse(raw)
    assert caught.value.fault == "reply"


def test_a_stream_joins_to_its_reply():
    texts, reply = streamed(
        START,
        {"type": "ping"},
        started(0, type="thinking", thinking="", signature=""),
        grew(0, "thinking_delta", thinking="hm"),
        grew(0, "signature_delta", signature="s"),
        {"type": "content_block_stop", "index": 0},
        started(1, type="text", text=""),
        grew(1, "text_delta", text="hel"),
        grew(1, "text_delta", text="lo"),
        started(2, type="tool_use", id="c1", name="add", input={}),
        grew(2, "input_json_delta", partial_json='{"a"'),
        grew(2, "input_json_delta", partial_json=":1}"),
        started(3, type="tool_use", id="c2", name="now", input={}),
        {"type": "an_event_of_tomorrow"},
        ended("tool_use"),
        STOP,
    )
    assert texts == ["hel", "lo"]
    assert (reply.text, reply.reasoning, reply.finish, reply.model) == (
        "hello",
        "hm",
        "tool_calls",
        "claude-x",
    )
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("c1", "add", '{"a":1}'),
        ("c2", "now", "{}"),
    ]
    assert reply.usage == Usage(5, 9)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([START, started(0, type="text", text="hel")], "message_stop"),
        ([START, started(0, type="text", text="hel"), ended("end_turn")], "message_stop"),
        ([START, STOP], "None"),
        ([START, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}], "busy"),
        ([START, {"type": "error"}], "error"),
        ([START, grew(3, "text_delta", text="x")], "3"),
    ],
)
def test_a_broken_stream_is_an_error(events, words):
    with pytest.raises(WorkerError, match=facts(words)) as caught:
        streamed(*events)
    assert caught.value.fault == "reply"


MARK = {"type": "ephemeral"}
LONG = "word " * 1200
"""1,500 tokens, as they are estimated."""


def test_marks_for_the_cache_are_passed_on_at_the_ends_of_messages_system_and_tools():
    sent = body(
        messages=(
            Message("system", "Be brief.", cache="1h"),
            Message("user", "first", cache="5m"),
            Message("assistant", "second"),
            Message("user", (Text("third"), Text("fourth")), cache="5m"),
        ),
        tools=(Tool("a", {}), Tool("b", {}, cache="5m")),
    )
    assert sent["system"] == [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    ]
    assert [turn["content"][-1].get("cache_control") for turn in sent["messages"]] == [MARK, None, MARK]
    assert "cache_control" not in sent["messages"][2]["content"][0]
    assert [tool.get("cache_control") for tool in sent["tools"]] == [None, MARK]


def test_of_more_than_four_marks_the_last_are_sent():
    said = tuple(Message("user" if i % 2 == 0 else "assistant", str(i), cache="5m") for i in range(7))
    sent = body(messages=said)
    marked = [turn["content"][-1]["text"] for turn in sent["messages"] if "cache_control" in turn["content"][-1]]
    assert marked == ["3", "4", "5", "6"]


def test_long_stable_prefixes_are_marked_without_being_asked_for():
    question = (Message("system", LONG), Message("user", "hi"))
    sent = body(messages=question)
    assert sent["system"] == [{"type": "text", "text": LONG, "cache_control": MARK}]
    assert "cache_control" not in sent["messages"][0]["content"][-1], "no later prompt repeats a single question"
    tools = body(messages=(Message("user", "hi"),), tools=(Tool("t", {"description": LONG}),))
    assert tools["tools"][-1]["cache_control"] == MARK


def test_a_continued_conversation_is_marked_at_its_end():
    said = (Message("user", LONG), Message("assistant", "so?"), Message("user", "on"))
    sent = body(messages=said, goes_on=True)
    assert [turn["content"][-1].get("cache_control") for turn in sent["messages"]] == [None, None, MARK]


def test_a_prompt_too_short_for_the_cache_is_not_marked():
    sent = body(messages=(Message("system", "Be brief."), Message("user", "hi")), goes_on=True)
    assert sent["system"] == "Be brief."
    assert "cache_control" not in sent["messages"][0]["content"][-1]
