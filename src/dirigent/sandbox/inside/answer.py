"""The answer's side: define what the model wrote, then be called, over a pipe, for as long as the tests like.

Everything here is in the candidate's hands: it may overwrite any of it. That gains it nothing. What it sees are the
arguments of its calls; what it can send are plain values, which is what a solution sends; the expected outputs and the
verdict are in another sandbox.
"""

from __future__ import annotations

import itertools
import os
import sys

from dirigent.sandbox.inside.channel import take_over
from dirigent.sandbox.inside.literals import decode, encode, read_frame, write_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from typing import Any

MAX_ITEMS = 100_000


def main() -> None:
    calls, replies = take_over()
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    source = decode(read_frame(calls), kept=kept.__getitem__)
    try:
        module = _define(source)
    except BaseException as error:  # whatever it raises, SystemExit too, is an answer to be judged
        write_frame(replies, _raised(error))
        os._exit(0)
    write_frame(replies, encode(("value", None), keep=keep))
    while True:
        request = decode(read_frame(calls), kept=kept.__getitem__)
        try:
            reply = encode(("value", _do(module, request)), keep=keep)
            write_frame(replies, reply)
        except BaseException as error:
            write_frame(replies, _raised(error))


def _define(source: str) -> types.ModuleType:
    """As an imported module, so that `if __name__ == "__main__"` does not run and dataclasses find their home."""
    module = type(sys)("answer")
    sys.modules["answer"] = module
    exec(compile(source, "<answer>", "exec"), module.__dict__)
    return module


def _do(module: types.ModuleType, request: Any) -> Any:
    verb, target, arguments, keywords = request
    if verb == "call":
        return getattr(module, target)(*arguments, **keywords)
    if verb == "items":
        return list(itertools.islice(iter(target), MAX_ITEMS))
    raise ValueError(f"no verb {verb!r}")


def _raised(error: BaseException) -> str:
    try:
        said = str(error)[:500]
    except BaseException:
        said = "(its text cannot be read)"
    return encode(("raised", type(error).__name__, said), keep=lambda _: 0)
