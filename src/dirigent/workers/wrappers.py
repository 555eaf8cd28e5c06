"""The stack of wrappers around a configured worker. Each wrapper adds one behaviour.

`wrap` builds the stack. From the outside in:

    Cached        repeats an earlier answer to the same request (cached.py; only if a cache is set)
    Masked        replaces a live key in a reply by `***`
    Retrying      retries faults that may pass, within the deadline (retrying.py)
    RateLimited   makes each try wait for its turn (ratelimited.py; only if a limit is set)
    Breaker       stops asking an endpoint that keeps failing, for a while (breaker.py)
    Metered       reserves each try in the ledger before the call and settles it after (metering.py)
    the wire      openai, anthropic, gemini, local, ...

So every try is metered and counted by the breaker, a try that has waited for its turn still meets a breaker that
opened meanwhile, and a call that an open breaker refused is never retried. `Defaults` goes around the whole stack.
No wrapper knows about wire formats or plans.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from dirigent.messages import Delta, Effort, Event, Message, Observe, Reply, Request, ToolCall, ignore
from dirigent.workers.breaker import Breaker
from dirigent.workers.cached import Cached
from dirigent.workers.metering import Metered
from dirigent.workers.ratelimited import RateLimited
from dirigent.workers.retrying import Retrying
from dirigent.workers.secret import MASK, live_values
from dirigent.workers.worker import Worker, Wrapper


def wrap(
    worker: Worker,
    *,
    retries: int = 2,
    breaker_rest_s: float = 30.0,
    requests_per_minute: int | None = None,
    concurrency: int | None = None,
    cache: Path | str | MutableMapping[str, bytes] | None = None,
    rng: random.Random | None = None,
) -> Worker:
    """Return the worker inside the standard stack."""
    wrapped: Worker = Breaker(Metered(worker), open_s=breaker_rest_s)
    if requests_per_minute is not None or concurrency is not None:
        wrapped = RateLimited(wrapped, requests_per_minute=requests_per_minute, concurrency=concurrency)
    wrapped = Masked(Retrying(wrapped, retries=retries, rng=rng))
    return wrapped if cache is None else Cached(wrapped, cache)


class Defaults(Wrapper):
    """Completes requests with a configured worker's settings: system line, temperature, effort, output limit.

    A value in the request wins, with two exceptions: the smaller output limit counts, except for a planner's draft,
    which has a limit of its own; and sampling settings that the model refuses are left out.
    """

    def __init__(
        self,
        worker: Worker,
        *,
        system: str = "",
        temperature: float | None = None,
        effort: Effort | None = None,
        max_output_tokens: int | None = None,
        sampling: bool = True,
    ) -> None:
        super().__init__(worker)
        self._system = system
        self._temperature = temperature
        self._effort: Effort | None = effort
        self._max_output_tokens = max_output_tokens
        self._sampling = sampling
        """False: the model refuses temperature and top_p."""

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        changes: dict[str, Any] = {}
        if self._system:
            changes["messages"] = (Message("system", self._system), *request.messages)
        if not self._sampling:
            changes |= {"temperature": None, "top_p": None}
        elif request.temperature is None and self._temperature is not None:
            changes["temperature"] = self._temperature
        if request.effort is None and self._effort is not None:
            changes["effort"] = self._effort
        asked, most = request.max_output_tokens, self._max_output_tokens
        if most is not None and (asked is None or (asked > most and not request.drafts)):
            changes["max_output_tokens"] = most
        if changes:
            request = msgspec.structs.replace(request, **changes)
        return await self.worker.ask(request, observe=observe)


# ---- replies without keys ------------------------------------------------------------------------------------


class Masked(Wrapper):
    """A worker whose replies hold no live key: a reply that quotes one has `***` in its place.

    Providers repeat keys, in an error that a model explains or in a tool call. Traces and errors are redacted when they
    are written; this wrapper redacts the reply for the caller: its text, each streamed piece, and the arguments of tool
    calls. It looks for the exact values of live secrets alone. Text that only looks like a key passes unchanged: a
    caller may have asked for an example of one.

    A piece of a stream is passed on at once, except for an end that a key may begin with. So less than the longest key
    is held back, and usually nothing.
    """

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        values = live_values()
        if not values:
            return await self.worker.ask(request, observe=observe)
        if observe is ignore:
            return _masked_reply(await self.worker.ask(request), values)
        pieces = MaskedPieces(values)

        def pass_on(event: Event) -> None:
            if not isinstance(event, Delta):
                observe(event)
            elif text := pieces.feed(event.text):
                observe(Delta(text))

        reply = await self.worker.ask(request, observe=pass_on)
        if rest := pieces.finish():
            observe(Delta(rest))
        return _masked_reply(reply, values)


class MaskedPieces:
    """Masks a text that comes in pieces. The joined output equals `masked` of the whole text."""

    def __init__(self, values: frozenset[str]) -> None:
        self.held = ""
        """The end of the text so far, if a key may begin there."""
        self._values = values

    def feed(self, piece: str) -> str:
        text, at, out = self.held + piece, 0, ""
        while True:
            hold_at = self._may_begin_at(text, at)
            match = _pattern(self._values).search(text, at) if any(value in text for value in self._values) else None
            if match is None or hold_at <= match.start():
                self.held = text[hold_at:]
                return out + text[at:hold_at]
            out += text[at : match.start()] + MASK
            at = match.end()

    def finish(self) -> str:
        rest, self.held = self.held, ""
        return masked(rest, self._values)

    def _may_begin_at(self, text: str, start: int) -> int:
        """Return the first position at which a key may begin; the length of the text if there is none."""
        first = len(text)
        for value in self._values:
            at = text.find(value[0], max(start, len(text) - len(value) + 1))
            while 0 <= at < first:
                if value.startswith(text[at:]):
                    first = at
                at = text.find(value[0], at + 1)
        return first


def masked(text: str, values: frozenset[str]) -> str:
    """Return the text with `***` in place of each of these values."""
    if not any(value in text for value in values):  # many times faster than the pattern
        return text
    return _pattern(values).sub(MASK, text)


def _masked_reply(reply: Reply, values: frozenset[str]) -> Reply:
    text, reasoning = masked(reply.text, values), masked(reply.reasoning, values)
    calls = tuple(_masked_call(call, values) for call in reply.tool_calls)
    if (text, reasoning, calls) == (reply.text, reply.reasoning, reply.tool_calls):
        return reply
    return msgspec.structs.replace(reply, text=text, reasoning=reasoning, tool_calls=calls)


def _masked_call(call: ToolCall, values: frozenset[str]) -> ToolCall:
    return msgspec.structs.replace(call, arguments=masked(call.arguments, values))


@functools.lru_cache(maxsize=4)
def _pattern(values: frozenset[str]) -> re.Pattern[str]:
    """Longer values first: one key may begin with another."""
    return re.compile("|".join(map(re.escape, sorted(values, key=len, reverse=True))))
