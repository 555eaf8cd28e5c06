"""Values as text between two sandboxes: Python literals in both directions, never objects with behaviour.

A scalar is its own literal. A container is a tuple that starts with its kind, so `[1, (2,)]` is `('list', 1, ('tuple',
2))`. Any other value stays in its process and travels as a numbered `Handle`. So a value that overrides equality
arrives as a handle that equals only itself, or as the plain value it derives from.

The module runs inside the sandbox, under the system's Python. It imports little of the standard library and nothing
else, because two interpreters start for every graded answer (`ast`, `json` and `typing` cost 10 ms).
"""

from __future__ import annotations

import _ast
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_FRAME_BYTES = 4 * 1024 * 1024

MAX_JOB_BYTES = 64 * 1024 * 1024
"""The most bytes that the grader itself sends: contest problems bring tests of many megabytes, which are no attack."""


class Handle:
    """A value that the other side holds."""

    def __init__(self, number: int) -> None:
        self.number = number


class Malformed(BaseException):
    """The other side breaks the protocol. It is not an Exception, so no test's `except` can catch it."""


def encode(value: Any, *, keep: Callable[[Any], int]) -> str:
    """Returns a value as text. `keep` stores a value without a literal and returns its number."""
    if value is None or value is True or value is False or value is Ellipsis:
        return repr(value)
    if isinstance(value, Handle):
        return f"('kept', {int(value.number)})"
    if isinstance(value, int):
        number = int.__add__(value, 0)
        return hex(number) if number.bit_length() > 64 else repr(number)
    if isinstance(value, float):
        return _float(float.__add__(value, 0.0))
    if isinstance(value, complex):
        return f"('complex', {_float(value.real)}, {_float(value.imag)})"
    if isinstance(value, str):
        return ascii(str.__str__(value))
    if isinstance(value, (bytes, bytearray)):
        return f"('{'bytes' if isinstance(value, bytes) else 'bytearray'}', {bytes(value)!r})"
    return _container(value, keep=keep)


def decode(text: str, *, kept: Callable[[int], Any]) -> Any:
    """Returns the value of a text. `kept` returns the value of a number on this side."""
    try:
        return _build(compile(text, "<value>", "eval", _ast.PyCF_ONLY_AST).body, kept)  # type: ignore[attr-defined]
    except (ValueError, SyntaxError, TypeError, LookupError, MemoryError, RecursionError, OverflowError) as error:
        raise Malformed(f"not a value: {type(error).__name__}") from None


def write_frame(fd: int, text: str) -> None:
    data = text.encode()
    if len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"a value of {len(data)} bytes is more than {MAX_FRAME_BYTES}")
    left = memoryview(len(data).to_bytes(8, "big") + data)
    while left:
        left = left[os.write(fd, left) :]


def read_frame(fd: int, *, most: int = MAX_FRAME_BYTES) -> str:
    size = int.from_bytes(_exactly(fd, 8), "big")
    if size > most:
        raise Malformed(f"a value of {size} bytes is more than {most}")
    try:
        return _exactly(fd, size).decode()
    except UnicodeDecodeError:
        raise Malformed("not text") from None


def _float(value: float) -> str:
    if value != value:
        return "('nan',)"
    return repr(value).replace("inf", "1e999")


def _container(value: Any, *, keep: Callable[[Any], int]) -> str:
    for kind, name in ((list, "list"), (tuple, "tuple"), (frozenset, "frozenset"), (set, "set")):
        if isinstance(value, kind):
            return _tuple(name, [encode(item, keep=keep) for item in value])
    if isinstance(value, dict):
        return _tuple("dict", [encode(part, keep=keep) for pair in value.items() for part in pair])
    return f"('kept', {keep(value)})"


def _tuple(name: str, parts: list[str]) -> str:
    return "(" + ", ".join([repr(name), *parts]) + ",)"


def _build(node: Any, kept: Callable[[int], Any]) -> Any:
    """Builds a value. Only constants, negative numbers and tuples that start with a kind have a meaning."""
    if isinstance(node, _ast.Constant):
        return node.value
    if isinstance(node, _ast.UnaryOp) and isinstance(node.op, _ast.USub) and isinstance(node.operand, _ast.Constant):
        return -node.operand.value  # type: ignore[operator]
    if not isinstance(node, _ast.Tuple):
        raise ValueError(f"no value: {type(node).__name__}")
    kind, *items = [_build(item, kept) for item in node.elts]
    if kind == "kept":
        return kept(int(items[0]))
    if kind == "nan":
        return float("nan")
    if kind == "complex":
        return complex(float(items[0]), float(items[1]))
    if kind in ("bytes", "bytearray"):
        return bytes(items[0]) if kind == "bytes" else bytearray(items[0])
    if kind == "dict":
        return dict(zip(items[::2], items[1::2]))  # noqa: B905 - `strict` is newer than the oldest Python inside
    makers: dict[Any, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    if kind not in makers:
        raise ValueError(f"no kind {kind!r}")
    return makers[kind](items)


def _exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 16))
        if not part:
            raise Malformed("the program ended before it answered")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
