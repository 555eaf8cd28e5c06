"""The source of a recipe's rows: the whole gym, a few of its skills, or tasks in a file.

The whole gym is `dataset.RowSource`. A few skills are for models too small to read cards: the workers, cards and order
never change, so the model only learns to decompose, choose and pass on. A file is for tasks from outside the gym, over
a pool that is not the gym's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from dirigent.errors import ConfigError
from dirigent.limits import Limits
from dirigent.messages import conversation
from dirigent.plan.plan import Plan, Step
from dirigent.plan.prompt import trained_planner_messages
from dirigent.tasks.task import Task
from dirigent.workers.worker import WorkerInfo
from dirigent_gym.questions.compose import Shape, draw_blueprint, sketch_of
from dirigent_gym.questions.frames import PLAIN_WORDINGS, Writer, write_question
from dirigent_gym.questions.pools import plan_for
from dirigent_gym.questions.skills import OPERATIONS, RL_SKILLS
from dirigent_gym.questions.specialists import RL_ROSTER, Specialist, find_specialist
from dirigent_gym.questions.split import Split, SplitRules
from dirigent_gym.train.dataset import (
    Outcome,
    Row,
    RowSettings,
    RowSource,
    RowState,
    held_rows,
    kind_of,
)
from dirigent_gym.train.recipe import Recipe

DEV_SEED = 7


class Rows(Protocol):
    """The methods that a trainer needs of a source of rows."""

    state: RowState

    def draw(self, n: int) -> list[Row]: ...

    def update(self, rows: Sequence[Row], scored: Sequence[Outcome]) -> None: ...

    def note_dev(self, accuracy_by_depth: dict[int, float]) -> None: ...


def training_rows(recipe: Recipe, pool: Sequence[WorkerInfo]) -> Rows:
    """The source of the recipe's training rows."""
    seed = recipe.seed
    if recipe.tasks.file:
        tasks = read_tasks(Path(recipe.tasks.file))
        return FileRows(tasks, pool, seed=seed, settings=recipe.rows)
    if recipe.tasks.skills:
        return SkillRows(recipe.tasks.skills, seed=seed, settings=recipe.rows)
    return RowSource(seed, recipe.rows)


def dev_rows(recipe: Recipe, pool: Sequence[WorkerInfo], *, n: int) -> list[Row]:
    """`n` development questions, the same for every seed of a recipe."""
    if recipe.tasks.dev_file:
        tasks = read_tasks(Path(recipe.tasks.dev_file))[:n]
        return [file_row(task, pool, max_steps=recipe.rows.max_steps) for task in tasks]
    if recipe.tasks.skills:
        tasks = skill_tasks("dev", n, skills=recipe.tasks.skills, seed=DEV_SEED)
        return [skill_row(task, recipe.tasks.skills, max_steps=recipe.rows.max_steps) for task in tasks]
    return held_rows("dev", n, seed=DEV_SEED, settings=recipe.rows)


def right_plan(row: Row) -> Plan | None:
    """The row's cheapest right plan over its pool; None if no worker of the pool can do one of the steps."""
    if row.task.sketch is None:
        return None
    try:
        return plan_for(row.task, [find_specialist(name) for name in row.names])
    except ConfigError:
        return None


class SkillRows(RowSource):
    """Rows over a few skills of the gym."""

    def __init__(self, skills: Sequence[str], *, seed: int, settings: RowSettings) -> None:
        super().__init__(seed, settings)
        self._skills = tuple(skills)

    def draw(self, n: int) -> list[Row]:
        draws = self.state.draws
        self.state = msgspec.structs.replace(self.state, draws=draws + 1)
        tasks = skill_tasks("train", n, skills=self._skills, seed=1_000_003 * self.seed + draws)
        return [skill_row(task, self._skills, max_steps=self.settings.max_steps) for task in tasks]


SKILL_MIX: tuple[tuple[Shape, int, float], ...] = (("chain", 1, 0.6), ("chain", 2, 0.4))
"""Shapes, depths and shares of questions over a few skills."""


def skill_tasks(split: Split, n: int, *, skills: Sequence[str], seed: int) -> list[Task]:
    """Tasks that need only these skills, in the wordings and over the values of a split."""
    unknown = [skill for skill in skills if skill not in RL_SKILLS]
    if unknown:
        raise ConfigError(f"the gym has no skill {unknown[0]!r}; there are: {', '.join(RL_SKILLS)}")
    rng = random.Random(f"skills {split} {seed}")
    operations = [op for op in OPERATIONS.values() if op.skill in skills]
    rules = SplitRules(split, "any")
    tasks = []
    for i in range(n):
        shape, depth, _ = rng.choices(SKILL_MIX, [share for *_, share in SKILL_MIX])[0]
        blueprint = draw_blueprint(rng, shape=shape, depth=depth, operations=operations, rules=rules)
        written = write_question(blueprint, Writer(rng, PLAIN_WORDINGS))
        sketch = sketch_of(blueprint, written.subtasks)
        link = blueprint.links[-1]
        tags = {"split": split, "shape": shape, "skills": ">".join(sketch.skills)}
        tasks.append(
            Task(
                id=f"{split}-{seed}-{i}",
                question=written.question,
                answer=link.gold,
                grader=OPERATIONS[link.operation].grader,
                kind=blueprint.kind,
                depth=depth,
                sketch=sketch,
                tags=tags,
            )
        )
    return tasks


def skill_roster(skills: Sequence[str]) -> tuple[Specialist, ...]:
    """One worker for each skill: the most able of those that have it."""
    chosen: dict[str, Specialist] = {}
    for specialist in RL_ROSTER:
        for skill in set(specialist.skills) & set(skills):
            chosen.setdefault(skill, specialist)
    return tuple(chosen[skill] for skill in skills)


def skill_row(task: Task, skills: Sequence[str], *, max_steps: int) -> Row:
    infos = tuple(WorkerInfo(s.name, about=s.about, kind="gym", subtask_only=True) for s in skill_roster(skills))
    return Row(
        id=task.id,
        task=task,
        infos=infos,
        names=tuple(info.name for info in infos),
        messages=trained_planner_messages(conversation(task.question), infos, limits=Limits(max_steps=max_steps)),
        kind=kind_of(task),
    )


def skill_lesson(task: Task, rng: random.Random, *, names: Sequence[str]) -> Plan:
    """The task's own subtasks, each with a random worker and random access."""
    steps = task.sketch.steps if task.sketch is not None else ()
    return Plan(
        tuple(
            Step(rng.choice(names), step.subtask, tuple(j for j in range(i) if rng.random() < 0.5))
            for i, step in enumerate(steps)
        )
    )


class FileRows(RowSource):
    """Rows over tasks from a file, in an order drawn from the seed; the order repeats after all tasks were asked."""

    def __init__(
        self,
        tasks: Sequence[Task],
        pool: Sequence[WorkerInfo],
        *,
        seed: int,
        settings: RowSettings,
    ) -> None:
        super().__init__(seed, settings)
        self._tasks = list(tasks)
        self._pool = tuple(pool)
        random.Random(f"file rows {seed}").shuffle(self._tasks)

    def draw(self, n: int) -> list[Row]:
        start = self.state.draws
        self.state = msgspec.structs.replace(self.state, draws=start + n)
        chosen = [(i, self._tasks[i % len(self._tasks)]) for i in range(start, start + n)]
        max_steps = self.settings.max_steps
        rows = [file_row(task, self._pool, max_steps=max_steps) for _, task in chosen]
        return [msgspec.structs.replace(row, id=f"{row.id}/{i}") for row, (i, _) in zip(rows, chosen, strict=True)]


def file_row(task: Task, pool: Sequence[WorkerInfo], *, max_steps: int) -> Row:
    messages = trained_planner_messages(conversation(task.question), pool, limits=Limits(max_steps=max_steps))
    return Row(task.id, task, tuple(pool), tuple(info.name for info in pool), messages, kind_of(task))


def read_tasks(path: Path) -> list[Task]:
    """Tasks as JSON lines; empty lines are skipped."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"the tasks {path} cannot be read: {error.strerror or error}") from None
    tasks = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            tasks.append(msgspec.json.decode(line, type=Task))
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}, line {number} is not a task: {error}") from None
    if not tasks:
        raise ConfigError(f"{path} holds no tasks")
    return tasks
