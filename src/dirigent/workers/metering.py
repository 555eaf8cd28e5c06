"""Metered: every call is reserved in the ledger before it is made and becomes an `Attempt` after it.

This is the only place where money is counted. It knows prices and ledgers but no retries: it is inside the retry
wrapper, so every try is a call of its own on the bill.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

import msgspec

from dirigent.errors import WorkerError
from dirigent.limits import Hold, Quote
from dirigent.messages import (
    Attempt,
    Delta,
    Event,
    Observe,
    Reply,
    Request,
    Usage,
    estimate_tokens,
    ignore,
    well_formed,
)
from dirigent.workers.worker import Worker, Wrapper, layers

log = logging.getLogger(__name__)

IMAGE_TOKENS = 1_500

MESSAGE_TOKENS = 16
"""Tokens of the role, the separators and the template around one message or tool."""


MOST_TOKENS = 100_000_000
"""The highest count of one call: ten times the longest context. More is an error (no store holds 2**63 or more)."""

ROUNDING_USD = 1e-9
"""Ledgers count in billionths of a dollar. Less than one is no overrun."""


class Metered(Wrapper):
    """Enters every call in the request's ledger and gives it an `Attempt`, also if the call fails.

    A call that is cancelled, or breaks off after its first words, is charged for its input and for the text that came,
    by estimate: the provider bills them too. A whole reply that cannot be used is charged by the provider's count. A
    call that costs more than its reservation is charged in full and marked. A worker without a price costs 0 here; the
    conductor refuses such a worker in a run with a cost cap.
    """

    def __init__(self, worker: Worker, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(worker)
        self.keeps_book = True
        self._clock = clock
        if worker.info.price is None:
            log.debug("no price is known for worker %s: its calls count as $0", worker.info.name)

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        if request.max_output_tokens is None or not request.drafts:
            request = _narrowed(request, self.info.output_tokens)
        ledger, hold = request.ledger, None
        if ledger is not None:
            hold = await ledger.reserve(self._quote(request))
            request = _narrowed(request, hold.max_output_tokens)
        watched = Watched(observe)
        started = self._clock()
        attempt = Attempt(self.info.name, 0.0)
        try:
            reply = await self.worker.ask(request, observe=watched.observe)
            self._require_sound(request, reply)
            attempt = self._attempt(_counted(request, reply), started, cost_usd=reply.cost_usd)
        except WorkerError as error:
            if error.usage is not None and _unsound(error.usage):
                error.usage = None
            used = error.usage or (_estimated(request, watched) if watched.chars else Usage())
            attempt = self._attempt(used, started, error=str(error))
            attempt = _marked(attempt, hold) if error.usage else attempt  # an estimate does not prove an overrun
            error.worker = error.worker or self.info.name
            error.attempts = (attempt,)
            raise
        except BaseException as error:
            name = "cancelled" if isinstance(error, asyncio.CancelledError) else f"{type(error).__name__}: {error}"
            attempt = self._attempt(_estimated(request, watched), started, error=name)
            note_attempts(error, (attempt,))
            raise
        finally:
            if ledger is not None and hold is not None:
                ledger.settle(hold, cost_usd=attempt.cost_usd, output_tokens=attempt.usage.output_tokens)
        attempt = _marked(attempt, hold)
        return msgspec.structs.replace(
            reply,
            text=well_formed(reply.text),
            usage=attempt.usage,
            cost_usd=attempt.cost_usd,
            attempts=(attempt,),
            seconds=attempt.seconds,
        )

    def _quote(self, request: Request) -> Quote:
        price = self.info.price
        return Quote(
            worker=self.info.name,
            input_usd=price.most_of_input(most_input_tokens(request)) if price else 0.0,
            output_token_usd=price.output / 1e6 if price else 0.0,
            max_output_tokens=request.max_output_tokens,
            priced=price is not None,
        )

    def _require_sound(self, request: Request, reply: Reply) -> None:
        """Raise if a count or the cost of the reply is negative or no number. The reply came whole, so it is billed."""
        wrong = _unsound(reply.usage)
        if not wrong and not (isinstance(reply.cost_usd, (int, float)) and 0 <= reply.cost_usd < math.inf):
            wrong = f"cost_usd is {reply.cost_usd!r}"
        if wrong:
            error = WorkerError(f"{self.info.name}: the reply cannot be billed: {wrong}", fault="reply")
            error.usage = _counted(request, msgspec.structs.replace(reply, usage=Usage()))
            raise error

    def _attempt(self, usage: Usage, started: float, *, cost_usd: float = 0.0, error: str = "") -> Attempt:
        """Return the record of the call. A cost that the provider states wins over one computed from prices."""
        if not cost_usd and self.info.price is not None:
            cost_usd = self.info.price.of(usage)
        return Attempt(self.info.name, self._clock() - started, usage=usage, cost_usd=cost_usd, error=error)


def _marked(attempt: Attempt, hold: Hold | None) -> Attempt:
    """Mark the attempt if it costs more than its reservation. It is charged in full anyway: that sum is owed."""
    if hold is None:
        return attempt
    granted = hold.max_output_tokens
    too_long = granted is not None and attempt.usage.output_tokens > granted
    overran = too_long or attempt.cost_usd > hold.cost_usd + ROUNDING_USD
    return msgspec.structs.replace(attempt, overran=True) if overran else attempt


def metered(worker: Worker) -> Worker:
    """Return the worker with metering around it; unchanged if one of its layers meters already."""
    for layer in layers(worker):
        if getattr(layer, "keeps_book", False):  # every `Wrapper` of a metered worker says so: usually the first
            return worker
    return Metered(worker)


def most_input_tokens(request: Request) -> int:
    """Return an upper bound of the input's tokens: half its bytes, and fixed counts for the parts that are not text.

    English has about four bytes a token, and other scripts seldom fewer than two, so the reservation suffices.
    """
    count = 0
    for message in request.messages:
        text = message.name + message.text + "".join(call.name + call.arguments for call in message.tool_calls)
        half_bytes = (len(text.encode(errors="replace")) + 1) // 2
        count += MESSAGE_TOKENS + half_bytes + IMAGE_TOKENS * len(message.images)
    for tool in request.tools:
        count += MESSAGE_TOKENS + len(msgspec.json.encode(tool)) // 2
    if request.schema is not None:
        count += MESSAGE_TOKENS + len(msgspec.json.encode(request.schema)) // 2
    return count


def _narrowed(request: Request, max_output_tokens: int | None) -> Request:
    """Return the request with at most this output limit."""
    asked = request.max_output_tokens
    if max_output_tokens is None or (asked is not None and asked <= max_output_tokens):
        return request
    return msgspec.structs.replace(request, max_output_tokens=max_output_tokens)


class Watched:
    """An observer that counts the text it passes on. `ignore` stays `ignore`, so the call is not streamed."""

    def __init__(self, observe: Observe) -> None:
        self.chars = 0
        self._observe = observe
        self.observe: Observe = ignore if observe is ignore else self._pass_on

    def _pass_on(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.chars += len(event.text)
        self._observe(event)


def note_attempts(error: BaseException, attempts: tuple[Attempt, ...]) -> None:
    """Attach attempts to an error. A cancellation has no field for them, but its calls are billed too."""
    error.__dict__["attempts"] = attempts


def attempts_of(error: BaseException | None) -> tuple[Attempt, ...]:
    """Return the attempts attached to an error, if any."""
    attempts: tuple[Attempt, ...] = getattr(error, "attempts", ())
    return attempts


def _counted(request: Request, reply: Reply) -> Usage:
    """Return the provider's count. If it gave none, estimate: a call without tokens would look free."""
    if reply.usage != Usage():
        return reply.usage
    called = "".join(call.name + call.arguments for call in reply.tool_calls)
    return Usage(input_tokens(request), estimate_tokens(reply.text + called))


def _unsound(usage: Usage) -> str:
    """Name the first count that is invalid, with its value; empty if all are valid."""
    counts = msgspec.structs.astuple(usage)
    if {int}.issuperset(map(type, counts)) and min(counts) >= 0 and max(counts) <= MOST_TOKENS:
        return ""
    for name, count in zip(usage.__struct_fields__, counts, strict=True):
        if not (isinstance(count, int) and 0 <= count <= MOST_TOKENS):
            return f"{name} is {count!r}"
    return ""


def _estimated(request: Request, watched: Watched) -> Usage:
    """Return the usage of a call that broke off: its input, and the output that came."""
    return Usage(input_tokens(request), -(-watched.chars // 4))


def input_tokens(request: Request) -> int:
    """Estimate the tokens of a request's input at the usual four characters a token."""
    texts = [message.text for message in request.messages]
    texts += [call.name + call.arguments for message in request.messages for call in message.tool_calls]
    texts += [tool.name + tool.description + str(tool.parameters) for tool in request.tools]
    images = sum(len(message.images) for message in request.messages)
    return sum(map(estimate_tokens, texts)) + images * IMAGE_TOKENS
