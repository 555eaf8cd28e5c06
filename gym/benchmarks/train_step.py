"""The seconds of a training step and of its parts: writing plans, carrying them out, the update.

    python gym/benchmarks/train_step.py gym/recipes/gym-gpu.toml [--steps 12] [--start FOLDER] [--oversample 1] [--json]

Runs the recipe's first steps in a temporary folder, from a shortened warm start or from that of an earlier run
(`--start runs/gym-gpu/warm-start`), which a fair figure needs: plans of the right length. The first step fills caches;
it is shown and not averaged. Compare plans a second, over all plans written and carried out: a recipe may draw more of
them than it asks for (`--oversample`), after its first stage.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import torch

from dirigent_gym.train.recipe import Recipe, load_conductor
from dirigent_gym.train.run import train_conductor

PARTS = {"writing": "write_s", "workers": "score_s", "update": "update_s", "total": "step_seconds"}


def main() -> None:
    args = arguments()
    recipe = shortened(load_conductor(args.recipe), args)
    with tempfile.TemporaryDirectory() as folder:
        if args.start is not None:
            shutil.copytree(args.start, Path(folder) / "warm-start")
        train_conductor(recipe, out=Path(folder), quiet=True)
        rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    print(json.dumps(timed(recipe, [row for row in rows if row["kind"] == "train"], quiet=args.json)))


def timed(recipe: Recipe, rows: list[dict[str, Any]], *, quiet: bool) -> dict[str, Any]:
    """The mean seconds of each part of a step, without the first step."""
    steps = [{part: row[name] for part, name in PARTS.items()} | {"plans": row["rollouts"]} for row in rows]
    averaged = steps[1:] or steps
    mean = {name: round(statistics.mean(step[name] for step in averaged), 3) for name in (*PARTS, "plans")}
    if not quiet:
        print(f"{'seconds':<10}" + "".join(f"{name:>12}" for name in mean))
        for number, step in enumerate(steps, 1):
            print(f"step {number:<5}" + "".join(f"{step[name]:>12.3f}" for name in mean))
    return {
        "recipe": recipe.name,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "steps": len(averaged),
        "mean_s": {part: mean[part] for part in PARTS},
        "plans_a_step": mean["plans"],
        "plans_a_second": round(mean["plans"] / mean["total"], 1),
    }


def shortened(recipe: Recipe, args: argparse.Namespace) -> Recipe:
    """The same recipe with fewer steps and no measurements between them."""
    replace = msgspec.structs.replace
    given = {name: getattr(args, name) for name in ("prompts", "rollouts", "minibatch_rows", "oversample")}
    changes = {name: value for name, value in given.items() if value is not None}
    warm = replace(recipe.warm_start, measure=2)
    if args.start is None:
        warm = replace(warm, steps=min(warm.steps, args.warm_steps), n=min(warm.n, 2000))
    return replace(
        recipe,
        grpo=replace(recipe.grpo, steps=args.steps, save_every_steps=args.steps, **changes),
        warm_start=warm,
        eval=replace(recipe.eval, every_steps=args.steps + 1, n=2),
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm-steps", type=int, default=100, help="steps of the warm start, unless --start is given")
    parser.add_argument("--start", type=Path, help="the warm start of an earlier run to begin from")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--rollouts", type=int)
    parser.add_argument("--minibatch-rows", type=int)
    parser.add_argument("--oversample", type=float, help="groups drawn for each one asked for, after the first stage")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
