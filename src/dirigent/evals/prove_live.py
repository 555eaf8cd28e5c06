"""Prove live: planners answer a user's questions over the user's pool, as they would be served.

Every worker has answered the same questions for a table (`learn/calibrate.py`), from which `prove.py` replays each
price of the policy, the fixed plans and the votes without paying again. Planners whose plans no table holds are asked
here: each question is one `Conductor.run`. Outcomes are recorded as they come, so a run that was cut goes on where it
was.

A planner decides on the question as it was written. Its workers read the form in which the answer must close too, as
they did for the table. Questions that the policy learned from are not asked.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dirigent.config.runtime import Runtime
from dirigent.errors import ConfigError
from dirigent.evals.entries import Entry, PoolFor, ask_entries
from dirigent.evals.prove import Live, LiveRun, unseen
from dirigent.evals.record import Record, digest
from dirigent.learn.policy import Policy
from dirigent.learn.question_file import CalibrationQuestion
from dirigent.learn.table import Question, Table, Unit, cost_in
from dirigent.limits import Budget
from dirigent.messages import Observe, conversation, ignore
from dirigent.plan.planner import Brief, Draft, Planner
from dirigent.planners import planner as planner_named
from dirigent.planners.spec import PlannerFor
from dirigent.sandbox import Sandbox
from dirigent.tasks.answers import closing_form
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool

USUAL_PLANNERS = ("learned", "language")
USUAL_CALLS = 3
"""Assumed of a run before it starts: its calls, plans included."""
RUNS = "runs.jsonl"
MOST_STEPS = 11
"""As many as `dirigent init` allows a learned plan."""


def checked(rows: Sequence[CalibrationQuestion], policy: Policy, planners: Sequence[str]) -> list[CalibrationQuestion]:
    """Returns the questions that can prove something; without any, raises ConfigError before anything is paid."""
    if unlabelled := sum(not row.labelled or row.question.grader is None for row in rows):
        raise ConfigError(
            f"{unlabelled} of {len(rows)} questions have no answer to grade by; a proof needs one for each"
        )
    for name in planners:
        if planner_named(name).make is None:
            raise ConfigError(f'planner "{name}" cannot serve; `dirigent eval` compares it')
    if not (new := unseen(policy, rows, text=lambda row: row.question.text)):
        raise ConfigError("the policy learned from every question; prove it on others")
    return new


async def run_live(
    planners: Sequence[str],
    table: Table,
    runtime: Runtime,
    *,
    folder: Path,
    out: Path,
    spent_usd: float = 0.0,
    max_cost_usd: float | None = None,
    concurrency: int = 4,
    sandbox: Sandbox | None = None,
    observe: Observe = ignore,
) -> list[Live]:
    """Returns what each planner did on the table's questions; runs that the cost cap refused are missing."""
    policy = Policy.load(folder)
    questions = unseen(policy, table.questions, text=lambda question: question.text)
    tasks = [_task(question) for question in questions]
    texts = {question.id: question.text for question in questions}
    unit: Unit = msgspec.convert(table.unit, Unit)
    budget = Budget(max_cost_usd=max_cost_usd, what="the proof")
    about = {
        "questions": digest(tasks),
        "pool": ", ".join(f"{info.name}={info.fingerprint}" for info in runtime.pool.infos),
        "policy": f"version {policy.version}, {policy.active}",
    }
    found = []
    with Record.open(out / RUNS, about, resume=(out / RUNS).is_file()) as record:
        budget.spent_usd = spent_usd + record.cost_usd
        for name in planners:
            conductor = runtime.conductor(_profile(name, runtime), changes=_changes(name, policy, folder))
            entry = Entry(name, _bare(conductor.planner, texts))
            outcomes = await ask_entries(
                [entry],
                tasks,
                pool_for=_always(conductor.pool),
                record=record,
                limits=conductor.limits,
                concurrency=concurrency,
                budget=budget,
                sandbox=sandbox,
                observe=observe,
            )
            runs = {
                outcome.task: LiveRun(
                    right=outcome.value,
                    cost=cost_in(
                        unit,
                        cost_usd=outcome.cost_usd,
                        seconds=outcome.seconds,
                        input_tokens=outcome.input_tokens,
                        output_tokens=outcome.output_tokens,
                    ),
                    calls=outcome.calls,
                    seconds=outcome.seconds,
                )
                for outcome in outcomes
                if not outcome.failed
            }
            found.append(Live(name, runs))
    return found


def expected_usd(planners: Sequence[str], table: Table) -> float:
    """Returns what asking the planners may take, if each run makes a few calls of the mean cost of the table's."""
    if table.unit != "usd":
        return 0.0
    mean_usd = statistics.fmean(answer.cost for answer in table.answers)
    return len(table.questions) * len(planners) * USUAL_CALLS * mean_usd


def _task(question: Question) -> Task:
    assert question.grader is not None  # `checked`
    asked = closing_form(question.text, question.grader)
    return Task(question.id, asked, question.answer, grader=question.grader, kind=question.kind)


def _profile(name: str, runtime: Runtime) -> str:
    """The first profile with this planner, so that its own settings count; empty for the default profile."""
    return next((key for key, profile in runtime.config.profile.items() if profile.planner == name), "")


def _changes(name: str, policy: Policy, folder: Path) -> dict[str, Any]:
    """The settings of the planner, where no profile is its own: the best single worker plans, or answers."""
    spec = planner_named(name)
    if spec.by_policy:
        return {"planner": name, "policy": str(folder.resolve()), "max_steps": MOST_STEPS}
    if spec.planned_by == "trained worker":
        return {}
    return {"planner": name, "planner_worker": policy.baseline}


def _always(pool: Pool) -> PoolFor:
    return lambda task, repeat: pool


def _bare(planner: Planner, texts: Mapping[str, str]) -> PlannerFor:
    return lambda task, pool: _Bare(planner, texts[task.id])


class _Bare:
    """Shows a planner the question without the form in which answers must close."""

    def __init__(self, planner: Planner, text: str) -> None:
        self.name = planner.name
        self._planner = planner
        self._question = conversation(text)

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        return await self._planner.draft(msgspec.structs.replace(brief, question=self._question), observe=observe)
