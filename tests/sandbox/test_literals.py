"""Values cross as literals: plain ones whole, everything else as a handle."""

from __future__ import annotations

import collections
import math
import os
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dirigent.sandbox.inside.literals import Handle, Malformed, decode, encode, read_frame

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
)
hashables = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner) | st.sets(hashables) | st.dictionaries(hashables, inner),
    max_leaves=20,
)


def refuse(value: Any) -> int:
    pytest.fail(f"{value!r} became a handle")


@settings(max_examples=50, deadline=None)
@given(values)
def test_a_plain_value_arrives_as_it_was(value: Any) -> None:
    arrived = decode(encode(value, keep=refuse), kept=Handle)
    assert arrived == value
    assert type(arrived) is type(value)


def test_numbers_without_a_literal_arrive_too() -> None:
    assert math.isnan(decode(encode(math.nan, keep=refuse), kept=Handle))
    assert decode(encode([math.inf, -math.inf, 10**9000], keep=refuse), kept=Handle) == [math.inf, -math.inf, 10**9000]


class Sly(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_a_subclass_arrives_as_its_base_class() -> None:
    for value, plain in [
        (Sly(3), 3),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.OrderedDict(a=1), {"a": 1}),
    ]:
        arrived = decode(encode(value, keep=refuse), kept=Handle)
        assert (type(arrived), arrived) == (type(plain), plain)


def test_anything_else_stays_and_is_named_by_number() -> None:
    kept: list[object] = []

    def keep(value: object) -> int:
        kept.append(value)
        return 7

    arrived = decode(encode([object()], keep=keep), kept=Handle)
    assert arrived[0].number == 7
    assert len(kept) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f()",
        "[1]",
        "{1: 2}",
        "('list'",
        "('nothing', 1)",
        "()",
        "('set', ('list',))",
        "('kept',)",
        "(" * 300,
        "1 +",
    ],
)
def test_a_text_that_is_not_a_value_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        decode(text, kept=Handle)


@pytest.mark.parametrize(
    "data", [b"", b"1234", struct.pack(">Q", 5) + b"abc", struct.pack(">Q", 1 << 60), struct.pack(">Q", 1) + b"\xff"]
)
def test_a_broken_frame_is_malformed(data: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    with pytest.raises(Malformed):
        read_frame(reading)
    os.close(reading)
