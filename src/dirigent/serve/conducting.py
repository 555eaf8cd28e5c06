"""One request's run: within the caller's means, kept in the store whatever becomes of it, and counted.

The trace is committed before the caller gets the last byte, so whoever was answered can find the run. A
caller who goes away cancels the run; what was done and paid until then is kept as `cancelled`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, DirigentError
from dirigent.estimate import estimate
from dirigent.messages import Event, Message, Observe, Request, ignore
from dirigent.plan import critical_path
from dirigent.serve.models import check_abilities
from dirigent.serve.problems import Problem, problem_of, problem_of_run
from dirigent.serve.service import Service
from dirigent.serve.translate import options_of, planned_steps, question_of, report_of
from dirigent.serve.wire import ChatRequest, DryRun, Estimated, Extension, RunReport
from dirigent.store.keys import Caller
from dirigent.store.ledger import StoreLedger
from dirigent.trace import RunEnded, Trace


class Ask(msgspec.Struct, frozen=True):
    """A request that was read, checked and given its conductor; nobody has been asked yet."""

    chat: ChatRequest
    question: tuple[Message, ...]
    conductor: Conductor
    options: Request
    run_id: str
    began: float

    @property
    def extension(self) -> Extension:
        return self.chat.dirigent or Extension()

    def report(self, trace: Trace) -> RunReport:
        return report_of(trace, seconds=time.monotonic() - self.began, whole=bool(self.extension.trace))


def prepare(service: Service, chat: ChatRequest, *, caller: Caller, began: float) -> Ask:
    """Everything that can be refused without paying anyone is refused here."""
    question, options = question_of(chat), options_of(chat)
    extension = chat.dirigent or Extension()
    conductor = service.models.conductor(chat.model, caller=caller, extension=extension, options=options)
    check_abilities(conductor, question, options)
    run_id = secrets.token_hex(8)
    ledger = StoreLedger(service.store, caller=caller, run_id=run_id)
    return Ask(chat, question, conductor, msgspec.structs.replace(options, ledger=ledger), run_id, began)


async def conducted(service: Service, ask: Ask, *, observe: Observe = ignore, stream: bool = False) -> Trace:
    """Run and keep. Raises a `Problem` where the run failed."""
    ended: list[Trace] = []

    def watch(event: Event) -> None:
        if isinstance(event, RunEnded):
            ended.append(event.trace)
        observe(event)

    try:
        trace = await ask.conductor.run(
            ask.question, options=ask.options, observe=watch, stream=stream, run_id=ask.run_id
        )
    except ConfigError as error:
        raise Problem(400, str(error), code="not_possible", param="dirigent.max_cost_usd") from None
    finally:
        for kept in ended:
            service.metrics.count_run(kept, model=ask.chat.model, seconds=time.monotonic() - ask.began)
            await _to_the_end(_keep(service, kept))
    if trace.status != "done":
        raise problem_of_run(trace, headers=headers_of(ask.report(trace)))
    return trace


async def drafted(service: Service, ask: Ask) -> DryRun:
    """The plan and its price, without carrying it out."""
    try:
        found = await ask.conductor.draft(ask.question, options=ask.options)
    except DirigentError as error:
        raise problem_of(error) from None
    assert found.plan is not None  # `draft` raises where there is none
    try:
        cost = estimate(found.plan, ask.conductor.pool, ask.question, limits=ask.conductor.limits)
        estimated = Estimated(cost.low_usd, cost.high_usd)
    except ConfigError:
        estimated = None  # a worker without a price
    return DryRun(
        model=ask.chat.model,
        planner=ask.conductor.planner.name,
        steps=planned_steps(found.plan),
        critical_path=critical_path(found.plan),
        fallback=found.fallback,
        estimate=estimated,
        cost_usd=sum(attempt.cost_usd for draft in found.drafts for attempt in draft.attempts),
    )


def headers_of(report: RunReport) -> dict[str, str]:
    """What every reply says of its run."""
    return {
        "X-Dirigent-Trace-Id": report.trace_id,
        "X-Dirigent-Cost-USD": f"{report.cost_usd:.9f}",
        "X-Dirigent-Overhead-Ms": f"{report.overhead_ms:.3f}",
    }


async def _keep(service: Service, trace: Trace) -> None:
    try:
        await service.store.save(trace)
    except DirigentError as error:
        raise problem_of(error) from error


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something that must not be left half done when its caller is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
