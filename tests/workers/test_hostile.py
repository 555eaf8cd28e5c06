"""For any bytes of a provider, a wire gives a reply or a `WorkerError`, and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dirigent.errors import WorkerError
from dirigent.messages import Reply, ToolCall, Usage
from dirigent.workers.anthropic import AnthropicWire
from dirigent.workers.gemini import GeminiWire
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.wire import EventParser
from tests.stub_wires import WIRES, StubCall, StubReply, render

MAKE = {"openai": OpenAIWire, "anthropic": AnthropicWire, "gemini": GeminiWire}
ODD = st.sampled_from([None, True, -1, 2**70, 1e300, "", "x", "[DONE]", [], [None], [[]], {}, {"type": "error"}])


def answer(wire, *, stream):
    body = {"model": "m", "messages": [], "contents": [], "stream_options": {"include_usage": True}}
    call = StubCall(wire, "/v1beta/models/m:x", {}, body, stream, 0.0)
    calls = (ToolCall("c1", "add", '{"a": 1}', "sig"), ToolCall("c2", "now", "{}"))
    return b"".join(render(call, StubReply("hello there", calls, "tool_calls", "hm", Usage(9, 8, 7, 6))))


def places(value, path=()):
    """The path of every value inside a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


def read(wire, stream: bytes) -> Reply:
    decoder = MAKE[wire]().decoder()
    for event in EventParser().feed(stream):
        decoder.feed(event)
    return decoder.finish()


def reply_or_error(read, *args):
    try:
        assert isinstance(read(*args), Reply)
    except WorkerError as error:
        assert error.fault == "reply"  # noqa: PT017


@pytest.mark.parametrize("wire", WIRES)
@given(data=st.data())
def test_a_body_with_any_value_swapped(wire, data):
    good = json.loads(answer(wire, stream=False))
    path = data.draw(st.sampled_from(list(places(good))))
    bad = replaced(good, path, data.draw(ODD))
    reply_or_error(MAKE[wire]().parse, json.dumps(bad).encode())


@pytest.mark.parametrize("wire", WIRES)
@given(data=st.data())
def test_a_stream_with_any_value_swapped(wire, data):
    lines = answer(wire, stream=True).decode().splitlines()
    index = data.draw(st.sampled_from([i for i, line in enumerate(lines) if line.startswith("data: {")]))
    good = json.loads(lines[index][6:])
    path = data.draw(st.sampled_from(list(places(good))))
    lines[index] = "data: " + json.dumps(replaced(good, path, data.draw(ODD)))
    reply_or_error(read, wire, "\n".join([*lines, ""]).encode())


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_cut_anywhere_is_an_error(wire):
    stream = answer(wire, stream=True)
    whole = read(wire, stream)
    assert whole.text == "hello there"
    for cut in range(len(stream)):
        try:
            assert read(wire, stream[:cut]) == whole, f"cut at {cut}"
        except WorkerError as error:
            assert error.fault == "reply"  # noqa: PT017
            continue
        assert len(stream) - cut < 3, "only the last newline may be missing"


@given(st.binary(max_size=200))
def test_any_bytes(noise):
    for wire in WIRES:
        reply_or_error(MAKE[wire]().parse, noise)
        reply_or_error(read, wire, b"data: " + noise + b"\n\n")
