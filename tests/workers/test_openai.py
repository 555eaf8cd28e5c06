"""OpenAI's wire: its requests, replies, streams and the names of its fields."""

import json

import pytest

from dirigent.errors import WorkerError
from dirigent.messages import Image, Message, Request, Schema, Text, Tool, ToolCall, Usage
from dirigent.workers.openai import Lora, OpenAIWire
from dirigent.workers.wire import EventParser
from dirigent.workers.worker import WorkerInfo
from tests.facts import facts

INFO = WorkerInfo("w", model="m", abilities=frozenset({"grammar"}))
ASK = (Message("user", "hi"),)


def body(request=None, *, wire=None, info=INFO, base_url="http://x/v1", stream=False, **fields):
    request = request or Request(**{"messages": ASK, **fields})
    call = (wire or OpenAIWire()).build(request, info=info, base_url=base_url, stream=stream)
    assert call.url == f"{base_url}/chat/completions"
    return json.loads(call.body)


def streamed(*chunks, done=True):
    decoder = OpenAIWire().decoder()
    parser = EventParser()
    lines = [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks]
    lines += ["data: [DONE]\n\n"] if done else []
    texts = [decoder.feed(event) for event in parser.feed("".join(lines).encode())]
    return [text for text in texts if text], decoder.finish()


def delta(finish=None, **said):
    return {"id": "r1", "model": "m-1", "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def parsed(finish="stop", usage=None, **said):
    choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": finish}
    return OpenAIWire().parse(json.dumps({"id": "r1", "model": "m-1", "choices": [choice], "usage": usage}).encode())


def test_a_plain_request_holds_nothing_it_was_not_asked_for():
    assert body() == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_sampling_fields_keep_their_names():
    sent = body(temperature=0.0, top_p=0.9, seed=7, stop=("\n",), effort="low", max_output_tokens=5)
    assert sent | {"messages": []} == {
        "model": "m",
        "messages": [],
        "temperature": 0.0,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["\n"],
        "reasoning_effort": "low",
        "max_tokens": 5,
    }
    assert body(effort="max")["reasoning_effort"] == "xhigh"


@pytest.mark.parametrize(
    ("model", "base_url", "field"),
    [
        ("gpt-4o", "https://api.openai.com/v1", "max_completion_tokens"),
        ("gpt-5-mini", "http://x/v1", "max_completion_tokens"),
        ("openai/o3", "http://x/v1", "max_completion_tokens"),
        ("gpt-oss-120b", "http://x/v1", "max_tokens"),
        ("olmo-2", "http://x/v1", "max_tokens"),
        ("deepseek-chat", "https://api.openai.com.evil.example/v1", "max_tokens"),
    ],
)
def test_the_limit_goes_by_the_name_the_model_understands(model, base_url, field):
    sent = body(info=WorkerInfo("w", model=model), base_url=base_url, max_output_tokens=9)
    assert sent[field] == 9
    assert len({"max_tokens", "max_completion_tokens"} & set(sent)) == 1


def test_the_limits_name_can_be_set():
    assert body(wire=OpenAIWire(max_tokens_field="max_completion_tokens"), max_output_tokens=9)["max_completion_tokens"]


def test_extra_fields_win_and_adapters_are_named():
    wire = OpenAIWire(extra={"temperature": 1.0, "cache_prompt": True}, lora=(Lora(2), Lora(0, 0.5)))
    sent = body(wire=wire, temperature=0.0)
    assert sent["temperature"] == 1.0
    assert sent["cache_prompt"] is True
    assert sent["lora"] == [{"id": 2, "scale": 1.0}, {"id": 0, "scale": 0.5}]
    assert body(wire=OpenAIWire(lora=()))["lora"] == []


def test_a_grammar_goes_only_to_workers_that_decode_under_one():
    assert body(grammar='root ::= "a"')["grammar"] == 'root ::= "a"'
    with pytest.raises(WorkerError, match=facts("grammar plain")) as caught:
        body(info=WorkerInfo("plain", model="m"), grammar='root ::= "a"')
    assert caught.value.fault == "request"


def test_streams_ask_for_usage_unless_configured_otherwise():
    assert body(stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body(wire=OpenAIWire(stream_usage=False), stream=True)


def test_images_by_link_and_by_data():
    content = (
        Text("what?"),
        Image(url="https://x/y.png"),
        Image(data="QUJD", media_type="image/png"),
        Image(url="data:image/gif;base64,QUJD", detail="low"),
    )
    parts = body(messages=(Message("user", content),))["messages"][0]["content"]
    assert parts[0] == {"type": "text", "text": "what?"}
    urls = [part["image_url"]["url"] for part in parts[1:]]
    assert urls == ["https://x/y.png", "data:image/png;base64,QUJD", "data:image/gif;base64,QUJD"]
    assert [part["image_url"].get("detail") for part in parts[1:]] == [None, None, "low"]


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (Image(), "http"),
        (Image(url="file:///etc/passwd"), "http"),
        (Image(data="QUJD"), "media_type"),
    ],
)
def test_an_image_that_cannot_be_sent_is_refused(image, words):
    with pytest.raises(WorkerError, match=facts(words)) as caught:
        body(messages=(Message("user", (image,)),))
    assert caught.value.fault == "request"


def test_an_image_in_a_system_message_is_refused():
    with pytest.raises(WorkerError, match=facts("images system")):
        body(messages=(Message("system", (Image(url="https://x/y.png"),)),))


def test_tools_calls_and_results():
    tool = Tool("add", {"type": "object"}, "adds", strict=True)
    call = ToolCall("c1", "add", '{"a":1}', signature="sig")
    messages = (
        Message("system", "be brief"),
        Message("user", "1+1?"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "2", tool_call_id="c1", name="add"),
    )
    sent = body(messages=messages, tools=(tool,), tool_choice="add")
    function = {"name": "add", "parameters": {"type": "object"}, "description": "adds", "strict": True}
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert sent["messages"][0] == {"role": "system", "content": "be brief"}
    assert sent["messages"][2] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}],
    }
    assert sent["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "2"}
    assert body(tools=(tool,), tool_choice="required")["tool_choice"] == "required"
    gemini = body(messages=messages, info=WorkerInfo("w", model="gemini-3-pro"))["messages"][2]["tool_calls"][0]
    assert gemini["extra_content"] == {"google": {"thought_signature": "sig"}}


def test_a_tool_choice_without_its_tool_is_refused():
    with pytest.raises(WorkerError, match=facts("sub add")):
        body(tools=(Tool("add", {}),), tool_choice="sub")
    with pytest.raises(WorkerError, match=facts("tools")):
        body(tool_choice="required")


def test_structured_output():
    sent = body(schema=Schema({"type": "object"}, name="card"))
    shape = {"name": "card", "schema": {"type": "object"}, "strict": True}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": shape}
    assert body(json_mode=True)["response_format"] == {"type": "json_object"}


def test_a_whole_reply():
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 15},
    }
    reply = parsed(content="hello", reasoning_content="hm", usage=usage)
    assert (reply.text, reply.finish, reply.model, reply.reasoning) == ("hello", "stop", "m-1", "hm")
    assert reply.usage == Usage(10, 20, 4, 15)


def test_usage_in_the_way_of_deepseek():
    reply = parsed(content="x", usage={"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 8})
    assert reply.usage.cached_input_tokens == 8


def test_content_in_pieces_keeps_its_text_alone():
    pieces = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "no"}]},
        {"type": "text", "text": "yes"},
    ]
    assert parsed(content=pieces).text == "yes"


def test_parallel_calls_even_under_a_plain_stop_or_without_ids():
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"type": "function", "function": {"name": "b", "arguments": {"x": 1}}},
        {"id": "c3", "function": {"name": "c"}, "extra_content": {"google": {"thought_signature": "s"}}},
    ]
    reply = parsed(content=None, tool_calls=calls)
    assert reply.finish == "tool_calls"
    assert reply.tool_calls == (
        ToolCall("c1", "a", "{}"),
        ToolCall("call_r1_1", "b", '{"x":1}'),
        ToolCall("c3", "c", "{}", "s"),
    )


def test_refusals():
    refused = parsed(content=None, refusal="I cannot")
    assert (refused.finish, refused.text) == ("refused", "I cannot")
    assert parsed(content="", finish="content_filter").finish == "refused"
    texts, reply = streamed(delta(refusal="I can"), delta(refusal="not"), delta("stop"))
    assert (texts, reply.finish, reply.text) == ([], "refused", "I cannot")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"choices": []}', "choices"),
        (b"{}", "choices"),
        (b'{"error": {"message": "out of credit"}}', "out of credit"),
        (b'{"choices": [{"message": {"content": "x"}}]}', "None"),
        (b'{"choices": [{"message": {"content": "x"}, "finish_reason": "abort"}]}', "abort"),
        (
            b'{"choices": [{"message": {"content": "x"}, "finish_reason": "tool_calls"}]}',
            "tool_calls",
        ),
        (b'{"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}', "Expected `str"),
        (
            b'{"choices": [{"message": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": NaN}}',
            "JSON malformed",
        ),
        (b'{"choices": [{"message": {"tool_calls": [{}]}, "finish_reason": "stop"}]}', "name"),
        (b"\xff\xfe", ""),
        (b"[" * 100_000, ""),
        (b"", ""),
    ],
)
def test_a_body_that_is_no_answer_is_an_error(raw, words):
    with pytest.raises(WorkerError, match=facts(words)) as caught:
        OpenAIWire().parse(raw)
    assert caught.value.fault == "reply"


def test_a_stream_joins_to_its_reply():
    texts, reply = streamed(
        delta(role="assistant", content=""),
        delta(reasoning="let me "),
        delta(reasoning_content="see"),
        delta(content="hel"),
        delta(content="lo"),
        delta("length"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    )
    assert texts == ["hel", "lo"]
    assert (reply.text, reply.finish, reply.reasoning, reply.model) == (
        "hello",
        "length",
        "let me see",
        "m-1",
    )
    assert reply.usage == Usage(3, 2)


def fragment(index=None, id=None, name=None, arguments=None):
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def test_streamed_calls_are_joined_by_index():
    _, reply = streamed(
        delta(tool_calls=[fragment(0, "c1", "a", ""), fragment(1, "c2", "b", "")]),
        delta(tool_calls=[fragment(1, None, None, '{"y":')]),
        delta(tool_calls=[fragment(0, None, None, "{}")]),
        delta(tool_calls=[fragment(1, None, None, "2}")]),
        delta("tool_calls"),
    )
    assert reply.tool_calls == (ToolCall("c1", "a", "{}"), ToolCall("c2", "b", '{"y":2}'))


def test_streamed_calls_that_all_claim_index_0_stay_apart():
    _, reply = streamed(
        delta(tool_calls=[fragment(0, "c1", "a", "{}")]),
        delta(tool_calls=[fragment(0, "c2", "b", "{}")]),
        delta("stop"),
    )
    assert [call.name for call in reply.tool_calls] == ["a", "b"]


@pytest.mark.parametrize(
    ("chunks", "done", "words"),
    [
        ([delta(content="hel")], False, "[DONE]"),
        ([delta(content="hello"), delta("stop")], False, "[DONE]"),
        ([delta(content="hello")], True, "None"),
        ([delta(content="hel"), {"error": {"message": "engine died"}}], True, "engine died"),
        ([delta(content="hel"), "{nonsense"], True, ""),
    ],
)
def test_a_broken_stream_is_an_error(chunks, done, words):
    with pytest.raises(WorkerError, match=facts(words)) as caught:
        streamed(*chunks, done=done)
    assert caught.value.fault == "reply"


def test_quoted_bodies_are_short_and_hold_no_key():
    with pytest.raises(WorkerError) as caught:
        OpenAIWire().parse(b'{"error": "key sk-abcdefghijklmnopqrstuvwx is bad ' + b"x" * 1000 + b'"}')
    assert "sk-abc" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_key_goes_into_a_header():
    assert OpenAIWire().key_headers("k") == {"Authorization": "Bearer k"}


@pytest.mark.timeout(30)
def test_a_stream_of_many_calls_does_not_keep_the_server_busy():
    _, reply = streamed(
        delta(tool_calls=[{"index": i, "id": f"c{i}", "function": {"name": "f"}} for i in range(15_000)]),
        *[delta(tool_calls=[{"index": i, "function": {"arguments": "{}"}} for i in range(15_000)]) for _ in range(8)],
        delta("tool_calls"),
    )
    assert len(reply.tool_calls) == 15_000
    assert {call.arguments for call in reply.tool_calls} == {"{}" * 8}
