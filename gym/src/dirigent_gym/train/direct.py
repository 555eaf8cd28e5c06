"""A control: one adapter fitted end to end from question to answer, with no plan, no workers and no reward.

It has the conductor's rank and sees as many questions of the same training split. If it answers the held-out questions
as well as a conductor with its workers, a conductor was not needed. The table shows the figure in both cases.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec

from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter
from dirigent.learn.imitate import ImitationSettings, Lesson, batches, imitate
from dirigent.messages import Message
from dirigent.tasks.task import Task, grade
from dirigent_gym.questions.split import Split, generate
from dirigent_gym.train.faults import within_memory
from dirigent_gym.train.folder import RESULT_FILE, write_durably
from dirigent_gym.train.heldout import HeldOut, held_out
from dirigent_gym.train.recipe import DirectRecipe
from dirigent_gym.train.run import open_base
from dirigent_gym.train.specialists import replies_to

MEASURE_SEED = 7
ANSWER_TOKENS = 32


class DirectResult(msgspec.Struct, frozen=True):
    recipe: str
    out: str
    adapter: str
    accuracy: dict[str, float]
    """By split, and for the test by depth: `test_depth_2`."""
    questions: int
    """The questions asked in training; a question counts each time it is asked."""
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        return True

    @property
    def summary(self) -> str:
        figures = ", ".join(f"{name} {value:.1%}" for name, value in self.accuracy.items())
        return f"question -> answer, {self.questions} questions: {figures}\nadapter: {self.adapter}"


def train_direct(recipe: DirectRecipe, *, out: Path, quiet: bool = False) -> DirectResult:
    """Fit, measure on held-out questions, export. The run is so short that a run that was cut begins again."""
    began = time.monotonic()
    lessons = lessons_for(recipe)
    base = open_base(recipe.base, lambda: lessons, out, seed=recipe.seed)
    drawn = batches(lessons, recipe.batch, random.Random(recipe.seed))

    def report(step: int, loss: float) -> None:
        if not quiet and step % 20 == 0:
            print(f"step {step}/{recipe.steps}  loss {loss:.4f}", flush=True)

    advice = f"lower batch, which is {recipe.batch}, and raise steps as much"
    with within_memory("while the adapter was fitted", advice=advice):
        adapter = imitate(base, lambda count, rng: next(drawn), _settings(recipe), observe=report)
    adapter.save(out / "adapter", base=base.name)
    accuracy = measure_direct(base, adapter, "dev", recipe=recipe)
    accuracy |= measure_direct(base, adapter, "test", recipe=recipe)
    result = DirectResult(
        recipe.name, str(out), str(out / "adapter"), accuracy, recipe.steps * recipe.batch, time.monotonic() - began
    )
    write_durably(out / RESULT_FILE, msgspec.json.encode(result))
    return result


def lessons_for(recipe: DirectRecipe) -> list[Lesson]:
    """Questions of the training split with their bare answers. Raises an error if a test text is among them."""
    tasks = generate("train", recipe.n, seed=recipe.seed)
    for tests in (held_out(), HeldOut(task.question for task in measured_on("test", recipe))):
        tests.check(task.question for task in tasks)
    return [Lesson(asked(task), task.answer) for task in tasks]


def measured_on(split: Split, recipe: DirectRecipe) -> list[Task]:
    return generate(split, recipe.measure, seed=MEASURE_SEED)


def asked(task: Task) -> tuple[Message, ...]:
    return (Message("user", task.question),)


def measure_direct(base: Base, adapter: Adapter, split: Split, *, recipe: DirectRecipe) -> dict[str, float]:
    """The accuracy of greedy answers on a split, and for the test also at each depth."""
    tasks = measured_on(split, recipe)
    replies = replies_to(base, adapter, [asked(task) for task in tasks], max_tokens=ANSWER_TOKENS)
    right = [grade(task, reply).correct for task, reply in zip(tasks, replies, strict=True)]
    figures: dict[str, float] = {split: sum(right) / len(right)}
    if split == "test":
        for depth in sorted({task.depth for task in tasks}):
            hits = [ok for task, ok in zip(tasks, right, strict=True) if task.depth == depth]
            figures[f"test_depth_{depth}"] = sum(hits) / len(hits)
    return figures


def _settings(recipe: DirectRecipe) -> ImitationSettings:
    return ImitationSettings(
        rank=recipe.policy.rank,
        alpha=recipe.policy.alpha,
        learning_rate=recipe.learning_rate,
        steps=recipe.steps,
        batch=recipe.batch,
        seed=recipe.seed,
    )
