"""Gemini's wire: its requests, replies, signatures and refusals."""

import json

import pytest

from dirigent.errors import WorkerError
from dirigent.messages import Image, Message, Request, Schema, Text, Tool, ToolCall, Usage
from dirigent.workers.gemini import UNSIGNED, GeminiWire
from dirigent.workers.wire import EventParser
from dirigent.workers.worker import WorkerInfo
from tests.facts import facts

ASK = (Message("user", "hi"),)


def build(*, wire=None, model="gemini-2.5-flash", stream=False, **fields):
    request = Request(**{"messages": ASK, **fields})
    return (wire or GeminiWire()).build(
        request, info=WorkerInfo("w", model=model), base_url="https://g.example", stream=stream
    )


def body(**fields):
    return json.loads(build(**fields).body)


def response(*parts, finish=None, **more):
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": finish}], **more}


def parsed(*parts, finish="STOP", **more):
    return GeminiWire().parse(json.dumps(response(*parts, finish=finish, **more)).encode())


def streamed(*chunks):
    decoder, parser = GeminiWire().decoder(), EventParser()
    lines = "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks)
    texts = [decoder.feed(event) for event in parser.feed(lines.encode())]
    return [text for text in texts if text], decoder.finish()


def test_a_plain_request():
    call = build()
    assert call.url == "https://g.example/v1beta/models/gemini-2.5-flash:generateContent"
    assert json.loads(call.body) == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    assert build(stream=True).url.endswith("gemini-2.5-flash:streamGenerateContent?alt=sse")
    assert build(model="tunedModels/mine?").url == "https://g.example/v1beta/tunedModels/mine%3F:generateContent"
    assert GeminiWire().key_headers("k") == {"x-goog-api-key": "k"}


def test_system_messages_travel_apart_and_turns_alternate():
    messages = (
        Message("system", "be brief"),
        Message("user", "a"),
        Message("user", "b"),
        Message("assistant", "c"),
        Message("user", "d"),
    )
    sent = body(messages=messages)
    assert sent["systemInstruction"] == {"parts": [{"text": "be brief"}]}
    assert [(turn["role"], len(turn["parts"])) for turn in sent["contents"]] == [
        ("user", 2),
        ("model", 1),
        ("user", 1),
    ]


def test_settings_keep_their_names():
    sent = body(
        temperature=0.0,
        top_p=0.9,
        seed=7,
        stop=("END",),
        max_output_tokens=5,
        schema=Schema({"type": "object"}),
    )
    assert sent["generationConfig"] == {
        "temperature": 0.0,
        "topP": 0.9,
        "seed": 7,
        "stopSequences": ["END"],
        "maxOutputTokens": 5,
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object"},
    }
    assert body(json_mode=True)["generationConfig"] == {"responseMimeType": "application/json"}


def test_a_grammar_is_refused():
    with pytest.raises(WorkerError, match=facts("grammar")) as caught:
        body(grammar="g")
    assert caught.value.fault == "request"


def thinking(**fields):
    return body(**fields)["generationConfig"]["thinkingConfig"]


def test_effort_as_a_budget_before_gemini_3_and_as_a_level_since():
    assert thinking(effort="medium") == {"thinkingBudget": 8192, "includeThoughts": True}
    assert thinking(effort="none") == {"thinkingBudget": 0}
    assert thinking(effort="minimal", model="gemini-3-flash") == {
        "thinkingLevel": "minimal",
        "includeThoughts": True,
    }
    assert thinking(effort="max", model="gemini-flash-latest")["thinkingLevel"] == "high"
    assert thinking(effort="low", wire=GeminiWire(thinking="level"))["thinkingLevel"] == "low"
    with pytest.raises(WorkerError, match=facts("effort gemini-3-pro")):
        body(effort="none", model="gemini-3-pro")


def test_images_by_link_and_by_data():
    content = (
        Text("what?"),
        Image(url="https://x/y.png"),
        Image(url="https://x/z", media_type="image/webp"),
        Image(data="QUJD", media_type="image/png"),
    )
    assert body(messages=(Message("user", content),))["contents"][0]["parts"] == [
        {"text": "what?"},
        {"fileData": {"fileUri": "https://x/y.png"}},
        {"fileData": {"fileUri": "https://x/z", "mimeType": "image/webp"}},
        {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
    ]


def test_tools_and_their_choice():
    tool = Tool("add", {"type": "object"}, "adds")
    sent = body(tools=(tool,), tool_choice="add")
    declared = {"name": "add", "parametersJsonSchema": {"type": "object"}, "description": "adds"}
    assert sent["tools"] == [{"functionDeclarations": [declared]}]
    assert sent["toolConfig"]["functionCallingConfig"] == {"mode": "ANY", "allowedFunctionNames": ["add"]}

    def mode(choice, strict=False):
        config = body(tools=(Tool("add", {}, strict=strict),), tool_choice=choice)["toolConfig"]
        return config["functionCallingConfig"]["mode"]

    assert [mode("auto"), mode("auto", strict=True), mode("none"), mode("required")] == [
        "AUTO",
        "VALIDATED",
        "NONE",
        "ANY",
    ]


def history(*calls, results=()):
    return (Message("user", "go"), Message("assistant", "", tool_calls=calls), *results)


def test_results_name_their_tool_and_share_one_turn():
    results = (
        Message("tool", '{"sum": 2}', tool_call_id="c1"),
        Message("tool", "noon", tool_call_id="c2", name="now"),
    )
    messages = history(ToolCall("c1", "add", '{"a":1}'), ToolCall("c2", "now", "{}"), results=results)
    turns = body(messages=messages)["contents"]
    assert turns[1]["parts"][0] == {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}}
    assert turns[2] == {
        "role": "user",
        "parts": [
            {"functionResponse": {"id": "c1", "name": "add", "response": {"sum": 2}}},
            {"functionResponse": {"id": "c2", "name": "now", "response": {"result": "noon"}}},
        ],
    }


def test_a_result_of_nothing_is_refused():
    with pytest.raises(WorkerError, match=facts("c9")):
        body(messages=(Message("tool", "x", tool_call_id="c9"),))


def test_signatures_are_returned_and_gemini_3_gets_a_placeholder_for_missing_ones():
    def signatures(model, *calls):
        return [
            part.get("thoughtSignature") for part in body(messages=history(*calls), model=model)["contents"][1]["parts"]
        ]

    signed, unsigned = ToolCall("c1", "a", "{}", "sig"), ToolCall("c2", "b", "{}")
    foreign = ToolCall("c3", "c", "{}", '[{"type":"thinking"}]')
    assert signatures("gemini-2.5-flash", signed, unsigned) == ["sig", None]
    assert signatures("gemini-3-pro", unsigned, unsigned) == [UNSIGNED, None]
    assert signatures("gemini-3-pro", foreign) == [UNSIGNED]
    assert signatures("gemini-2.5-flash", foreign) == [None]


def test_a_whole_reply_counts_thoughts_as_output():
    usage = {
        "promptTokenCount": 10,
        "cachedContentTokenCount": 4,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 6,
        "toolUsePromptTokenCount": 3,
    }
    reply = parsed(
        {"text": "hm", "thought": True},
        {"text": "hel"},
        {"text": "lo"},
        usageMetadata=usage,
        modelVersion="g-1",
    )
    assert (reply.text, reply.reasoning, reply.finish, reply.model) == ("hello", "hm", "stop", "g-1")
    assert reply.usage == Usage(input_tokens=13, output_tokens=11, cached_input_tokens=4, reasoning_tokens=6)


def test_parallel_calls_get_ids_and_keep_signatures():
    reply = parsed(
        {"functionCall": {"name": "a", "args": {"x": 1}}, "thoughtSignature": "sig"},
        {"functionCall": {"name": "b", "id": "own"}},
        responseId="r1",
    )
    assert reply.finish == "tool_calls"
    assert reply.tool_calls == (ToolCall("call_r1_0", "a", '{"x":1}', "sig"), ToolCall("own", "b", "{}"))


def test_refusals():
    assert parsed(finish="SAFETY").finish == "refused"
    blocked = GeminiWire().parse(b'{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}')
    assert (blocked.finish, blocked.text) == ("refused", "")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"candidates": []}', "candidates"),
        (b"{}", "candidates"),
        (b'{"candidates": [{"content": {"parts": [{"text": "x"}]}}]}', "finishReason"),
        (b'{"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]}', "MALFORMED_FUNCTION_CALL"),
        (b'{"error": {"code": 400, "message": "bad"}}', "bad"),
        (b"[]", ""),
    ],
)
def test_a_body_that_is_no_answer_is_an_error(raw, words):
    with pytest.raises(WorkerError, match=facts(words)) as caught:
        GeminiWire().parse(raw)
    assert caught.value.fault == "reply"


def test_a_stream_joins_to_its_reply():
    texts, reply = streamed(
        response({"text": "hm", "thought": True}, modelVersion="g-1", usageMetadata={"promptTokenCount": 3}),
        response({"text": "hel"}),
        response({"text": "lo"}),
        response(finish="MAX_TOKENS", usageMetadata={"promptTokenCount": 3, "candidatesTokenCount": 2}),
    )
    assert texts == ["hel", "lo"]
    assert (reply.text, reply.reasoning, reply.finish, reply.model) == ("hello", "hm", "length", "g-1")
    assert reply.usage == Usage(3, 2)


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([response({"text": "hel"})], "finishReason"),
        ([response({"text": "hel"}), {"error": {"message": "died"}}], "died"),
        ([], "finishReason"),
    ],
)
def test_a_broken_stream_is_an_error(chunks, words):
    with pytest.raises(WorkerError, match=facts(words)) as caught:
        streamed(*chunks)
    assert caught.value.fault == "reply"
