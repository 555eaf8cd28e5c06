"""The specialists that a conductor is offered for a question, and the wording of their cards.

Pools are random subsets in random order with reworded cards, so that a policy must read them. Most pools can solve
their question; a few cannot, so that a policy cannot rely on that either.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from dirigent.errors import ConfigError
from dirigent.plan.plan import Plan, Step
from dirigent.tasks.task import Sketch, Task
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions.specialists import RL_ROSTER, Specialist, able

SOLVABLE_SHARE = 0.94

Cards = Literal["train", "held_out"]

ALIASES = (
    *("alfa", "bravo", "delta", "echo", "foxtrot", "golf", "hotel", "kilo", "lima", "mike", "oscar", "papa"),
    *("romeo", "sierra", "tango", "victor", "yankee", "zulu", "oak", "pine", "elm", "birch", "cedar", "maple"),
    *("gpt", "claude", "gemini", "qwen", "llama", "mistral", "phi", "gemma"),
)
"""Names without a hint at a worker's skill."""


def draw_pool(
    task: Task, rng: random.Random, *, size: int, roster: Sequence[Specialist] = RL_ROSTER
) -> tuple[Specialist, ...]:
    """A random subset in random order. It is larger than `size` if the question needs more workers than that."""
    needed = _needed(_sketch(task), rng, roster)
    if rng.random() >= SOLVABLE_SHARE:
        missing = rng.choice(sorted(needed, key=lambda s: s.name))
        others = [s for s in roster if not set(s.skills) & set(missing.skills)]
        return _fill_up(rng, [s for s in needed if s != missing], others, size=size)
    return _fill_up(rng, needed, roster, size=size)


def solvable(task: Task, pool: Sequence[Specialist]) -> bool:
    """Whether the pool has an able worker for every step of the task's cheapest plan."""
    return all(any(able(s, step) for s in pool) for step in _sketch(task).steps)


def plan_for(task: Task, pool: Sequence[Specialist]) -> Plan:
    """The cheapest right plan over this pool: the cheapest able specialist does each step."""
    steps = []
    for step in _sketch(task).steps:
        fit = [s for s in pool if able(s, step)]
        if not fit:
            raise ConfigError(f"no worker of the pool ({', '.join(s.name for s in pool)}) can do {step.subtask!r}")
        cheapest = min(fit, key=lambda s: s.price.input + s.price.output)
        steps.append(Step(cheapest.name, step.subtask, step.access))
    return Plan(tuple(steps))


def cards_for(pool: Sequence[Specialist], rng: random.Random, *, wording: Cards = "train") -> tuple[WorkerInfo, ...]:
    """The pool as a planner sees it, each card in one of its wordings."""
    return tuple(
        WorkerInfo(
            specialist.name,
            about=rng.choice(specialist.abouts if wording == "train" else specialist.held_out_abouts),
            kind="gym",
            price=specialist.price,
            skills=specialist.skills,
            subtask_only=True,
        )
        for specialist in pool
    )


def renamed(cards: Sequence[WorkerInfo], rng: random.Random) -> tuple[WorkerInfo, ...]:
    """The same cards under names without meaning, so that only their texts distinguish the workers."""
    names = rng.sample(ALIASES, len(cards))
    return tuple(msgspec.structs.replace(card, name=name) for card, name in zip(cards, names, strict=True))


def misnamed(cards: Sequence[WorkerInfo], rng: random.Random) -> tuple[WorkerInfo, ...]:
    """The same cards, each under the name of another, so that a planner that goes by names errs."""
    turn = rng.randrange(1, len(cards)) if len(cards) > 1 else 0
    names = [card.name for card in cards]
    names = [*names[turn:], *names[:turn]]
    return tuple(msgspec.structs.replace(card, name=name) for card, name in zip(cards, names, strict=True))


def _sketch(task: Task) -> Sketch:
    if task.sketch is None:
        raise ConfigError(f"task {task.id!r} has no sketch; only gym tasks have one")
    return task.sketch


def _needed(sketch: Sketch, rng: random.Random, roster: Sequence[Specialist]) -> list[Specialist]:
    """An able specialist for each step, as few specialists as possible."""
    needed: list[Specialist] = []
    for step in sketch.steps:
        fit = [s for s in roster if able(s, step)]
        if not fit:
            raise ConfigError(f"the roster has no worker for {step.operation!r}; it has: {[s.name for s in roster]}")
        if not any(s in needed for s in fit):
            needed.append(rng.choice(fit))
    return needed


def _fill_up(
    rng: random.Random, needed: list[Specialist], roster: Sequence[Specialist], *, size: int
) -> tuple[Specialist, ...]:
    others = [s for s in roster if s not in needed]
    extra = max(0, min(size - len(needed), len(others)))
    pool = [*needed, *rng.sample(others, extra)]
    rng.shuffle(pool)
    return tuple(pool)
