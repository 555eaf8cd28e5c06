"""The gym's questions under evaluation, each with the specialists of its pool: the same for every planner.

`gym` is the split itself; `test_sets.py` has further sets by name. The caller passes the specialists, exact or trained,
as a function. `evaluation.py` decides which planners are asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.entries import PoolFor
from dirigent.messages import Observe, Reply, Request, ignore
from dirigent.plan.plan import Plan
from dirigent.planners.spec import noise_seed
from dirigent.tasks.task import Task
from dirigent.toml import nearest
from dirigent.workers.pool import Pool
from dirigent.workers.worker import Worker, WorkerInfo
from dirigent_gym.evals.test_sets import IN_OTHER_WORDS, PROBES, marks_in_other_words, probe_roster, probe_tasks
from dirigent_gym.questions.compare import compare
from dirigent_gym.questions.pools import Cards, cards_for, draw_pool
from dirigent_gym.questions.specialists import RL_ROSTER, ROSTER, Specialist
from dirigent_gym.questions.split import Split, generate

SPLIT_SET = "gym"
"""The name of the split's own questions among the sets."""

CALIBRATION_SEED = 10_000
"""Added to the seed, so that no choice is made on the evaluated questions."""

MARKS = ("decomposition", "routing", "access", "minimal", "parallel")

WorkerFor = Callable[[Specialist, int], Worker]
"""A specialist as a worker; the number seeds its noise, if it has any."""


class GymSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sets: tuple[str, ...] = (SPLIT_SET,)
    """The sets to ask: `gym` for the split, and names of `test_sets.PROBES`."""
    split: Split = "test"
    limit: int = 1000
    """Questions of each set."""
    seed: int = 1
    pool_sizes: tuple[int, int] = (3, 8)
    """The smallest and the largest pool of a question; ids are permuted each time."""
    cards: Cards = "train"
    """`held_out`: cards in words that training never shows."""
    calibration: int = 300
    """The number of training questions that rank the workers, and of development questions that choose the ceiling's
    plans."""
    noise_seeds: int = 5
    """How often the ceiling's plans are carried out."""

    def __post_init__(self) -> None:
        for name in ("limit", "calibration", "noise_seeds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, not {getattr(self, name)}")
        check_sets(self.sets)


def check_sets(sets: tuple[str, ...]) -> None:
    """Raises ConfigError for an unknown set, or for one that is named twice."""
    if not sets:
        raise ConfigError(f"name a set of questions; there are: {', '.join((SPLIT_SET, *PROBES))}")
    for i, name in enumerate(sets):
        if name not in (SPLIT_SET, *PROBES):
            raise ConfigError(f"there is no set of questions {name!r}{nearest(name, (SPLIT_SET, *PROBES))}")
        if name in sets[:i]:
            raise ConfigError(f"the set of questions {name!r} is named twice")


class Gym:
    """The questions and, for each, the specialists of its pool."""

    def __init__(self, settings: GymSettings, worker_for: WorkerFor) -> None:
        self.settings = settings
        self.roster = roster_of(settings)
        self._worker_for = worker_for
        self._set_by_task: dict[str, str] = {}
        self.tasks: list[Task] = []
        for name in settings.sets:
            for task in _tasks(name, settings):
                # Two sets may number their tasks alike.
                own = msgspec.structs.replace(task, id=f"{name}/{task.id}") if task.id in self._set_by_task else task
                self._set_by_task[own.id] = name
                self.tasks.append(own)

    @property
    def whole_pool(self) -> Pool:
        """Every worker that a pool may offer, with its card."""
        cards = cards_for(self.roster, random.Random("everybody"))
        workers = (self._worker_for(specialist, 0) for specialist in self.roster)
        return Pool(Carded(worker, card) for worker, card in zip(workers, cards, strict=True))

    @property
    def judged_by_words(self) -> bool:
        """Whether every plan can be compared with the generator's own words."""
        return not any(name in IN_OTHER_WORDS for name in self.settings.sets)

    def set_of(self, task_id: str) -> str:
        return self._set_by_task[task_id]

    def calibration(self, split: Split) -> list[Task]:
        """Questions for choices that are made before the evaluation begins."""
        return generate(split, self.settings.calibration, seed=self.settings.seed + CALIBRATION_SEED)

    def offered(self, task: Task) -> tuple[Specialist, ...]:
        return self._drawn(task)[0]

    def pool_for(self, task: Task, repeat: int) -> Pool:
        """The pool of a question, with its cards."""
        specialists, cards = self._drawn(task)
        seed = noise_seed(self.settings.seed, task, repeat)
        return Pool(Carded(self._worker_for(s, seed), card) for s, card in zip(specialists, cards, strict=True))

    def only(self, specialist: Specialist) -> PoolFor:
        """A pool of this worker alone, for every question."""

        def pool_for(task: Task, repeat: int) -> Pool:
            seed = noise_seed(self.settings.seed, task, repeat)
            (card,) = cards_for((specialist,), random.Random(f"{task.id}"))
            return Pool([Carded(self._worker_for(specialist, seed), card)])

        return pool_for

    def marks(self, task: Task, plan: Plan) -> dict[str, bool]:
        """Returns the marks of a plan. If a set in other words is asked too, every plan is also judged without its
        words, so that the sets can be compared."""
        if self._set_by_task.get(task.id) in IN_OTHER_WORDS:
            return marks_in_other_words(task, plan)
        return marks(task, plan) | ({} if self.judged_by_words else marks_in_other_words(task, plan))

    def _drawn(self, task: Task) -> tuple[tuple[Specialist, ...], tuple[WorkerInfo, ...]]:
        rng = random.Random(f"pool {self.settings.seed} {task.id}")
        roster = _roster(self._set_by_task[task.id], self.settings) if task.id in self._set_by_task else self.roster
        specialists = draw_pool(task, rng, size=rng.randint(*self.settings.pool_sizes), roster=roster)
        return specialists, cards_for(specialists, rng, wording=self.settings.cards)


def roster_of(settings: GymSettings) -> tuple[Specialist, ...]:
    """The specialists that may be offered for any of the questions."""
    return ROSTER if any(_roster(name, settings) == ROSTER for name in settings.sets) else RL_ROSTER


class Carded:
    """A worker with the card, its wording and its price, that a question's pool shows."""

    def __init__(self, worker: Worker, card: WorkerInfo) -> None:
        self.worker = worker
        self.info = msgspec.structs.replace(
            card, kind=worker.info.kind, model=worker.info.model, abilities=worker.info.abilities
        )

    async def ask(self, request: Request, *, observe: Observe = ignore) -> Reply:
        return await self.worker.ask(request, observe=observe)


def marks(task: Task, plan: Plan) -> dict[str, bool]:
    """Returns the marks of a plan for a question in the generator's words."""
    found = compare(task, plan)
    return {name: getattr(found, name) for name in MARKS}


def _tasks(name: str, settings: GymSettings) -> list[Task]:
    if name == SPLIT_SET:
        return generate(settings.split, settings.limit, seed=settings.seed)
    return probe_tasks(name, limit=settings.limit, seed=settings.seed)


def _roster(name: str, settings: GymSettings) -> tuple[Specialist, ...]:
    """The specialists that may be offered; the worker of the held-out skill only if its skill is asked."""
    if name == SPLIT_SET:
        return ROSTER if settings.split == "novel" else RL_ROSTER
    return probe_roster(name)
