"""From a request to a run: rules, guardrails, conductor, ledger, and the state that it continues from.

run = prepare(service, asked, caller=caller, began=began)  # refuses a bad request before any worker is paid
await resume(run)                                          # continues the run that waits for these tool results
trace = await run.wait()                                   # or `await begin(run, purpose={…})`: no caller waits
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, DirigentError, PlanError, StoreError
from dirigent.plan.plan import Plan, Step, check_plan, critical_path
from dirigent.planners.fixed import Fixed
from dirigent.run.cost_estimate import estimate
from dirigent.run.resume import RunState
from dirigent.serve.http.errors import Problem, problem_of
from dirigent.serve.policy.admission import Place
from dirigent.serve.policy.guardrails import check_request
from dirigent.serve.policy.models import check_abilities
from dirigent.serve.policy.routing_rules import recorded, rule_for
from dirigent.serve.runs.asked import Asked, GivenPlan
from dirigent.serve.runs.conversation import conversation_names
from dirigent.serve.runs.handle import Run, settled
from dirigent.serve.runs.report import DryRun, Estimated, planned_steps
from dirigent.serve.runs.resume import NOT_RESUMED, going_on, kept, referenced_run, take_up, waiting_run
from dirigent.serve.service import Service
from dirigent.store import run_states
from dirigent.store.idempotency import Begun
from dirigent.store.keys import Caller
from dirigent.store.ledger import StoreLedger


def prepare(service: Service, asked: Asked, *, caller: Caller, began: float, run_id: str = "") -> Run:
    """Returns a run that was checked and has its conductor. No worker has been paid yet."""
    config = service.runtime.config
    check_request(asked, config.guardrails)
    rule = rule_for(config.override, asked, caller=caller)
    conductor = service.models.conductor(asked, caller=caller, rule=rule)
    if asked.dirigent.plan is not None:
        conductor = planned_by_caller(conductor, asked.dirigent.plan)
    check_abilities(conductor, asked)
    id = run_id or os.urandom(8).hex()
    ledger = StoreLedger(service.store, caller=caller, run_id=id, labels=asked.labels)
    names = conversation_names(asked, key_id=caller.key_id)
    warm = service.conversations.warm(names)
    options = msgspec.structs.replace(asked.options, ledger=ledger, tenant=caller.key_id, warm=warm)
    return Run(
        service,
        asked,
        id=id,
        conductor=conductor,
        options=options,
        caller=caller,
        began=began,
        rule=rule,
        conversation=names,
    )


def planned_by_caller(conductor: Conductor, given: GivenPlan) -> Conductor:
    """The conductor that carries out a caller's plan, within the pool and the limits that the caller has."""
    limits = msgspec.structs.replace(conductor.limits, max_rounds=1)
    steps = tuple(Step(step.worker, step.subtask, step.access) for step in given.steps)
    plan = Plan(steps, until=given.until)
    try:
        plan = check_plan(plan, conductor.pool, limits)
    except PlanError as error:
        raise Problem(400, str(error), code="plan", param="dirigent.plan") from None
    return Conductor(
        Fixed(plan, name="given"),
        conductor.pool,
        limits=limits,
        repairs=0,
        reassign=conductor.reassign,
        profile=conductor.profile,
        notes=(*conductor.notes, "the caller gave the plan"),
    )


async def resume(run: Run) -> None:
    """Continues the run that waits for these tool results. A request without such results does not change."""
    id = referenced_run(run.asked.question)
    if id is None:
        return
    store, caller, workers = run.service.store, run.caller, run.conductor.pool.names
    try:
        run.waiting = await waiting_run(store, id, run.asked, key_id=caller.key_id, workers=workers)
    except StoreError as error:
        raise problem_of(error) from error
    run.resumed = run.waiting is not None
    if run.waiting is None:
        fresh = run.conductor.begin(run.asked.question, run_id=run.id)
        trace = msgspec.structs.replace(fresh.trace, notes=(*fresh.trace.notes, NOT_RESUMED))
        run.state = RunState(trace, fresh.secret)
        return
    run.id = id
    run.state = going_on(run.waiting.kept, run.asked.question)
    ledger = StoreLedger(store, caller=caller, run_id=id, labels=run.asked.labels)
    run.options = msgspec.structs.replace(run.options, ledger=ledger)


async def begin(
    run: Run, *, purpose: Mapping[str, str], place: Place | None = None, begun: Begun | None = None
) -> None:
    """Starts a run without a waiting caller. It is in the store when this returns.

    The run leaves `place` when it is over. `begun` names the claim on an Idempotency-Key that it is begun for: the same
    request, sent again, then finds the run.
    """
    store = run.service.store
    state = run.state or run.conductor.begin(run.asked.question, run_id=run.id)
    asked = msgspec.structs.replace(run.asked, stream=False, stream_usage=False)
    run.body = msgspec.structs.replace(kept(state, run.asked), asked=asked, purpose=dict(purpose))
    if run.rule is not None:
        await recorded(store, run.rule, caller=run.caller, model=run.asked.model, run_id=run.id)
    if run.waiting is not None:
        await take_up(store, run.waiting)
        await run_states.keep_trace(store, state.trace)  # the trace of a failed try is not the end of this run
        await run_states.journal(store, run.id, body=run.body, begun=begun)
    else:
        await run_states.begin(store, run.id, key_id=run.caller.key_id, body=run.body, begun=begun)
    run.place = place
    run.start()


async def drafted(run: Run) -> DryRun:
    """The plan and its price. No worker carries it out."""
    conductor: Conductor = run.conductor
    try:
        found = await conductor.draft(run.asked.question, options=run.options)
    except DirigentError as error:
        raise problem_of(error) from None
    finally:
        await settled(run.options)  # there is no trace whose commit would wait for the costs
    assert found.plan is not None  # `draft` raises if there is none
    attempts = [attempt for draft in found.drafts for attempt in draft.attempts]
    run.service.metrics.count_calls(attempts)
    try:
        cost = estimate(found.plan, conductor.pool, run.asked.question, limits=conductor.limits)
        estimated = Estimated(cost.low_usd, cost.high_usd)
        shares = tuple(Estimated(step.low_usd, step.high_usd) for step in cost.steps)
    except ConfigError:
        estimated, shares = None, ()  # a worker without a price
    return DryRun(
        model=run.asked.model,
        planner=conductor.planner.name,
        why="" if found.drafts[-1].reason is None else found.drafts[-1].reason.why,
        steps=planned_steps(found.plan),
        until=found.plan.until,
        critical_path=critical_path(found.plan),
        fallback=found.fallback,
        estimate=estimated,
        cost_usd=sum(attempt.cost_usd for attempt in attempts),
        step_estimates=shares,
    )
