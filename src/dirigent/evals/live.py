"""LiveField: public benchmarks, asked of a configured pool.

Every question is offered every worker. So if a worker answers the test alone anyway, for the oracle or in a row of its
own, `best` and `cheapest` are those same answers and are not paid for twice; nor is the `ceiling` if its plan is that
worker alone.

*The ceiling* is, for each benchmark, the best of the plans that can be listed, chosen before the test. Nobody knows the
right plan of a real question, so plans of three shapes are tried on the questions to fit on: every worker alone; one
works and another reviews; two or three answer and the best one judges. Plans of several steps are made of the four
workers that did best alone on the benchmark, so their number is bounded (22 plans, 58 calls a question) however large
the pool is. The cost of trying them is estimated from what the workers just read and wrote alone. The best plan on the
questions to fit on answers the test; nothing is chosen there.

*The pool.* A profile with `planner = "conductor"` has a worker that only plans and gets no question. `conductor` is the
planner of the first such profile. `warm-start` is the planner of the profile of that name, if the file has one: the
start of the user's own conductor. Without it, `warm-start` is the packaged start: its adapter joins the configuration
as a local worker with a profile of that name, so it is opened, prompted and held to a grammar as the conductor is. A
name does not identify weights: a conductor that was trained further has the same name. So the record of an evaluation
has the digests of local models' files, and the other settings of a worker that change its answers.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dirigent.config.build import adapter_file
from dirigent.config.file import Config, Loaded, Profile
from dirigent.config.runtime import Runtime
from dirigent.config.worker_config import DEFAULT_WEIGHTS, WorkerConfig
from dirigent.errors import ConfigError
from dirigent.evals.costing import STEP_TOKENS
from dirigent.evals.entries import Entry
from dirigent.evals.field import Field, Lineup, Trying
from dirigent.evals.metrics import SINGLE, by_planner, cheap_first
from dirigent.evals.planners import CEILING, TRAINED, cap_reached, examples_of
from dirigent.evals.questions import Questions
from dirigent.evals.record import Outcome, digest
from dirigent.evals.reply_cache import weights_digest
from dirigent.evals.report import BEST
from dirigent.evals.stats import mean, mean_or_none, sum_or_none
from dirigent.evals.tables import Weights
from dirigent.limits import Limits
from dirigent.messages import Event
from dirigent.plan.plan import Plan, Step
from dirigent.plan.planner import LanguagePlanner, Planner
from dirigent.planners import Fitted, PlannerName, PlannerSpec
from dirigent.planners.examples import ranked
from dirigent.planners.fixed import Adapted
from dirigent.planners.spec import PlannerFor, kinds_of
from dirigent.run.step_prompt import ANSWER, REVIEW, SYNTHESISE
from dirigent.sandbox import Sandbox
from dirigent.tasks.task import Task
from dirigent.workers.adapters import packaged, read_cards
from dirigent.workers.pool import Pool
from dirigent.workers.weights import KNOWN

SAME_AS_ALONE = (BEST, "cheapest")


class LiveField(Field):
    """Benchmarks over a live pool; `trained` are its models that plan, `weights` their cards."""

    kind = "live"
    sizes = True

    def __init__(
        self,
        questions: Questions,
        pool: Pool,
        *,
        seed: int = 1,
        limits: Limits = Limits(),
        sandbox: Sandbox | None = None,
        trained: Mapping[str, PlannerFor] | None = None,
        weights: Mapping[str, Weights] | None = None,
        pool_name: str = "",
    ) -> None:
        self.questions = questions
        self.tasks, self.fit_tasks = questions.tasks, questions.fit
        self.pool, self.seed, self.limits, self.sandbox = pool, seed, limits, sandbox
        self.trained, self.weights = trained or {}, weights or {}
        self._pool_name = pool_name
        self._best_plans: Mapping[str, Listed] = {}

    def refused(self, text: str, name: PlannerName, spec: PlannerSpec) -> str:
        if name.kind == "conductor":
            needs = 'a profile of the pool\'s file that says  planner = "conductor"'
            return f"{text!r} needs {needs}; add one or leave it out"
        return super().refused(text, name, spec)

    def same_as(self, fitted: Fitted, task: Task) -> str:
        if fitted.name in SAME_AS_ALONE:
            return fitted.note
        listed = self._best_plans.get(task.kind) if fitted.name == CEILING else None
        return listed.name.removeprefix(SINGLE) if listed is not None and listed.name.startswith(SINGLE) else ""

    def tries_plans(self, lineup: Lineup) -> bool:
        return CEILING in lineup.rows

    async def references(self, lineup: Lineup, trying: Trying) -> list[Fitted]:
        """The ceiling: the best of the plans listed, each tried on the questions to fit on. The expected cost of the
        trials is observed first."""
        if CEILING not in lineup.rows:
            return []
        found = search(self.fit_tasks, trying.alone)
        expected = estimate_trials(
            found, self.pool, known=lambda name, task: trying.record.finished(name, task) is not None
        )
        trying.observe(expected)
        budget = trying.budget
        if budget.max_cost_usd is not None and expected.cost_usd is not None:
            left_usd = max(0.0, budget.max_cost_usd - budget.spent_usd)
            if expected.cost_usd > left_usd:
                raise ConfigError(
                    f"trying the ceiling's plans takes about ${expected.cost_usd:.3g}, and ${left_usd:.3g} of the cost "
                    "cap are left; raise --max-cost and --resume, or leave `ceiling` out"
                )
        limits = msgspec.structs.replace(self.limits, max_steps=max(self.limits.max_steps, MAX_STEPS))
        outcomes = await trying.tried(found.entries, found.tasks, limits=limits)
        if len(outcomes) < len(found.runs):
            raise cap_reached("the ceiling's plans were tried", leave_out=CEILING)
        self._best_plans = chosen(found, outcomes)
        return [ceiling_of(self._best_plans)]

    def recipe(self, planners: Sequence[str], lineup: Lineup) -> dict[str, Any]:
        return {"tasks": list(self.questions.names), "planners": list(planners), "seed": self.seed}

    def about(self) -> dict[str, Any]:
        return {
            "name": ", ".join(self.questions.names),
            "n": len(self.tasks),
            "by_task": dict(Counter(task.kind for task in self.tasks)),
            "pool": f"{len(self.pool)} workers" + (f" of {self._pool_name}" if self._pool_name else ""),
            "questions": digest(self.tasks),
            "left_out": self.questions.left_out,
        }

    def task_name(self) -> Callable[[Task | Outcome], str]:
        return lambda asked: asked.kind


# ---- the ceiling ---------------------------------------------------------------------------------------------


BROAD = 4
"""The number of workers in plans of several steps. Five would already make 40 plans, and the best of many plans on a
few dozen questions is mostly a matter of luck."""

PANELS = (2, 3)
"""The number of workers that answer before one judges."""

MAX_STEPS = max(PANELS) + 1


class CeilingTrials(Event, frozen=True):
    """Plans are about to be tried; sent before the first of them is paid."""

    plans: int
    questions: int
    calls: int
    """Calls still to be made; those that an earlier run has paid are left out."""
    cost_usd: float | None
    """The expected cost; None if a worker has no known price."""


class Listed(msgspec.Struct, frozen=True):
    """A plan to try, with its name in the record."""

    name: str
    plan: Plan


class Search(msgspec.Struct, frozen=True):
    """The plans to try on the questions to fit on."""

    tasks: Sequence[Task]
    alone: Sequence[Outcome]
    """The outcomes of each worker alone on these questions."""
    plans: Mapping[str, Sequence[Listed]]
    """Benchmark -> its plans: every worker alone first, from the best to the worst."""

    @property
    def runs(self) -> list[tuple[Listed, Task]]:
        """Returns the entries that must be asked: single workers' answers are known already."""
        return [(listed, task) for task in self.tasks for listed in self.plans[task.kind] if len(listed.plan.steps) > 1]

    @property
    def entries(self) -> list[Entry]:
        """Each plan as an entry, on the benchmarks that it was listed for."""
        kinds: dict[Listed, set[str]] = {}
        for listed, task in self.runs:
            kinds.setdefault(listed, set()).add(task.kind)
        return [_entry(listed, wanted) for listed, wanted in kinds.items()]


def search(tasks: Sequence[Task], alone: Sequence[Outcome]) -> Search:
    """Returns the plans to try, from each worker's own results on these questions."""
    kinds = dict.fromkeys(task.kind for task in tasks)
    rankings = {kind: ranked(examples_of([task for task in tasks if task.kind == kind], alone)) for kind in kinds}
    return Search(tasks, alone, {kind: plans_of(ranking) for kind, ranking in rankings.items()})


def plans_of(ranking: Sequence[str]) -> list[Listed]:
    """The plans listed for a ranking of workers, the shortest first."""
    best, top = ranking[0], ranking[:BROAD]
    alone = [Listed(f"{SINGLE}{worker}", Plan((Step(worker, ANSWER),))) for worker in ranking]
    reviewed = [
        Listed(f"{worker}, reviewed by {other}", Plan((Step(worker, ANSWER), Step(other, REVIEW, (0,)))))
        for worker, other in itertools.permutations(top, 2)
    ]
    return [
        *alone,
        *reviewed,
        *(_judged(panel, best) for size in PANELS for panel in itertools.combinations(top, size)),
    ]


def estimate_trials(found: Search, pool: Pool, *, known: Callable[[str, str], bool]) -> CeilingTrials:
    """Estimates the cost of the trials. `known` returns whether the record has an entry's outcome on a question."""
    left = [(listed, task) for listed, task in found.runs if not known(_name(listed), task.id)]
    means = _mean_tokens(found)
    costs_usd = [_cost_usd(listed.plan, means[task.kind], pool) for listed, task in left]
    return CeilingTrials(
        plans=len({listed for listed, _ in found.runs}),
        questions=len(found.tasks),
        calls=sum(len(listed.plan.steps) for listed, _ in left),
        cost_usd=sum_or_none(costs_usd) if costs_usd else 0.0,
    )


def chosen(found: Search, outcomes: Sequence[Outcome]) -> dict[str, Listed]:
    """Benchmark -> the plan that was right most often, then the cheaper, then the shorter. A lost run is wrong."""
    tried = by_planner([*found.alone, *outcomes])

    def rank(kind: str, listed: Listed) -> tuple[float, bool, float]:
        name = listed.name if len(listed.plan.steps) == 1 else _name(listed)
        own = [outcome for outcome in tried.get(name, ()) if outcome.kind == kind]
        asked = sum(task.kind == kind for task in found.tasks)
        right = sum(outcome.value for outcome in own) / asked
        return -right, *cheap_first(mean_or_none([outcome.known_cost_usd for outcome in own]))

    return {kind: min(plans, key=lambda listed: rank(kind, listed)) for kind, plans in found.plans.items()}


def ceiling_of(best: Mapping[str, Listed]) -> Fitted:
    """Returns the entry `ceiling`: for each benchmark the chosen plan. A benchmark without questions for fitting gets
    the plan of the first one."""
    first = next(iter(best.values()))

    def planner_for(task: Task, pool: Pool) -> Planner:
        return Adapted(best.get(task.kind, first).plan, name=CEILING)

    words = {kind: listed.name.removeprefix(SINGLE) for kind, listed in best.items()}
    note = (
        "; ".join(f"{kind}: {name}" for kind, name in words.items()) if len(words) > 1 else next(iter(words.values()))
    )
    return Fitted(CEILING, planner_for, max_steps=MAX_STEPS, note=note)


def _judged(panel: Sequence[str], judge: str) -> Listed:
    answers = [Step(worker, ANSWER) for worker in panel]
    plan = Plan((*answers, Step(judge, SYNTHESISE, tuple(range(len(answers))))))
    return Listed(f"{' + '.join(panel)}, judged by {judge}", plan)


def _name(listed: Listed) -> str:
    return f"{CEILING}: {listed.name}"


def _entry(listed: Listed, kinds: set[str]) -> Entry:
    return Entry(_name(listed), lambda task, pool: Adapted(listed.plan), wants=lambda task: task.kind in kinds)


def _mean_tokens(found: Search) -> dict[str, dict[str, tuple[float, float]]]:
    """Benchmark -> worker -> mean tokens that its call alone read and wrote."""
    means: dict[str, dict[str, tuple[float, float]]] = {}
    for kind in found.plans:
        by_worker = by_planner(outcome for outcome in found.alone if outcome.kind == kind)
        means[kind] = {
            name.removeprefix(SINGLE): (mean([o.input_tokens for o in own]), mean([o.output_tokens for o in own]))
            for name, own in by_worker.items()
        }
    return means


def _cost_usd(plan: Plan, tokens: Mapping[str, tuple[float, float]], pool: Pool) -> float | None:
    """Estimates a step's input: the worker's own input, the prompt's words and the replies on its access list."""
    total_usd = 0.0
    for step in plan.steps:
        price = pool[step.worker].info.price
        if price is None:
            return None
        read, wrote = tokens[step.worker]
        if step.access:
            read += STEP_TOKENS + sum(tokens[plan.steps[j].worker][1] for j in step.access)
        total_usd += (read * price.input + wrote * price.output) / 1e6
    return total_usd


# ---- the pool, and its planners that are models --------------------------------------------------------------


CONDUCTOR, WARM_START = "conductor", "warm-start"
PLAN_TOKENS = 256
"""The most tokens of a plan by a trained conductor."""

SETTLING = ("temperature", "effort", "system", "extra", "role", "subtask_only", "path", "replies")
"""The settings that change a worker's answers, beside its model; its address and retries do not."""


def with_warm_start(loaded: Loaded, planners: Sequence[str]) -> Loaded:
    """Returns the configuration, with the shipped warm start if it is named and the file has no profile for it."""
    config = loaded.config
    if WARM_START not in kinds_of(planners) or _plans(config.profile.get(WARM_START)):
        return loaded
    if WARM_START in config.profile or any(worker.name == WARM_START for worker in config.worker):
        raise ConfigError(
            f"a worker or a profile of the pool is called {WARM_START!r} and does not plan: "
            f'give the profile [profile.{WARM_START}]  planner = "conductor"  and its  planner_worker, or rename it'
        )
    if WARM_START not in packaged():
        raise ConfigError(f"this copy of the package has no weights for {WARM_START!r}; leave it out")
    worker = WorkerConfig(
        name=WARM_START, kind="local", adapter=WARM_START, merged=True, weights=DEFAULT_WEIGHTS, about="Writes plans."
    )
    only_plan = {profile.planner_worker for profile in config.profile.values() if _plans(profile)}
    profile = Profile(
        planner=CONDUCTOR,
        planner_worker=WARM_START,
        workers=tuple(asked.name for asked in config.worker if asked.name not in only_plan),
        planner_output_tokens=PLAN_TOKENS,
        fallback="none",
    )
    joined = msgspec.structs.replace(
        config, worker=(*config.worker, worker), profile={**config.profile, WARM_START: profile}
    )
    return msgspec.structs.replace(loaded, config=joined)


def live_pool(runtime: Runtime, planners: Sequence[str]) -> tuple[Pool, Mapping[str, PlannerFor]]:
    """The workers that are asked, and the planners among those named that are models trained to plan."""
    found = {kind: _profile_of(kind, runtime.config) for kind in TRAINED if kind in kinds_of(planners)}
    trained = {kind: _planner_for(runtime, profile, name=kind) for kind, profile in found.items() if profile}
    plan = [p.planner_worker for p in runtime.config.profile.values() if _plans(p)]
    read = [info.name for info in runtime.pool.infos if info.reads_results]  # they answer no question alone
    pool = runtime.pool.without([*plan, *read])
    for name in pool:
        if name in runtime.problems:
            raise ConfigError(runtime.problems[name])
    return pool, trained


def shipped_weights(config: Config, trained: Collection[str]) -> dict[str, Weights]:
    """Returns the cards of the planners that are adapters of the package, for the report."""
    ours = [kind for kind in trained if _worker_of(kind, config).adapter == kind]
    return trained_weights(ours)


def trained_weights(planners: Collection[str], folder: Path | None = None) -> dict[str, Weights]:
    """The cards of the trained planners, from a folder or from all that are installed; planners without one are left
    out."""
    cards = read_cards(folder)
    kinds = kinds_of(planners)
    return {
        kind: Weights(recipe=card.recipe, commit=card.commit, sha256=card.sha256, claims=card.claims)
        for kind in kinds
        if kind in TRAINED and (card := cards.get(kind)) is not None
    }


def planner_digests(loaded: Loaded, trained: Collection[str]) -> dict[str, str]:
    """Returns the digests of these planners' weights, for the record: a resumed evaluation refuses other weights under
    the same name."""
    return {kind: _worker_digest(_worker_of(kind, loaded.config), loaded.folder) for kind in trained}


def worker_digests(loaded: Loaded, pool: Pool) -> str:
    """The digests of all workers, in a line."""
    configured = {worker.name: worker for worker in loaded.config.worker}
    return ", ".join(f"{name}={_worker_digest(configured[name], loaded.folder)}" for name in pool)


def _worker_of(kind: str, config: Config) -> WorkerConfig:
    """The worker that writes this planner's plans."""
    name = config.profile[_profile_of(kind, config)].planner_worker
    return next(worker for worker in config.worker if worker.name == name)


def _worker_digest(worker: WorkerConfig, folder: Path) -> str:
    """The identity of a worker's answers: its model, and a digest of the settings that are not the usual ones."""
    usual = WorkerConfig()
    said = {name: getattr(worker, name) for name in SETTLING if getattr(worker, name) != getattr(usual, name)}
    if not said:
        return _model(worker, folder)
    digest = hashlib.blake2b(msgspec.json.encode(said, order="sorted"), digest_size=4).hexdigest()
    return f"{_model(worker, folder)} ({', '.join(said)}: {digest})"


def _model(worker: WorkerConfig, folder: Path) -> str:
    """A model's id at its endpoint; for a local model its base and its adapter, with the digests of files."""
    if worker.kind != "local":
        return worker.model
    base = worker.weights if worker.weights in KNOWN else _digest(folder / Path(worker.weights).expanduser())
    return f"{base}+{_digest(adapter_file(worker.adapter, folder=folder))}" if worker.adapter else base


def _digest(file: Path) -> str:
    try:
        return f"{file.name}:{weights_digest(file)}"
    except OSError as error:
        raise ConfigError(
            f"the weights {file} cannot be read: {error.strerror}; mend the path in the pool's file"
        ) from None


def _profile_of(kind: str, config: Config) -> str:
    """The name of the profile whose planner it is, or an empty string."""
    planning = [name for name, profile in config.profile.items() if _plans(profile)]
    return next((name for name in planning if (name == WARM_START) == (kind == WARM_START)), "")


def _planner_for(runtime: Runtime, profile: str, *, name: str) -> PlannerFor:
    planner = runtime.conductor(profile).planner
    if isinstance(planner, LanguagePlanner):
        planner.name = name  # traces have this name
    return lambda task, pool: planner


def _plans(profile: Profile | None) -> bool:
    return profile is not None and profile.planner == CONDUCTOR
