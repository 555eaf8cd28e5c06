"""One request's run: within the caller's means, kept in the store whatever becomes of it, and counted.

    ask = prepare(service, chat, caller=caller, began=began)  # refuses what can be refused for nothing
    ask = await resumed(service, ask)                         # a run that waited for these tool results, or the same
    trace = await conducted(service, ask)                     # status `done` or `waiting`; else a `Problem`

The trace is committed before the caller gets the last byte, so whoever was answered can find the run; so is the
state of a run that waits for the caller's tools. A caller who goes away cancels the run; what was done and paid
until then is kept as `cancelled`, and a run that had waited before waits again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, DirigentError, StoreError
from dirigent.run.cost_estimate import estimate
from dirigent.messages import Event, Message, Observe, Request, ignore
from dirigent.plan.plan import critical_path
from dirigent.run.resume import Paused, RunState, taken_back
from dirigent.serve.policy.guardrails import check_request
from dirigent.serve.policy.models import NOTHING_MORE, check_abilities
from dirigent.serve.policy.routing_rules import recorded, rule_for
from dirigent.serve.http.errors import Problem, problem_of, problem_of_run
from dirigent.serve.runs.resume import NOT_RESUMED, Waiting, going_on, kept, referenced_run, take_up, waiting_run
from dirigent.serve.service import Service
from dirigent.serve.apis.chat.translate import options_of, planned_steps, question_of, report_of
from dirigent.serve.apis.chat.wire import ChatRequest, DryRun, Estimated, Extension, RunReport
from dirigent.config.server_settings import Override
from dirigent.store import run_states
from dirigent.store.keys import LOCAL_ADMIN, Caller
from dirigent.store.ledger import StoreLedger
from dirigent.run.trace import RunEnded, Trace


class Ask(msgspec.Struct, frozen=True):
    """A request that was read, checked and given its conductor; nobody has been asked yet."""

    chat: ChatRequest
    question: tuple[Message, ...]
    conductor: Conductor
    options: Request
    run_id: str
    began: float
    caller: Caller = LOCAL_ADMIN
    rule: Override | None = None
    """The operator's rule that bore on it."""
    state: RunState | None = None
    """What the run goes on from, where it does not begin."""
    waiting: Waiting | None = None
    """The run that waited, as it was kept."""
    resumed: bool | None = None
    """Whether the run goes on that the tool results belong to; None where there was none to look for."""

    @property
    def before(self) -> Trace | None:
        """The run as it was when it paused: what a reply says of tokens and cost is what came since."""
        return self.waiting.kept.state.trace if self.waiting is not None else None

    @property
    def extension(self) -> Extension:
        return self.chat.dirigent or NOTHING_MORE

    def report(self, trace: Trace) -> RunReport:
        return report_of(
            trace,
            seconds=time.monotonic() - self.began,
            whole=bool(self.extension.trace),
            before=self.before,
            resumed=self.resumed,
        )


def prepare(service: Service, chat: ChatRequest, *, caller: Caller, began: float, run_id: str = "") -> Ask:
    """Everything that can be refused without paying anyone is refused here."""
    question, options = question_of(chat), options_of(chat)
    extension = chat.dirigent or NOTHING_MORE
    config = service.runtime.config
    check_request(question, config.guardrails)
    rule = rule_for(
        config.override, caller=caller, model=chat.model, question=question, options=options, metadata=chat.metadata
    )
    conductor = service.models.conductor(chat.model, caller=caller, extension=extension, options=options, rule=rule)
    check_abilities(conductor, question, options)
    run_id = run_id or os.urandom(8).hex()
    ledger = StoreLedger(service.store, caller=caller, run_id=run_id)
    options = msgspec.structs.replace(options, ledger=ledger, tenant=caller.key_id)
    return Ask(chat, question, conductor, options, run_id, began, caller, rule)


async def resumed(service: Service, ask: Ask) -> Ask:
    """The ask as the continuation of the run that waits for its tool results; as it is, where it brings none."""
    run_id = referenced_run(ask.question)
    if run_id is None:
        return ask
    workers = ask.conductor.pool.names
    try:
        found = await waiting_run(
            service.store, run_id, ask.question, key_id=ask.caller.key_id, model=ask.chat.model, workers=workers
        )
    except StoreError as error:
        raise problem_of(error) from error
    if found is None:
        fresh = ask.conductor.begin(ask.question, run_id=ask.run_id)
        trace = msgspec.structs.replace(fresh.trace, notes=(*fresh.trace.notes, NOT_RESUMED))
        return msgspec.structs.replace(ask, state=RunState(trace, fresh.secret), resumed=False)
    state = going_on(found.kept, ask.question)
    ledger = StoreLedger(service.store, caller=ask.caller, run_id=run_id)
    options = msgspec.structs.replace(ask.options, ledger=ledger)
    return msgspec.structs.replace(ask, run_id=run_id, options=options, state=state, waiting=found, resumed=True)


async def conducted(service: Service, ask: Ask, *, observe: Observe = ignore, stream: bool = False) -> Trace:
    """Run and keep. Raises a `Problem` where the run failed."""
    if ask.rule is not None:
        await recorded(service.store, ask.rule, caller=ask.caller, model=ask.chat.model, run_id=ask.run_id)
    if ask.waiting is None:
        return await _conducted(service, ask, observe, stream=stream)
    await take_up(service.store, ask.waiting)
    service.resuming.add(ask.run_id)
    try:
        return await _conducted(service, ask, observe, stream=stream)
    finally:
        service.resuming.discard(ask.run_id)


async def _conducted(service: Service, ask: Ask, observe: Observe, *, stream: bool) -> Trace:
    ended: list[Trace] = []
    paused: list[RunState] = []

    def watch(event: Event) -> None:
        if isinstance(event, RunEnded):
            ended.append(event.trace)
        elif isinstance(event, Paused):
            paused.append(event.state)
        for look in service.observers:
            look(event)
        observe(event)

    try:
        trace = await ask.conductor.run(
            ask.question, options=ask.options, observe=watch, stream=stream, run_id=ask.run_id, resume=ask.state
        )
    except ConfigError as error:
        raise Problem(400, str(error), code="not_possible", param="dirigent.max_cost_usd") from None
    finally:
        for last in ended:
            seconds = time.monotonic() - ask.began
            service.metrics.count_run(last, model=ask.chat.model, seconds=seconds, before=ask.before)
            # Not `to_the_end`, which costs a task: what was handed to the store is written whoever waits for it.
            await _keep(service, ask, last, paused)
        if ask.waiting is not None and not ended:
            await to_the_end(run_states.give_back(service.store, ask.run_id))
    if trace.status not in ("done", "waiting"):
        raise problem_of_run(trace, headers=headers_of(ask.report(trace)))
    return trace


async def drafted(service: Service, ask: Ask) -> DryRun:
    """The plan and its price, without carrying it out."""
    try:
        found = await ask.conductor.draft(ask.question, options=ask.options)
    except DirigentError as error:
        raise problem_of(error) from None
    finally:
        await _settled(ask)  # no trace is kept, whose commit would have waited for it
    assert found.plan is not None  # `draft` raises where there is none
    attempts = [attempt for draft in found.drafts for attempt in draft.attempts]
    service.metrics.count_calls(attempts)
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
        cost_usd=sum(attempt.cost_usd for attempt in attempts),
    )


def headers_of(report: RunReport) -> dict[str, str]:
    """What every reply says of its run."""
    return {
        "X-Dirigent-Trace-Id": report.trace_id,
        "X-Dirigent-Cost-USD": f"{report.cost_usd:.9f}",
        "X-Dirigent-Overhead-Ms": f"{report.overhead_ms:.3f}",
        **resumed_header(report.resumed),
    }


def resumed_header(resumed: bool | None) -> dict[str, str]:
    """Said only to callers who brought tool results of a run."""
    return {} if resumed is None else {"X-Dirigent-Resumed": "yes" if resumed else "no"}


async def _keep(service: Service, ask: Ask, trace: Trace, paused: list[RunState]) -> None:
    """The trace, and what becomes of the state: there is one while the run waits."""
    store, key_id = service.store, ask.caller.key_id
    try:
        if paused:
            body = kept(paused[-1], model=ask.chat.model, question=ask.question)
            await run_states.pause(store, trace, key_id=key_id, body=body)
        elif ask.waiting is None:
            await store.save(trace, key_id=key_id)
        elif trace.status == "done":
            await run_states.end(store, trace)
        else:  # the caller may bring the same results again
            before = ask.waiting.kept
            before = msgspec.structs.replace(before, state=taken_back(before.state, trace))
            await run_states.pause(store, trace, key_id=key_id, body=before)
    except DirigentError as error:
        raise problem_of(error) from error
    await _settled(ask)  # in the same commit, as a rule; but it must have worked too


async def _settled(ask: Ask) -> None:
    """What the calls have cost is committed: a kill from here on charges nobody the worst case."""
    if not isinstance(ask.options.ledger, StoreLedger):
        return
    try:
        await ask.options.ledger.settled()
    except DirigentError as error:
        raise problem_of(error) from error


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something that must not be left half done when its caller is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
