"""A control: one adapter fitted end to end from question to answer, with no plan, no workers and no reward.

It has the conductor's rank and sees as many questions of the same training split. If it answers the held-out
questions as well as a conductor with its workers, conducting was not needed; the table says so either way.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from dirigent.messages import Message
from dirigent.tasks.task import Task, grade
from dirigent_gym.questions.split import Split, generate
from dirigent_gym.train.checkpoint import write_durably
from dirigent_gym.train.heldout import HeldOut, held_out
from dirigent_gym.train.judge import replies_to
from dirigent_gym.train.memory import within_memory
from dirigent_gym.train.policy import ADAPTER, Policy, export, open_base
from dirigent_gym.train.recipe import DirectRecipe, TinySettings
from dirigent_gym.train.sft import Pair, SftSettings, fit_adapter
from dirigent_gym.train.tiny import tiny_base

MEASURE_SEED = 7


class DirectResult(msgspec.Struct, frozen=True):
    recipe: str
    out: str
    adapter: str
    accuracy: dict[str, float]
    """By split, and for the test by depth: `test_depth_2`."""
    questions: int
    """Asked in training, a question counted as often as it was seen."""
    seconds: float = 0.0

    @property
    def finished(self) -> bool:
        return True

    @property
    def summary(self) -> str:
        figures = ", ".join(f"{name} {value:.1%}" for name, value in self.accuracy.items())
        return f"question -> answer, {self.questions} questions: {figures}\nadapter: {self.adapter}"


def train_direct(recipe: DirectRecipe, *, out: Path, quiet: bool = False) -> DirectResult:
    """Fit, measure on held-out questions, export. Short enough that a cut run simply begins again."""
    began = time.monotonic()
    pairs = pairs_for(recipe)
    model, tokenizer = _base(recipe, pairs)

    def report(step: int, loss: float) -> None:
        if not quiet:
            print(f"step {step}/{recipe.steps}  loss {loss:.4f}", flush=True)

    needs = f"lower batch, which is {recipe.batch}, and raise steps as much"
    with within_memory("while the adapter was fitted", advice=needs):
        model = fit_adapter(model, tokenizer, pairs, name=ADAPTER, settings=_settings(recipe), report=report)
    accuracy: dict[str, float] = {}
    splits: tuple[Split, ...] = ("dev", "test")
    for split in splits:
        accuracy |= measure_direct(model, tokenizer, split, recipe=recipe)
    export(Policy(model, tokenizer, max_completion_tokens=recipe.max_answer_tokens), out / "adapter")
    result = DirectResult(
        recipe.name, str(out), str(out / "adapter"), accuracy, recipe.steps * recipe.batch, time.monotonic() - began
    )
    write_durably(out / "result.json", msgspec.json.encode(result))
    return result


def pairs_for(recipe: DirectRecipe) -> list[Pair]:
    """Questions of the training split and their bare answers; no test text among them."""
    tasks = generate("train", recipe.n, seed=recipe.seed)
    for tests in (held_out(), HeldOut(task.question for task in measured_on("test", recipe))):
        tests.check(task.question for task in tasks)
    return [Pair(asked(task), task.answer) for task in tasks]


def measured_on(split: Split, recipe: DirectRecipe) -> list[Task]:
    return generate(split, recipe.measure, seed=MEASURE_SEED)


def asked(task: Task) -> tuple[Message, ...]:
    return (Message("user", task.question),)


def measure_direct(model: Any, tokenizer: Any, split: Split, *, recipe: DirectRecipe) -> dict[str, float]:
    """Accuracy on a split, greedy, and at each depth of the test."""
    tasks = measured_on(split, recipe)
    replies = replies_to(model, tokenizer, [asked(task) for task in tasks], max_new_tokens=recipe.max_answer_tokens)
    right = [grade(task, reply).correct for task, reply in zip(tasks, replies, strict=True)]
    figures: dict[str, float] = {split: sum(right) / len(right)}
    if split == "test":
        for depth in sorted({task.depth for task in tasks}):
            hits = [ok for task, ok in zip(tasks, right, strict=True) if task.depth == depth]
            figures[f"test_depth_{depth}"] = sum(hits) / len(hits)
    return figures


def _settings(recipe: DirectRecipe) -> SftSettings:
    return SftSettings(
        rank=recipe.policy.rank,
        alpha=recipe.policy.alpha,
        targets=recipe.policy.targets,
        learning_rate=recipe.learning_rate,
        steps=recipe.steps,
        batch=recipe.batch,
        seed=recipe.seed,
    )


def _base(recipe: DirectRecipe, pairs: list[Pair]) -> tuple[Any, Any]:
    tiny: TinySettings | None = recipe.base.tiny
    if tiny is None:
        return open_base(recipe.base)
    texts = [text for pair in pairs for text in (pair.messages[0].text, pair.completion)]
    return tiny_base(texts, settings=tiny, seed=recipe.seed)
