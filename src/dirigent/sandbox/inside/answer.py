"""The answer's side: define the model's code, then serve calls over a pipe until the tests end.

The candidate controls everything here and may overwrite any of it, without gain. It sees only the arguments of its
calls. It can send only plain values, as any solution does. The expected outputs and the verdict are in another sandbox.
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
    except BaseException as error:  # any exception, SystemExit too, is an answer to judge
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
    """Defines an imported module, so `if __name__ == "__main__"` does not run and dataclasses find their module."""
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
