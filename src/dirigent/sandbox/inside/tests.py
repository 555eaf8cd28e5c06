"""The tests' side: run test code against stand-ins that call the answer in its own sandbox.

The verdict leaves over a pipe that only this process and the grader hold. "passed" needs three things: the test code
ran to its end, it called the answer at least once, and the answer followed the protocol throughout. So a test's own
`except` cannot turn a dead answer into a right one.
"""

from __future__ import annotations

import os

from dirigent.sandbox.inside.channel import READY, take_over
from dirigent.sandbox.inside.literals import (
    MAX_JOB_BYTES,
    Handle,
    Malformed,
    decode,
    encode,
    read_frame,
    write_frame,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Exceptions that a test may expect. StopIteration is missing: raised out of `map(answer, inputs)` it would end the loop
# early, and `all(...)` over nothing is true. AssertionError is missing: it is the tests' own verdict.
RAISABLE = {
    kind.__name__: kind
    for kind in (
        ArithmeticError,
        AttributeError,
        IndexError,
        KeyError,
        LookupError,
        MemoryError,
        NameError,
        NotImplementedError,
        OverflowError,
        RecursionError,
        RuntimeError,
        SyntaxError,
        TypeError,
        UnboundLocalError,
        UnicodeError,
        ValueError,
        ZeroDivisionError,
    )
}


def main() -> None:
    jobs, verdicts = take_over()
    job = decode(read_frame(jobs, most=MAX_JOB_BYTES), kept=Handle)
    line = Line(calls=job["calls"], replies=job["replies"])
    lost = os.read(job["replies"], len(READY)) != READY
    failure = "the answer's sandbox did not start" if lost else _failure(job, line)
    verdict = {"passed": failure is None, "why": (failure or "")[:1000], "lost": lost}
    write_frame(verdicts, encode(verdict, keep=_no_handles))
    os._exit(0)


def _failure(job: dict[str, Any], line: Line) -> str | None:
    """Returns what went wrong, or None."""
    try:
        line.define(job["source"])
        namespace: dict[str, Any] = {"__name__": "tests"}
        exec(compile(job["preamble"], "<preamble>", "exec"), namespace)
        namespace |= {name: line.stand_in(name) for name in job["names"]}
        exec(compile(job["tests"], "<tests>", "exec"), namespace)
    except Malformed as error:
        return str(error)
    except BaseException as error:
        return _message(error)
    if line.broken:
        return line.broken
    return None if line.called else "the tests never called the answer"


class Line:
    """The pipe to the answer."""

    def __init__(self, *, calls: int, replies: int) -> None:
        self._calls, self._replies = calls, replies
        self.called = 0
        self.broken = ""

    def define(self, source: str) -> None:
        self._exchange(source)

    def stand_in(self, name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self.called += 1
            return self._exchange(("call", name, arguments, keywords))

        call.__name__ = name
        return call

    def items(self, handle: Handle) -> Any:
        return self._exchange(("items", handle, (), {}))

    def _exchange(self, message: Any) -> Any:
        if self.broken:
            raise Malformed(self.broken)
        request = encode(message, keep=_no_handles)
        try:
            write_frame(self._calls, request)
            reply = decode(read_frame(self._replies), kept=lambda number: Held(number, self))
            return _value(reply)
        except (Malformed, BrokenPipeError) as error:
            self.broken = str(error) if isinstance(error, Malformed) else "the program ended before it was called"
            raise Malformed(self.broken) from None


class Held(Handle):
    """A value that the answer holds: the tests can pass it back or iterate it. It equals only itself."""

    def __init__(self, number: int, line: Line) -> None:
        super().__init__(number)
        self._line = line

    def __iter__(self) -> Any:
        return iter(self._line.items(self))


def _value(reply: Any) -> Any:
    if type(reply) is tuple and len(reply) == 2 and reply[0] == "value":
        return reply[1]
    if type(reply) is tuple and len(reply) == 3 and reply[0] == "raised" and all(type(part) is str for part in reply):
        raise RAISABLE.get(reply[1], RuntimeError)(f"{reply[1]}: {reply[2]}")
    raise Malformed("a reply that is neither a value nor an error")


def _no_handles(value: Any) -> int:
    raise TypeError(f"a test passes a {type(value).__name__}, which has no literal")


def _message(error: BaseException) -> str:
    line = getattr(error.__traceback__ and _last(error.__traceback__), "tb_lineno", 0)
    return f"{type(error).__name__} in line {line} of the tests: {error}"


def _last(traceback: Any) -> Any:
    """Returns the innermost line of the test code itself."""
    found = traceback
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<tests>":
            found = traceback
        traceback = traceback.tb_next
    return found
