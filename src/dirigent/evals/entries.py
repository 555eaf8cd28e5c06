"""Entries: every entry answers every question, each as one `Conductor.run`, and each answer is graded.

All planners run on the same executor with the same pool for the same question, so they differ only in the plan. There
is no repair, no fallback and no re-assignment: a draft that is not a plan is a wrong answer. No finished question is
paid twice: outcomes are recorded one by one, and a recorded question is not asked. An answer that could not be graded
is recorded, and graded again when the evaluation is resumed.

This module knows no family of tasks: the caller passes the functions that give a question its pool and its planner.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from dirigent.conduct import Conductor
from dirigent.errors import ConfigError, GradeError
from dirigent.evals.record import Inspect, Outcome, Record, graded, outcome_of
from dirigent.limits import Budget, Limits
from dirigent.messages import Event, Observe, Request, ignore
from dirigent.plan.planner import LanguagePlanner
from dirigent.planners.spec import PlannerFor, noise_seed
from dirigent.run.trace import Trace
from dirigent.sandbox import Sandbox
from dirigent.tasks.graders import judge
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool

PoolFor = Callable[[Task, int], Pool]
"""The pool of a question; the number distinguishes repeats of the question, for noisy workers."""

Keep = Callable[[Trace], Awaitable[None]]


class Entry(msgspec.Struct, frozen=True):
    """One row of an evaluation as it is asked: a name, and a planner for each question."""

    name: str
    planner_for: PlannerFor
    repeats: int = 1
    """How often each question is asked; above 1 if the workers are noisy and the mean is wanted."""
    pool_for: PoolFor | None = None
    """A pool of its own, for a worker that is measured whether or not it was offered."""
    wants: Callable[[Task], bool] = lambda task: True
    """Whether it is asked a question."""
    runs: int | None = None
    """Its total number of runs, for observers, if it is asked in parts."""


class Evaluated(Event, frozen=True):
    """A question is done. Recorded questions are observed too, so that progress continues from the cut."""

    outcome: Outcome
    total: int
    """The total number of runs of this entry."""


class OutOfMoney(Event, frozen=True):
    """The cost cap was reached: questions that were not begun are left out."""

    spent_usd: float
    error: str


async def ask_entries(
    entries: Sequence[Entry],
    tasks: Sequence[Task],
    *,
    pool_for: PoolFor,
    record: Record | None = None,
    seed: int = 0,
    limits: Limits = Limits(),
    concurrency: int = 8,
    budget: Budget | None = None,
    sandbox: Sandbox | None = None,
    inspect: Inspect | None = None,
    keep: Keep | None = None,
    observe: Observe = ignore,
    keep_lost: bool = False,
) -> list[Outcome]:
    """The outcomes, entry by entry and question by question; some are missing if the money ran out.

    `budget` caps the cost of all of it; `sandbox` grades code, one for the whole evaluation; `keep` gets every trace;
    `observe` gets an `Evaluated` for each question. With `keep_lost`, a recorded run that was lost is the outcome, and
    is neither asked nor graded again.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency must be 1 or more, not {concurrency}")
    for what, names in (("entries", [e.name for e in entries]), ("tasks", [t.id for t in tasks])):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise ConfigError(f"two {what} are called {twice[0]!r}; outcomes are stored by name")
    jobs = [
        _Job(entry, task, repeat)
        for entry in entries
        for task in tasks
        if entry.wants(task)
        for repeat in range(entry.repeats)
    ]
    asked = Counter(job.entry.name for job in jobs)
    run = _Evaluation(
        pool_for=pool_for,
        record=record or Record(),
        seed=seed,
        limits=limits,
        budget=budget or Budget(),
        sandbox=sandbox,
        inspect=inspect,
        keep=keep,
        observe=observe,
        keep_lost=keep_lost,
        totals={entry.name: asked[entry.name] if entry.runs is None else entry.runs for entry in entries},
    )
    waiting = iter(jobs)
    run.at_work = min(concurrency, len(jobs))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(run.at_work):
                group.create_task(run.work_off(waiting))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # one error is enough to mend; the rest are like it
    done = (run.outcomes.get((job.entry.name, job.task.id, job.repeat)) for job in jobs)
    return [outcome for outcome in done if outcome is not None]


class _Job(msgspec.Struct, frozen=True):
    entry: Entry
    task: Task
    repeat: int


class _Evaluation(msgspec.Struct):
    """The state of one evaluation."""

    pool_for: PoolFor
    record: Record
    seed: int
    limits: Limits
    budget: Budget
    sandbox: Sandbox | None
    inspect: Inspect | None
    keep: Keep | None
    observe: Observe
    keep_lost: bool
    totals: dict[str, int]
    outcomes: dict[tuple[str, str, int], Outcome] = {}
    at_work: int = 1
    """The number of these loops that are running."""
    again: list[_Job] = []
    """Questions that were refused because other runs had reserved the money."""
    alone: bool = False
    out_of_money: bool = False

    async def work_off(self, jobs: Iterator[_Job]) -> None:
        """Runs job after job; several of these share one iterator. If money runs short, one of them continues alone."""
        while not (self.alone and self.at_work > 1) and (job := self._next(jobs)) is not None:
            outcome = self.record.finished(job.entry.name, job.task.id, job.repeat)
            if outcome is None and self.keep_lost:
                outcome = self.record.lost(job.entry.name, job.task.id, job.repeat)
            if outcome is None:
                outcome = await self._regraded(job)
            if outcome is None:
                if self.out_of_money:
                    continue
                outcome = await self._run(job)
                self.record.add(outcome)
                if outcome.error_kind == "CostError":  # the paid part counts; the question must still be asked
                    self._short_of_money(job, outcome)
                    continue
            self.outcomes[outcome.key] = outcome
            self.observe(Evaluated(outcome, self.totals[job.entry.name]))

        self.at_work -= 1

    def _next(self, jobs: Iterator[_Job]) -> _Job | None:
        job = next(jobs, None)
        return self.again.pop() if job is None and self.again and self.at_work == 1 else job

    def _short_of_money(self, job: _Job, outcome: Outcome) -> None:
        """Each call holds its highest possible cost until it is done, so other calls may only hold the money: then the
        question is asked again by one loop that is alone. If that is refused too, the money is spent."""
        if self.at_work > 1:
            self.alone = True
            self.again.append(job)
        elif not self.out_of_money:
            self.out_of_money = True
            self.observe(OutOfMoney(self.budget.spent_usd, outcome.error))

    async def _regraded(self, job: _Job) -> Outcome | None:
        """The outcome of an answer that an earlier run could not grade; None if there is no such answer."""
        outcome = self.record.ungraded(job.entry.name, job.task.id, job.repeat)
        if outcome is None:
            return None
        try:
            outcome = graded(outcome, await judge(job.task, outcome.answer, sandbox=self.sandbox))
        except GradeError:
            return outcome
        self.record.regrade(outcome)
        return outcome

    async def _run(self, job: _Job) -> Outcome:
        """Ask one question and grade the answer."""
        pool = (job.entry.pool_for or self.pool_for)(job.task, job.repeat)
        self._require_prices(pool)
        planner = job.entry.planner_for(job.task, pool)
        conductor = Conductor(planner, pool, limits=self.limits, repairs=0, reassign=False)
        options = Request((), seed=noise_seed(self.seed, job.task, job.repeat), ledger=self.budget)
        trace = await conductor.run(job.task.question, options=options)
        if self.keep is not None:
            await self.keep(trace)
        grade, ungraded = None, ""
        if trace.status == "done":
            try:
                grade = await judge(job.task, trace.answer, sandbox=self.sandbox)
            except GradeError as error:
                ungraded = str(error)
        return outcome_of(
            trace,
            job.task,
            grade=grade,
            planner=job.entry.name,
            repeat=job.repeat,
            inspect=self.inspect,
            ungraded=ungraded,
            planned_by=planner.worker.info if isinstance(planner, LanguagePlanner) else None,
        )

    def _require_prices(self, pool: Pool) -> None:
        for info in pool.infos:
            if info.price is None and self.budget.max_cost_usd is not None:
                raise ConfigError(
                    f'a cost cap needs a price for worker "{info.name}"; '
                    "add  price = { input = 0, output = 0 }  if it is free"
                )
