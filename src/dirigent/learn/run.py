"""Train a conductor on recorded answers, from a recipe.

    python -m dirigent.learn.run recipes/real-135m.toml --values FOLDER --base BASE --out FOLDER [--seed 2]

`--values` is what `dirigent.learn.values` wrote, `--base` a GGUF file or a folder that `Base.save` wrote. Started again
with the same `--out`, it goes on from its last checkpoint; `--seconds` ends training early, to be resumed.

Writes, besides what `grpo.train` writes: `warm-start/`, the adapter that training begins with; `conductor.json` and
`selector/`, with which `dirigent prove --planner conductor` replays `adapter/` on other tables; and `SPLIT.jsonl.gz`
for each split named by `--outcomes`: every question at every price, its greedy plan and what that is worth. With
`--steps 0` the outcomes are those of the warm start.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter
from dirigent.learn.grpo import GrpoSettings, greedy_plans, train
from dirigent.learn.imitate import ImitationSettings, imitate
from dirigent.learn.policy import mark_of
from dirigent.learn.sampler import BatchedSampler
from dirigent.learn.saved_conductor import Environment, SavedConductor
from dirigent.learn.table_follow_up import FollowUpTask
from dirigent.learn.table_plans import PRICES, RecordedQuestions, TableTask, TableTaskSettings


class RealRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run in full; the TOML file mirrors it."""

    name: str
    about: str = ""
    max_plan_tokens: int = 24
    warm_start: ImitationSettings = ImitationSettings()
    grpo: GrpoSettings = GrpoSettings()
    environment: Environment = "plan-first"
    task: TableTaskSettings = TableTaskSettings()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--values", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, help="in place of the recipe's")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="change one setting")
    parser.add_argument("--steps", type=int, help="in place of the recipe's")
    parser.add_argument("--outcomes", default="dev,train", help="splits whose plans are written: dev, train, test")
    parser.add_argument("--without-worker", default="", help="write outcomes for a pool without this worker as well")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end early, to be resumed")
    options = parser.parse_args(arguments)
    recipe = opened(options.recipe, seed=options.seed, steps=options.steps, changes=options.set)
    splits = options.outcomes.split(",")
    if unknown := set(splits) - {"dev", "train", "test"}:
        raise ConfigError(f"--outcomes names {sorted(unknown)}; the splits are dev, train and test")
    base = Base.load(options.base) if options.base.is_dir() else Base.from_gguf(options.base)
    recorded = RecordedQuestions.load(options.values, device=str(base.weights["model.norm.weight"].device))
    task: TableTask | FollowUpTask
    if recipe.environment == "plan-first":
        task = TableTask(recorded, base, recipe.task)
    elif options.without_worker:
        raise ConfigError("--without-worker is for plan-first conductors: the policy's orders hold every worker")
    else:
        task = FollowUpTask(recorded, base, recipe.task)
    sampler = BatchedSampler(end=base.end, max_tokens=recipe.max_plan_tokens)
    options.out.mkdir(parents=True, exist_ok=True)
    start = warm_start(base, task, recipe.warm_start, options.out / "warm-start")
    began = time.monotonic()

    def show(facts: Mapping[str, float]) -> None:
        print(
            f"{recipe.name} {recipe.grpo.seed} {time.monotonic() - began:4.0f} s {line(facts)}",
            file=sys.stderr,
            flush=True,
        )

    policy = train(base, start, task, sampler, recipe.grpo, options.out, observe=show, stop_after_s=options.seconds)
    write = greedy_plans(base, policy, sampler)
    places = {split: task.some_training() if split == "train" else recorded.places(split) for split in splits}
    for without in ("", options.without_worker) if options.without_worker else ("",):
        for split, questions in places.items():
            name = f"{split}-without-{without}" if without else split
            with gzip.open(options.out / f"{name}.jsonl.gz", "wb") as file:
                lacking = {"without_worker": without} if without else {}
                for outcome in task.outcomes(write, questions, **lacking):
                    file.write(msgspec.json.encode(outcome) + b"\n")
    shutil.copytree(options.values / "selector", options.out / "selector", dirs_exist_ok=True)
    seen = tuple(sorted({int(mark_of(recorded.texts[q])) for q in recorded.places("train")}))
    SavedConductor(
        base=base.name,
        pool=recorded.pool,
        cards=task.cards if isinstance(task, TableTask) else {},
        max_plan_tokens=recipe.max_plan_tokens,
        recipe=recipe.name,
        environment=recipe.environment,
        seen=seen,
    ).save(options.out)


def opened(file: Path, *, seed: int | None, changes: Sequence[str], steps: int | None = None) -> RealRecipe:
    """The recipe with these changes; the task learns how many steps there are."""
    content = msgspec.toml.decode(file.read_bytes())
    for change in changes:
        where, value = change.split("=", 1)
        table, key = where.split(".", 1)
        content.setdefault(table, {})[key] = msgspec.json.decode(value)
    if seed is not None:
        for table in ("warm_start", "grpo"):
            content.setdefault(table, {})["seed"] = seed
    if steps is not None:
        content.setdefault("grpo", {})["steps"] = steps
    try:
        recipe = msgspec.convert(content, RealRecipe)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{file}: {error}") from None
    return msgspec.structs.replace(recipe, task=msgspec.structs.replace(recipe.task, steps=recipe.grpo.steps))


def warm_start(base: Base, task: TableTask | FollowUpTask, settings: ImitationSettings, folder: Path) -> Adapter:
    """The adapter that speaks the language of plans: read from the folder, or fitted and written there."""
    device = str(base.weights["model.norm.weight"].device)
    if (folder / "adapter_config.json").is_file():
        return Adapter.load(folder, device=device)

    def show(step: int, loss: float) -> None:
        if step % 25 == 0 or step == settings.steps - 1:
            print(f"warm start {step + 1}/{settings.steps}  loss {loss:.3f}", file=sys.stderr, flush=True)

    adapter = imitate(base, task.lessons, settings, observe=show)
    adapter.save(folder, base=base.name)
    return adapter


def line(facts: Mapping[str, float]) -> str:
    """One line of progress."""
    names = ("step", "reward", "right", "cost", "valid", "asks", "calls", "entropy", "from_start", "distinct", "taught")
    parts = [f"{name} {facts[name]:.3g}" for name in names if name in facts]
    parts.append(" ".join(f"{facts.get(name, 0.0):.2f}" for name in ("write_s", "score_s", "update_s")))
    if "dev/utility" in facts:
        front = "  ".join(f"{p} {facts[f'dev/{p}/right']:.3f}@{facts[f'dev/{p}/cost']:.0f}" for p in PRICES)
        parts.append(f"\n    dev {facts['dev/utility']:.4f} train {facts['dev/train_utility']:.4f}  {front}")
    return "  ".join(parts)


if __name__ == "__main__":
    main()
