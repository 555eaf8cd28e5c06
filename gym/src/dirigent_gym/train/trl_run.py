"""Train a whole model as a conductor with TRL's `GRPOTrainer`, on several GPUs, from a recipe.

    accelerate launch --config_file recipes/zero3.yaml -m dirigent_gym.train.trl_run recipes/paper-7b.toml --out FOLDER

TRL samples (with vLLM if the recipe asks for it), computes advantages and loss, and divides the model among the GPUs
with accelerate. This program gives it two things by its public interface: a dataset of prompts, and a reward function,
which carries each plan out over the recipe's workers and judges the answer. `[trl]` in the recipe is `trl.GRPOConfig`,
key by key. For small models on one GPU, `dirigent.learn.grpo` is quicker. Needs the extra `trl`.

A plan that met a fault of a worker or a judge gets the mean reward of its group, as far as this process scores the
group, so that the fault changes nothing: TRL would count a missing reward as 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dirigent import toml
from dirigent.errors import ConfigError, DirigentError, LimitError
from dirigent.learn.live_plans import Outcome, carry_out
from dirigent.limits import Budget, Limits
from dirigent.messages import conversation
from dirigent.plan.plan import Dialect
from dirigent.plan.prompt import prompted_planner_messages
from dirigent.sandbox import Sandbox, open_sandbox
from dirigent.tasks.tables import decoded
from dirigent.tasks.task import Task
from dirigent.workers.pool import Pool
from dirigent_gym.train.workers import open_pool

SET_HERE = ("output_dir", "seed", "remove_unused_columns")
"""Settings of TRL that this program sets itself."""


class PlanRewards(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    invalid: float = 0.0
    wrong: float = 0.5
    right: float = 1.0


class TrlRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a run; the TOML file mirrors them. Paths are relative to the folder the program starts in."""

    name: str
    model: str
    """A model of the Hugging Face hub, or a folder in its format."""
    pool: str
    """A dirigent.toml that names the workers."""
    tasks: str
    """Training tasks as JSON lines."""
    dev_tasks: str = ""
    """Tasks to measure on, if `[trl]` sets an `eval_strategy`."""
    about: str = ""
    seed: int = 1
    profile: str = ""
    """Only the workers of this profile of the pool, without the worker that plans for it."""
    dialect: Dialect = "lists"
    max_steps: int = 5
    """Most steps of a plan."""
    concurrency: int = 64
    """Plans that a process carries out at the same time."""
    deadline_s: float = 300.0
    """For one plan; a plan that takes longer counts as a fault of the workers."""
    max_cost_usd: float | None = None
    """The most that the workers may cost, shared evenly among the processes. The run ends once a call is refused."""
    reward: PlanRewards = PlanRewards()
    trl: dict[str, Any] = {}
    """Settings of `trl.GRPOConfig`."""


class PlanReward:
    """A reward function for `GRPOTrainer`: scores each completion as a plan for its task."""

    __name__ = "plan"

    def __init__(
        self, recipe: TrlRecipe, pool: Pool, run: Callable[[Any], Any], *, sandbox: Sandbox | None = None
    ) -> None:
        self._recipe = recipe
        self._pool = pool
        self._run = run
        self._sandbox = sandbox
        self._limits = Limits(max_steps=recipe.max_steps, deadline_s=recipe.deadline_s)
        share = recipe.max_cost_usd
        self._budget = Budget(max_cost_usd=None if share is None else share / int(os.environ.get("WORLD_SIZE", "1")))

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Sequence[Mapping[str, str]]],
        task: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float]:
        tasks = [msgspec.json.decode(one, type=Task) for one in task]
        outcomes: list[Outcome] = self._run(self._outcomes([turns[-1]["content"] for turns in completions], tasks))
        if any(one.unpaid for one in outcomes):
            raise LimitError(f"workers have cost ${self._budget.spent_usd:.4g} here; raise max_cost_usd to go on")
        if log_metric is not None:
            for name, value in _figures(outcomes).items():
                log_metric(name, value)
        return rewards(outcomes, [one.id for one in tasks], self._recipe.reward)

    async def _outcomes(self, texts: Sequence[str], tasks: Sequence[Task]) -> list[Outcome]:
        places = asyncio.Semaphore(self._recipe.concurrency)

        async def outcome(text: str, task: Task) -> Outcome:
            async with places:
                return await carry_out(
                    text,
                    task,
                    self._pool,
                    limits=self._limits,
                    dialect=self._recipe.dialect,
                    ledger=self._budget,
                    sandbox=self._sandbox,
                )

        return list(await asyncio.gather(*(outcome(text, task) for text, task in zip(texts, tasks, strict=True))))


def rewards(outcomes: Sequence[Outcome], groups: Sequence[str], settings: PlanRewards) -> list[float]:
    """The reward of each plan; `groups` names its question. A dropped plan gets the mean of its group's others."""
    known: dict[str, list[float]] = {}
    for one, group in zip(outcomes, groups, strict=True):
        if not one.dropped:
            known.setdefault(group, []).append(_reward(one, settings))
    means = {group: sum(found) / len(found) for group, found in known.items()}
    return [
        means.get(group, settings.wrong) if one.dropped else _reward(one, settings)
        for one, group in zip(outcomes, groups, strict=True)
    ]


def _reward(one: Outcome, settings: PlanRewards) -> float:
    if not one.valid:
        return settings.invalid
    return settings.right if one.correct else settings.wrong


def _figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    kept = [one for one in outcomes if not one.dropped]
    valid = [one for one in kept if one.valid]
    figures = {"dropped": 1 - len(kept) / len(outcomes)}
    if kept:
        figures |= {"valid": len(valid) / len(kept), "right": sum(one.correct for one in kept) / len(kept)}
    if valid:
        figures["steps"] = sum(len(one.trace.steps) for one in valid) / len(valid)
        figures["cost_usd"] = sum(one.trace.cost_usd for one in valid) / len(valid)
    return figures


def train(recipe: TrlRecipe, out: Path, *, resume: bool = False) -> None:
    """Train, with checkpoints in `out` as TRL writes them; the model at the end is in `out/model`."""
    from trl import GRPOTrainer

    config = trl_config(recipe, out)
    with opened(recipe) as (pool, sandbox, run):
        trainer = GRPOTrainer(
            model=recipe.model,
            reward_funcs=PlanReward(recipe, pool, run, sandbox=sandbox),
            args=config,
            train_dataset=prompts(read_tasks(recipe.tasks), pool, recipe),
            eval_dataset=prompts(read_tasks(recipe.dev_tasks), pool, recipe) if recipe.dev_tasks else None,
        )
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model(str(out / "model"))


def trl_config(recipe: TrlRecipe, out: Path) -> Any:
    """The recipe's `[trl]` as TRL's own settings. Raises ConfigError for a key that TRL does not know."""
    from dataclasses import fields

    from trl import GRPOConfig

    known = [field.name for field in fields(GRPOConfig) if field.init]
    for key in recipe.trl:
        if key in SET_HERE:
            raise ConfigError(f"[trl] sets {key}, which the program sets itself; leave it out")
        if key not in known:
            raise ConfigError(f"[trl] sets {key}, which trl.GRPOConfig does not know{toml.nearest(key, known)}")
    try:
        return GRPOConfig(output_dir=str(out), seed=recipe.seed, remove_unused_columns=False, **recipe.trl)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[trl] of {recipe.name}: {error}") from error


def prompts(tasks: Sequence[Task], pool: Pool, recipe: TrlRecipe) -> Any:
    """The tasks as a dataset: the planner's prompt, and the task itself for the reward."""
    from datasets import Dataset

    limits, secret = Limits(max_steps=recipe.max_steps), secrets.token_hex(8)
    rows = []
    for task in tasks:
        asked = prompted_planner_messages(
            conversation(task.question), pool.infos, limits=limits, dialect=recipe.dialect, secret=secret
        )
        turns = [{"role": message.role, "content": message.text} for message in asked]
        rows.append({"prompt": turns, "task": msgspec.json.encode(task).decode()})
    return Dataset.from_list(rows)


def read_tasks(file: str) -> list[Task]:
    if not Path(file).is_file():
        raise ConfigError(f"there is no file of tasks {file!r}; name one with JSON lines of id, question and answer")
    tasks = [task for _, task in decoded(Path(file), Task)]
    if not tasks:
        raise ConfigError(f"{file} holds no tasks")
    return tasks


@contextmanager
def opened(recipe: TrlRecipe) -> Iterator[tuple[Pool, Sandbox | None, Callable[[Any], Any]]]:
    """Opens the workers and, if any task needs one, a sandbox; also yields a function that runs their coroutines."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def enter() -> tuple[Pool, Sandbox | None]:
            pool = await stack.enter_async_context(open_pool(Path(recipe.pool), profile=recipe.profile))
            files = [file for file in (recipe.tasks, recipe.dev_tasks) if file]
            programs = any(task.grader == "code" for file in files for task in read_tasks(file))
            return pool, await stack.enter_async_context(open_sandbox()) if programs else None

        try:
            pool, sandbox = runner.run(enter())
            yield pool, sandbox, runner.run
        finally:
            runner.run(stack.aclose())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in --out")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, e.g. trl.bf16"
    )
    options = parser.parse_args(arguments)
    try:
        recipe = load_recipe(options.recipe, changes=options.set)
        train(recipe, options.out, resume=options.resume)
    except DirigentError as error:
        sys.exit(f"error: {error}")


def load_recipe(file: Path, *, changes: Sequence[str] = ()) -> TrlRecipe:
    """The recipe in this file. A change is `KEY=VALUE` or `TABLE.KEY=VALUE`, the value as JSON or as plain text."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the recipe {file} cannot be read: {error.strerror or error}") from None
    recipe = toml.decode(text, TrlRecipe, file=file.name)
    content = msgspec.to_builtins(recipe)
    for change in changes:
        where, _, value = change.partition("=")
        table, _, key = where.rpartition(".")
        try:
            (content[table] if table else content)[key] = json.loads(value)
        except ValueError:
            (content[table] if table else content)[key] = value
        except KeyError:
            raise ConfigError(f"--set {change}: the recipe has no table {table!r}") from None
    try:
        return msgspec.convert(content, TrlRecipe)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--set {' '.join(changes)}: {error}") from None


if __name__ == "__main__":
    main()
