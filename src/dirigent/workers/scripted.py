"""Workers that return given replies: for tests, examples and trying out a pool.

`Scripted` returns its replies in turn; `FromFunction` computes its reply. Both are public, so that users can test their
own pools, planners and plans without a model. They store the requests they get, stream word by word to an observer, can
be cancelled at any time, and cut a text that is longer than the request allows, as a model would.

They know nothing of retries or ledgers: `Metered(Scripted("yes", price=...))` is billed like any other worker.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Delta, Observe, Reply, Request, Usage, estimate_tokens, ignore
from dirigent.workers.worker import Price, WorkerInfo

Outcome: TypeAlias = str | Reply | Exception
"""The result of one call: a text, a whole reply, or an error to raise."""

Answerer: TypeAlias = Callable[[Request], Outcome | Awaitable[Outcome]]
"""A plain or async function that returns the outcome for a request."""

WORD = re.compile(r"\s*\S+(?:\s+\Z)?|\s+\Z")
"""A word with the space before it, so that the pieces of a text join to the text."""

KEPT_REQUESTS = 10_000
"""Enough for any test, and bounded, since a scripted worker may be part of a server that runs for long."""


class Scripted:
    """A worker that returns these replies in turn. The last one repeats.

    It waits `delay_s` before the first word and `word_delay_s` after each streamed word. `usage` replaces the estimated
    token counts. Further keywords set other fields of the worker's card (`skills`, `abilities`, `region`,
    `subtask_only`, ...).
    """

    def __init__(
        self,
        *replies: Outcome | Answerer,
        name: str = "scripted",
        about: str = "",
        delay_s: float = 0.0,
        word_delay_s: float = 0.0,
        price: Price | None = None,
        usage: Usage | None = None,
        **card: Any,
    ) -> None:
        if not replies:
            raise ConfigError(f"scripted worker {name!r} has no reply: give it at least one")
        self._info = WorkerInfo(name=name, about=about, price=price, **{"kind": "scripted", **card})
        self._replies = replies
        self._delay_s = delay_s
        self._word_delay_s = word_delay_s
        self._usage = usage
        self.calls = 0
        self.requests: list[Request] = []
        """The requests it got, oldest first (the last 10,000)."""

    @property
    def info(self) -> WorkerInfo:
        return self._info

    @property
    def seen_text(self) -> str:
        """The text of all messages it got."""
        return "\n".join(message.text for request in self.requests for message in request.messages)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.info.name!r}, calls={self.calls})"

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        started = time.monotonic()
        answer = self._replies[min(self.calls, len(self._replies) - 1)]
        self.calls += 1
        self.requests.append(request)
        del self.requests[:-KEPT_REQUESTS]
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        outcome = await _outcome(answer, request)
        if isinstance(outcome, Exception):
            # A repeated WorkerError is copied, since wrappers attach their attempts to it.
            raise copy.copy(outcome) if isinstance(outcome, WorkerError) else outcome
        reply = outcome if isinstance(outcome, Reply) else _cut(outcome, request.max_output_tokens)
        await stream_words(reply.text, observe, pause_s=self._word_delay_s)
        return msgspec.structs.replace(
            reply,
            usage=self._usage or _usage(request, reply),
            seconds=time.monotonic() - started,
            model=reply.model or self.info.model,
        )


class FromFunction(Scripted):
    """A worker made of one plain or async function of the request.

    The function returns a text or a `Reply`. An exception it raises is the worker's failure.
    """

    def __init__(self, function: Answerer, *, name: str = "function", **settings: Any) -> None:
        super().__init__(function, name=name, **{"kind": "function", **settings})

    @classmethod
    def of_text(
        cls,
        function: Callable[[str], Outcome | Awaitable[Outcome]],
        *,
        name: str = "function",
        **settings: Any,
    ) -> FromFunction:
        """A worker made of a function of the last message's text: `FromFunction.of_text(str.upper)`."""
        return cls(lambda request: function(request.messages[-1].text), name=name, **settings)


async def stream_words(text: str, observe: Observe, *, pause_s: float = 0.0) -> None:
    """Send a finished text to an observer word by word."""
    if observe is ignore:
        return
    for word in WORD.findall(text):
        observe(Delta(word))
        await asyncio.sleep(pause_s)


async def _outcome(answer: Outcome | Answerer, request: Request) -> Outcome:
    outcome: Any = answer
    if callable(outcome):
        outcome = outcome(request)
    if inspect.isawaitable(outcome):
        outcome = await outcome
    if isinstance(outcome, str | Reply | Exception):
        return outcome
    raise TypeError(f"a scripted reply must be a str, Reply or Exception, not {outcome!r}")


def _cut(text: str, max_output_tokens: int | None) -> Reply:
    if max_output_tokens is None or estimate_tokens(text) <= max_output_tokens:
        return Reply(text)
    return Reply(text[: max_output_tokens * 4], finish="length")


def _usage(request: Request, reply: Reply) -> Usage:
    """Return the reply's own usage; an estimate if it has none."""
    if reply.usage != Usage():
        return reply.usage
    asked = sum(estimate_tokens(message.text) for message in request.messages)
    called = sum(estimate_tokens(call.name + call.arguments) for call in reply.tool_calls)
    return Usage(input_tokens=asked, output_tokens=estimate_tokens(reply.text) + called)
