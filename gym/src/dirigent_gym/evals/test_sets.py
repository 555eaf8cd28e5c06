"""Sets of questions beside the test itself. They could show that a conductor only learned the gym's wordings.

    second-seed   the generator's test, drawn again with an independent seed
    novel         questions that need the skill and the worker that RL never met
    handwritten   handwritten questions, in other words than the generator's
    plain         handwritten questions as people type them to an assistant, for development
    reasoning     questions of the public library reasoning-gym, as recorded in the package
    reasoning-new questions of the same families, drawn anew from the library (extra `reasoning`)

No model is trained on them, and only `plain` may be used to choose one. `placed` judges plans for questions in other
words than the generator's: it cannot recognise a subtask that copies a person's words, but it can recognise the
workers, their order and their access.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import permutations

import msgspec

from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, critical_path
from dirigent.tasks.task import Sketch, SketchStep, Task
from dirigent.toml import nearest
from dirigent_gym.questions.compare import LEAST_GUESSES
from dirigent_gym.questions.handwritten import handwritten, handwritten_plain
from dirigent_gym.questions.reasoning import reasoning_tasks, recorded_tasks
from dirigent_gym.questions.skills import PUZZLE_SKILL
from dirigent_gym.questions.specialists import RL_ROSTER, ROSTER, Specialist, able
from dirigent_gym.questions.split import generate

SECOND_SEED = 20_000
"""Added to the seed of the test. Calibration adds 10,000, so the three draws differ."""


def probe_tasks(name: str, *, limit: int, seed: int) -> list[Task]:
    """At most `limit` questions of the set; the same for the same seed."""
    if name not in PROBES:
        raise ConfigError(f"there is no set of questions {name!r}{nearest(name, tuple(PROBES))}")
    if limit < 1:
        raise ConfigError(f"limit must be 1 or more, not {limit}")
    return PROBES[name](limit, seed)


def probe_roster(name: str) -> tuple[Specialist, ...]:
    """The specialists that a set's pools may offer; the worker of the held-out skill only if its questions are
    asked."""
    return ROSTER if name == "novel" else RL_ROSTER


def second_seed(limit: int, seed: int) -> list[Task]:
    """The generator's test with an independent seed."""
    return generate("test", limit, seed=seed + SECOND_SEED)


PROBES: dict[str, Callable[[int, int], list[Task]]] = {
    "second-seed": second_seed,
    "novel": lambda limit, seed: generate("novel", limit, seed=seed),
    "handwritten": lambda limit, seed: _some(handwritten(), limit, seed),
    "plain": lambda limit, seed: _some(handwritten_plain(), limit, seed),
    "reasoning": lambda limit, seed: _some(recorded_tasks(seed=seed), limit, seed),
    "reasoning-new": lambda limit, seed: reasoning_tasks(limit, seed=seed),
}

IN_OTHER_WORDS = frozenset({"handwritten", "plain", "reasoning", "reasoning-new"})
"""Sets whose wordings are not the generator's. Their plans are judged without their words."""


def _some(tasks: Sequence[Task], limit: int, seed: int) -> list[Task]:
    """All of them if they are few enough, otherwise a random part in the same order."""
    if limit >= len(tasks):
        return list(tasks)
    kept = set(random.Random(f"probe {seed}").sample(range(len(tasks)), limit))
    return [task for i, task in enumerate(tasks) if i in kept]


class Placed(msgspec.Struct, frozen=True):
    """A plan compared with the cheapest right one, without regard to its words."""

    routing: bool
    """Whether it has as many steps, and a worker that can do one of the needed steps does each."""
    access: bool
    """Whether the routing is right and each of those steps reads exactly the results that it needs."""


def placed(task: Task, plan: Plan, *, roster: Sequence[Specialist] = ROSTER) -> Placed:
    """Compares a plan's workers and access with the right plan's. Independent steps may have any order."""
    workers = {specialist.name: specialist for specialist in roster}
    chosen = [workers.get(step.worker) for step in plan.steps]
    routing = False
    for wanted in _variants(task.sketch or Sketch(())):
        if not wanted or len(wanted) != len(chosen):
            continue
        # There are five steps at most, so all orders are 120 trials.
        for order in permutations(range(len(wanted))):
            able_all = all(
                worker is not None and able(worker, wanted[j]) for worker, j in zip(chosen, order, strict=True)
            )
            routing = routing or able_all
            if able_all and _wired(plan, wanted, order):
                return Placed(routing=True, access=True)
    return Placed(routing=routing, access=False)


def marks_in_other_words(task: Task, plan: Plan) -> dict[str, bool]:
    """Returns the marks of a plan without its words, for questions that are not the generator's."""
    found = placed(task, plan)
    waits = task.sketch is not None and critical_path(plan) <= task.sketch.depth
    return {"placed": found.routing, "wired": found.access, "parallel": waits}


def _wired(plan: Plan, wanted: Sequence[SketchStep], order: Sequence[int]) -> bool:
    return all(
        {order[k] for k in step.access} == set(wanted[j].access) for step, j in zip(plan.steps, order, strict=True)
    )


def _variants(sketch: Sketch) -> list[tuple[SketchStep, ...]]:
    """The steps needed; for a puzzle that is guessed several times, also with fewer guesses before the check."""
    found = [sketch.steps]
    guesses = sum(step.skill == PUZZLE_SKILL for step in sketch.steps)
    for _ in range(max(0, guesses - LEAST_GUESSES)):
        # Without the first guess; the steps that read it read the others.
        rest = (msgspec.structs.replace(s, access=tuple(j - 1 for j in s.access if j > 0)) for s in found[-1][1:])
        found.append(tuple(rest))
    return found
