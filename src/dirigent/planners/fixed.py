"""Planners that write the same shape for every question, the serving fallback, and planners that are given their plan.

Each writes its plan as a draft like any other planner, so execution, limits, cost and traces are the same code. Asked
for a second round, they accept. The answering worker is a name, or several, of which the pool's first match is used;
without a name it is the pool's first worker. Planners that are given their decision (one worker, a lot, a whole plan)
are for evaluations; a configuration has no use for them. At the end are the parts that the planners of this package
share: steps, the question as text, and the workers that can be asked.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Literal

from dirigent.errors import ConfigError
from dirigent.messages import Observe, ignore
from dirigent.plan.plan import Dialect, Plan, Reason, Step
from dirigent.plan.planner import Brief, Draft, Shape
from dirigent.run.step_prompt import AGREE, ANSWER, CARRY_OUT, OUTLINE, REVIEW, SYNTHESISE
from dirigent.workers.pool import Pool
from dirigent.workers.worker import WorkerInfo

Who = str | Sequence[str]


class Fixed(Shape):
    """Always this plan: one written by hand, or taken from a trace."""

    def __init__(self, plan: Plan, *, name: str = "fixed") -> None:
        self.name = name
        self._plan = plan

    def plan(self, brief: Brief) -> Plan:
        return self._plan


class Single(Shape):
    """One worker answers alone."""

    def __init__(self, worker: Who = "", *, name: str = "") -> None:
        first = worker if isinstance(worker, str) or not worker else worker[0]
        self.name = name or (f"single:{first}" if first else "single")
        self._worker = worker

    def plan(self, brief: Brief) -> Plan:
        return Plan((step(brief, named(brief.pool, self._worker)),))


class ByCard:
    """One worker answers alone: the best by its card, or the cheapest.

    The best is the one that was right most often where it was measured. Before that it is the dearest, which is likely
    the strongest. A worker without a price is asked only if none has a price.
    """

    def __init__(self, choice: Literal["best", "cheapest"], *, right: Mapping[str, float] | None = None) -> None:
        self.name: str = choice
        self._right = right or {}
        """The measured share of right answers of each worker."""

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        if brief.previous is not None:
            return Draft(plan=Plan())
        infos = [info for info in brief.pool.infos if not info.reads_results]
        measured = [info.name for info in infos if info.name in self._right]
        if self.name == "cheapest":
            chosen, why = cheapest(infos), "the cheapest by price"
        elif measured:
            chosen = max(measured, key=lambda name: self._right[name])
            why = f"right most often where it was measured, {self._right[chosen]:.0%}"
        else:
            chosen, why = dearest(infos), "the dearest by price, as nothing was measured"
        reason = Reason(why=f"{chosen} alone: {why}; nothing learned says that more would pay", chosen=(chosen,))
        return Draft(plan=Plan((step(brief, chosen),)), reason=reason)


def dearest(infos: Sequence[WorkerInfo]) -> str:
    """The worker with the highest price, the first of equals; any price is more than an unknown one."""
    return max(infos, key=lambda info: -1.0 if info.price is None else info.price.input + info.price.output).name


def cheapest(infos: Sequence[WorkerInfo]) -> str:
    """The worker with the lowest price, the first of equals; any price is less than an unknown one."""
    return min(infos, key=lambda info: math.inf if info.price is None else info.price.input + info.price.output).name


class FanOut(Shape):
    """Mixture-of-Agents (Wang et al. 2024): workers answer side by side, one brings the answers together.

    With more than one layer, the same workers then answer again, each having read all answers of the layer before.
    One layer uses as many proposers, in pool order and again if there are fewer, as the step limit allows.
    """

    def __init__(
        self, synthesiser: Who = "", *, proposers: int | None = None, layers: int = 1, name: str = "moa"
    ) -> None:
        if layers < 1 or (proposers is not None and proposers < 1):
            raise ConfigError(f"moa needs at least one proposer and one layer, not {proposers} and {layers}")
        self.name = name
        self._synthesiser = synthesiser
        self._proposers = proposers
        self._layers = layers

    def plan(self, brief: Brief) -> Plan:
        workers, max_steps = answering(brief.pool), brief.limits.max_steps
        wanted = self._proposers or len(workers)
        count = max(1, min(wanted, max_steps - 1)) if self._layers == 1 else wanted
        if count * self._layers + 1 > max_steps:
            raise ConfigError(f"{self.name} needs max_steps of at least {count * self._layers + 1}, not {max_steps}")
        steps: list[Step] = [step(brief, workers[i % len(workers)]) for i in range(count)]
        for layer in range(1, self._layers):
            before = range((layer - 1) * count, layer * count)
            steps += [step(brief, workers[i % len(workers)], SYNTHESISE, before) for i in range(count)]
        last = range(len(steps) - count, len(steps))
        return Plan((*steps, step(brief, named(brief.pool, self._synthesiser), SYNTHESISE, last)))


class SelfMoa(Shape):
    """Self-MoA (Li et al. 2025): one worker answers several times and brings its own answers together.

    Like a vote it needs a sampling temperature other than 0; one sample alone is the answer unchanged.
    """

    def __init__(self, worker: Who = "", *, samples: int = 6, name: str = "self-moa") -> None:
        if samples < 1:
            raise ConfigError(f"self-moa needs at least one sample, not {samples}")
        self.name = name
        self._worker = worker
        self._samples = samples

    def plan(self, brief: Brief) -> Plan:
        worker = named(brief.pool, self._worker)
        if self._samples == 1:
            return Plan((step(brief, worker),))
        if brief.limits.max_steps < 2:
            raise ConfigError(f"self-moa needs max_steps of at least 2, not {brief.limits.max_steps}")
        count = min(self._samples, brief.limits.max_steps - 1)
        samples = [step(brief, worker) for _ in range(count)]
        return Plan((*samples, step(brief, worker, SYNTHESISE, range(count))))


class Reflect(Shape):
    """One worker answers, then looks at its own answer again and again. `turns` counts its calls."""

    def __init__(self, worker: Who = "", *, turns: int = 5, name: str = "reflect") -> None:
        self.name = name
        self._worker = worker
        self._turns = turns

    def plan(self, brief: Brief) -> Plan:
        worker = named(brief.pool, self._worker)
        turns = min(self._turns, brief.limits.max_steps)
        reviews = [step(brief, worker, REVIEW, (i - 1,)) for i in range(1, turns)]
        return Plan((step(brief, worker), *reviews))


class Vote(Shape):
    """Self-consistency (Wang et al. 2023): one worker answers several times, and the commonest answer is returned.

    Asked for another sampling temperature than 0, or the samples will be one answer repeated. `counter` is the
    worker that counts; without one the answering worker is asked to name the most frequent answer.
    """

    def __init__(self, worker: Who = "", *, samples: int = 5, counter: str = "", name: str = "vote") -> None:
        if samples < 1:
            raise ConfigError(f"a vote needs at least one sample, not {samples}")
        self.name = name
        self._worker = worker
        self._samples = samples
        self._counter = counter

    def plan(self, brief: Brief) -> Plan:
        worker = named(brief.pool, self._worker)
        count = max(1, min(self._samples, brief.limits.max_steps - 1))
        if count == 1:
            return Plan((step(brief, worker),))
        samples = [step(brief, worker) for _ in range(count)]
        if self._counter:
            last = Step(brief.pool.require(self._counter), AGREE, tuple(range(count)))
        else:
            last = step(brief, worker, AGREE, range(count))
        return Plan((*samples, last))


class Pipeline(Shape):
    """A pipeline as people code it by hand: one worker plans, one carries the plan out, one reviews. By default the
    first three workers do it."""

    def __init__(self, planner: Who = "", *, worker: Who = "", reviewer: Who = "", name: str = "pipeline") -> None:
        self.name = name
        self._roles = (planner, worker or planner, reviewer or planner)

    def plan(self, brief: Brief) -> Plan:
        if brief.limits.max_steps < 3:
            raise ConfigError(f"a pipeline needs max_steps of at least 3, not {brief.limits.max_steps}")
        planner, worker, reviewer = (named(brief.pool, who) for who in self._roles)
        return Plan(
            (
                step(brief, planner, OUTLINE),
                step(brief, worker, CARRY_OUT, (0,)),
                step(brief, reviewer, REVIEW, (1,)),
            )
        )


# ---- planners that are given their decision ------------------------------------------------------------------


class RandomWorker(Shape):
    """One worker, drawn by lot, answers alone."""

    def __init__(self, *, seed: int) -> None:
        self.name = "random"
        self._seed = seed

    def plan(self, brief: Brief) -> Plan:
        return Plan((step(brief, random.Random(self._seed).choice(answering(brief.pool))),))


class Adapted(Shape):
    """A plan made without looking at the pool; a worker that never sees the question gets it in its subtask."""

    def __init__(self, plan: Plan, *, name: str = "adapted") -> None:
        self.name = name
        self._plan = plan

    def plan(self, brief: Brief) -> Plan:
        return Plan(tuple(step(brief, s.worker, s.subtask, s.access) for s in self._plan.steps))


class Written:
    """A plan that a model wrote beforehand, in one batch with others. `then` is its plan of the second round."""

    def __init__(self, text: str, *, name: str, dialect: Dialect = "lines", then: str = "") -> None:
        self.name = name
        self._text = text
        self._then = then
        self._dialect: Dialect = dialect

    async def draft(self, brief: Brief, *, observe: Observe = ignore) -> Draft:
        if brief.previous is None:
            return Draft(self._text, self._dialect)
        return Draft(self._then, self._dialect) if self._then else Draft(plan=Plan())


# ---- what planners share -------------------------------------------------------------------------------------


def question_text(brief: Brief) -> str:
    return "\n".join(message.text for message in brief.question)


def step(brief: Brief, worker: str, words: str = ANSWER, access: Sequence[int] = ()) -> Step:
    """A step of this worker. A worker that never sees the question (`subtask_only`) gets it in its subtask."""
    if brief.pool[brief.pool.require(worker)].info.subtask_only:
        words = question_text(brief) if words == ANSWER else f"{question_text(brief)}\n{words}"
    return Step(worker, words, tuple(access))


def answering(pool: Pool) -> tuple[str, ...]:
    """The workers that can be asked a question, in pool order; readers of results (`workers/reader.py`) cannot."""
    return tuple(info.name for info in pool.infos if not info.reads_results)


def named(pool: Pool, worker: str | Sequence[str]) -> str:
    """The worker to ask: the first named worker that the pool has; without names, the pool's first worker."""
    if isinstance(worker, str):
        return pool.require(worker) if worker else answering(pool)[0]
    there = [name for name in worker if name in pool]
    if not there:
        raise ConfigError(f"the pool has none of {', '.join(worker)}; it has {', '.join(pool.names)}")
    return there[0]
