"""The request of one step: its messages, settings, deadline and budget, and the worker that could replace its own.

The caller's settings are narrowed to the step: its messages hold only results that the plan lets it read, tools go to
workers that can call them, the answer's shape is the last step's alone, and deadline and budget are the tighter of the
step's and the run's. Apart from the clock, these are pure functions. `execution.py` decides when a step is asked, and
handles its reply.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from dirigent.limits import Budget, Ledger, Limits
from dirigent.messages import Message, Request, Result, asked_text
from dirigent.plan.plan import EarlierStep, Plan
from dirigent.run.step_prompt import step_messages
from dirigent.run.trace import StepRecord
from dirigent.workers.pool import substitute
from dirigent.workers.worker import Worker, WorkerInfo, needed

CHOICE_S = 0.5
"""Seconds that the steps of a plan with `until` leave its last step, of a run of 10 s or more."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that hold for every step of one execution."""

    plan: Plan
    workers: Mapping[str, Worker]
    question: tuple[Message, ...]
    earlier: tuple[EarlierStep, ...]
    """Every step of the rounds before."""
    limits: Limits
    options: Request
    """The caller's sampling settings, tools and schema."""
    secret: str
    """The marks around data are derived from it."""
    ledger: Ledger | None
    started: float
    """When the run began, on the monotonic clock."""

    def is_last(self, index: int) -> bool:
        return index == self.plan.last

    def answers(self, index: int) -> bool:
        """Whether the step writes a text that may be the answer: the last step, or each that it selects from."""
        last = self.plan.steps[-1]
        if self.workers[last.worker].info.selects:
            return index in last.access
        return self.is_last(index)


def step_request(
    terms: Terms, record: StepRecord, info: WorkerInfo, *, results: Mapping[int, Result], deadline: float
) -> Request:
    """The caller's settings, narrowed to this step: schema, grammar and stops are for steps that write the answer."""
    index, options = record.index, terms.options
    last = terms.answers(index)
    caps = [terms.limits.max_output_tokens, info.output_tokens, options.max_output_tokens if last else None]
    messages = step_messages(
        terms.question,
        terms.plan,
        index,
        {number: result.text for number, result in results.items()},
        secret=terms.secret,
        earlier=terms.earlier,
        subtask_only=info.subtask_only,
    )
    goes_on = messages == terms.question and (
        bool(record.tool_traffic or options.tools) or any(m.role == "assistant" for m in messages)
    )
    return msgspec.structs.replace(
        options,  # whose other settings hold for every step
        warm=None,
        goes_on=goes_on,
        messages=(*messages, *record.tool_traffic) if record.tool_traffic else messages,
        question=asked_text(terms.question) if info.reads_results else "",
        results=_read_results(terms, index, results),
        tools=options.tools if options.tools and _gets_tools(terms, index, info) else (),
        tool_choice=options.tool_choice if last or options.tool_choice == "none" else "auto",
        schema=options.schema if last else None,
        json_mode=options.json_mode and last,
        grammar=options.grammar if last else "",
        stop=options.stop if last else (),
        max_output_tokens=min(cap for cap in caps if cap is not None),
        # Each step has its own seed: two steps with the same subtask must be free to differ.
        seed=options.seed + index if options.seed is not None and "seed" in info.abilities else None,
        effort=options.effort if "effort" in info.abilities else None,
        deadline=deadline,
        ledger=_step_ledger(terms, record),
    )


def _read_results(terms: Terms, index: int, results: Mapping[int, Result]) -> tuple[Result, ...]:
    """The results on the step's access list, of this round and of earlier ones. Steps without a result are left out."""
    read = []
    for number in terms.plan.step(index).access:
        if number < terms.plan.first:
            step = terms.earlier[number]
            if step.reply.strip():
                read.append(Result(number, step.worker, step.subtask, step.reply, step.ended, step.ran))
        elif number in results:
            read.append(results[number])
    return tuple(read)


def step_deadline(terms: Terms, index: int) -> float:
    """When this step must have ended if it starts now, on the monotonic clock.

    In a plan with `until` the steps before the last leave it the time to choose among the results so far.
    """
    run_deadline = _run_deadline(terms)
    if terms.plan.until is not None and not terms.is_last(index):
        run_deadline -= min(CHOICE_S, terms.limits.deadline_s / 20)
    if terms.limits.step_deadline_s is None:
        return run_deadline
    return min(run_deadline, time.monotonic() + terms.limits.step_deadline_s)


def _run_deadline(terms: Terms) -> float:
    run_deadline = terms.started + terms.limits.deadline_s
    return run_deadline if terms.options.deadline is None else min(run_deadline, terms.options.deadline)


def late_message(terms: Terms, index: int, worker: str, *, deadline: float) -> str:
    """Which deadline a step has just missed, as an error message."""
    limits = terms.limits
    early = terms.plan.until is not None and not terms.is_last(index) and deadline < _run_deadline(terms)
    if early and limits.step_deadline_s is None:
        return f"step {index} ({worker}) took so long that only the time to choose among the results was left"
    if deadline == terms.started + limits.deadline_s:
        return f"the deadline of {limits.deadline_s:g} s passed while step {index} ({worker}) was being asked"
    if deadline == terms.options.deadline:
        return f"the caller's deadline passed while step {index} ({worker}) was being asked"
    return f"step {index} ({worker}) took longer than step_deadline_s = {limits.step_deadline_s:g}"


def substitute_for(terms: Terms, index: int, request: Request, *, tried: Sequence[str]) -> str | None:
    """The name of a worker that can answer this request in place of those tried; None if there is none."""
    needs = needed(request)
    if not terms.answers(index) and not any(message.tool_calls for message in request.messages):
        needs.discard("tools")  # the step may call tools but does not have to
    return substitute(terms.workers, tried=tried, needs=needs, priced=terms.limits.max_cost_usd is not None)


def _gets_tools(terms: Terms, index: int, info: WorkerInfo) -> bool:
    """Whether a step's worker gets the caller's tools.

    Workers that can call tools do. The last worker also does if a tool must be called, or if no other worker can call
    one: it then refuses the request, and a substitute that can call tools takes over.
    """
    if "tools" in info.abilities or not terms.answers(index):
        return "tools" in info.abilities
    if terms.options.tool_choice not in ("auto", "none"):
        return True
    return not any("tools" in terms.workers[step.worker].info.abilities for step in terms.plan.steps)


def _step_ledger(terms: Terms, record: StepRecord) -> Ledger | None:
    cap = terms.limits.max_step_cost_usd
    if cap is None:
        return terms.ledger
    budget = Budget(max_cost_usd=cap, parent=terms.ledger, what=f"step {record.index}")
    budget.spent_usd = record.cost_usd
    return budget
