"""Server-sent events, read from bytes that are split anywhere."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dirigent.errors import WorkerError
from dirigent.workers.wire import EventParser, ServerEvent
from tests.facts import facts

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n"
    b"event: start\ndata: one\r\r"
    b"data: two\r\ndata:three\r\ndata\r\n\r\n"
    b"id: 7\nretry: 10\nunknown: field\n\n"
    b"data: caf\xc3\xa9 \xf0\x9f\x8e\xbc\n\n"
    b"data:\n\n"
    b"event: ping\n\n"
    b"data: never closed\n"
)
EVENTS = [
    ServerEvent("one", "start"),
    ServerEvent("two\nthree\n"),
    ServerEvent("café 🎼"),
    ServerEvent(""),
]


def parse(*chunks: bytes) -> list[ServerEvent]:
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def test_events_follow_the_standard():
    assert parse(STREAM) == EVENTS


def test_every_split_point_gives_the_same_events():
    for cut in range(len(STREAM) + 1):
        assert parse(STREAM[:cut], STREAM[cut:]) == EVENTS, f"cut at {cut}"


def test_single_bytes_give_the_same_events():
    assert parse(*(bytes([byte]) for byte in STREAM)) == EVENTS


LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b"event: e",
        b": note",
        b"",
        b"",
        b"id: 1",
        b"\xc3\xa9",
        b"data: \xf0\x9f\x8e\xbc",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.lists(st.integers(0, 200), max_size=8))
def test_chunking_never_changes_the_events(lines, cuts):
    stream = b"".join(line + end for line, end in lines)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(bounds)]
    assert parse(*chunks) == parse(stream)


def test_bytes_that_are_no_utf8_are_an_error():
    with pytest.raises(WorkerError, match=facts("UTF-8")) as caught:
        parse(b"data: \xff\n\n")
    assert caught.value.fault == "reply"


def test_a_line_that_never_ends_is_an_error_before_it_fills_the_memory():
    parser = EventParser(max_line_bytes=1000)
    parser.feed(b"data: " + b"x" * 994)
    with pytest.raises(WorkerError, match=facts("1000")):
        parser.feed(b"x")
