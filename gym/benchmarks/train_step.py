"""How long a training step takes, and which part of it: generation, workers, update.

    python gym/benchmarks/train_step.py gym/recipes/gym-gpu.toml [--steps 12] [--cache graphs] [--start FOLDER] [--json]
    python gym/benchmarks/train_step.py gym/recipes/gym-gpu.toml --workers exact adapters     tables, then adapters
    python gym/benchmarks/train_step.py gym/recipes/gym-gpu.toml --stage 2 --oversample 1 --refills 0
    python gym/benchmarks/train_step.py gym/recipes/gym-gpu.toml --profile 30      what the last step consists of

Runs the recipe's first steps in a temporary folder, from a shortened warm start or from the sealed one of an earlier
run (`--start runs/gym-gpu/warm-start`), which is what a fair figure wants: plans of the right length. The first step,
which captures graphs and fills caches, is shown but not averaged. Rollouts a second, all that were drawn and carried
out, is the figure to compare: a recipe may draw more of them than it learns from, at once (`--oversample`) or in place
of groups that teach nothing (`--refills`), as most do from a start that is mostly wrong.
`--workers adapters` has the specialists that ship answer, stacked on the base, in place of the recipe's workers;
`--stage 2` offers large pools from the first step. Where both kinds of workers are named, both begin at the same start.
`--profile` also watches the last step and prints the kernels that took most of it; it is slower then, and not averaged.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dirigent_gym.train import grpo, scorer
from dirigent_gym.train.recipe import Recipe, load_conductor
from dirigent_gym.train.run import train
from dirigent_gym.train.workers import Counts

PARTS = ("generation", "workers", "update", "total")


def main() -> None:
    args = arguments()
    recipe = load_conductor(args.recipe)
    start: Path | None = args.start
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.workers or [recipe.workers.kind]:
            out = Path(folder) / kind
            figures = timed(shortened(recipe, args, kind=kind), args, out=out, start=start)
            print(json.dumps(figures), flush=True)
            start = start or out / "warm-start"


def timed(recipe: Recipe, args: argparse.Namespace, *, out: Path, start: Path | None) -> dict[str, Any]:
    """The recipe carried out, and how long its steps took."""
    if start is not None:
        shutil.copytree(start, out / "warm-start")
    began = time.monotonic()
    with watched(args.profile, step=args.steps, updates=recipe.grpo.updates), counted() as counts:
        train(recipe, out=out, quiet=True)
    seconds = time.monotonic() - began
    free_memory()
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [parts_of(row) for row in rows if row["kind"] == "train"]
    averaged = (steps[1:-1] if args.profile else steps[1:]) or steps
    mean = {name: round(statistics.mean(step[name] for step in averaged), 3) for name in PARTS}
    if not args.json:
        print(f"workers: {recipe.workers.kind}")
        print(f"{'seconds':<10}" + "".join(f"{name:>12}" for name in PARTS) + f"{'plans':>12}")
        for number, step in enumerate(steps, 1):
            print(f"step {number:<5}" + "".join(f"{step[name]:>12.3f}" for name in PARTS) + f"{step['drawn']:>12,.0f}")
        print(f"{'mean':<10}" + "".join(f"{mean[name]:>12.3f}" for name in PARTS))
    drawn = statistics.mean(step["drawn"] for step in averaged)
    return {
        "recipe": recipe.name,
        "workers": recipe.workers.kind,
        "cache": recipe.grpo.cache,
        "device": device(),
        "learned_from_a_step": recipe.grpo.prompts * recipe.grpo.rollouts,
        "drawn_a_step": round(drawn, 1),
        "steps": len(averaged),
        "mean_s": mean,
        "rollouts_a_second": round(drawn / mean["total"], 1),
        "beside_steps_s": round(seconds - sum(step["total"] for step in steps), 1),
        "asked": msgspec.to_builtins(counts[0]) if counts else None,
    }


@contextmanager
def counted() -> Iterator[list[Counts]]:
    """Inside, what the workers of a run are asked is counted; the list has it once they are closed."""
    opened, found = scorer.open_scorer, []

    @contextmanager
    def counting(*given: Any, **named: Any) -> Iterator[scorer.Scorer]:
        with opened(*given, **named) as one:
            yield one
            if hasattr(one.workers, "take_counts"):
                found.append(one.workers.take_counts())

    scorer.open_scorer = counting
    try:
        yield found
    finally:
        scorer.open_scorer = opened


def free_memory() -> None:
    """What a run leaves behind would be in the next one's way."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def parts_of(row: dict[str, Any]) -> dict[str, float]:
    """A step's seconds, and the plans it drew. What is neither writing nor carrying out is the update: forward,
    backward, optimiser."""
    generation, workers, total = row["sample_seconds"], row["score_seconds"], row["step_seconds"]
    return {
        "generation": generation,
        "workers": workers,
        "update": max(0.0, total - generation - workers),
        "total": total,
        "drawn": row["plans_drawn"],
    }


@contextmanager
def watched(kernels: int, *, step: int, updates: int) -> Iterator[None]:
    """Inside, this step of a run is profiled, with all of its updates, and so many of its kernels printed, the longest
    first."""
    if not kernels:
        yield
        return
    from torch.profiler import ProfilerActivity, profile
    from transformers import TrainerCallback

    kind = "cpu" if device() == "cpu" else "cuda"
    profiler = profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (kind == "cuda"))

    class Watching(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == (step - 1) * updates:
                profiler.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == step * updates:
                profiler.stop()
                print(profiler.key_averages().table(sort_by=f"self_{kind}_time_total", row_limit=kernels))

    made = grpo.make_trainer

    def watching(*given: Any, **named: Any) -> Any:
        trainer = made(*given, **named)
        trainer.add_callback(Watching())
        return trainer

    grpo.make_trainer = watching
    try:
        yield
    finally:
        grpo.make_trainer = made


def shortened(recipe: Recipe, args: argparse.Namespace, *, kind: str) -> Recipe:
    """The same steps over workers of this kind, fewer of them, with nothing measured in between."""
    replace = msgspec.structs.replace
    given = {
        name: getattr(args, name)
        for name in ("prompts", "rollouts", "minibatch_rows", "oversample", "refills", "cache")
    }
    changes = {name: value for name, value in given.items() if value is not None}
    grpo = replace(recipe.grpo, steps=args.steps, save_every_steps=args.steps, **changes)
    warm = replace(recipe.warm_start, measure=2)
    if args.start is None:
        warm = replace(warm, steps=min(warm.steps, args.warm_steps), n=min(warm.n, 2000))
    folders = tuple(args.adapters) if args.adapters else recipe.workers.adapters
    # Only workers by table are misled as much as a recipe says.
    misled = recipe.workers.misled if kind == "exact" else 0.0
    workers = replace(recipe.workers, kind=kind, adapters=folders, misled=misled)
    rows = recipe.rows if args.stage is None else replace(recipe.rows, first_stage=args.stage)
    evals = replace(recipe.eval, every_steps=args.steps + 1, n=2)
    return replace(recipe, grpo=grpo, warm_start=warm, eval=evals, workers=workers, rows=rows)


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm-steps", type=int, default=100, help="of the warm start, where none is given")
    parser.add_argument("--start", type=Path, help="a sealed warm start to begin from")
    parser.add_argument("--cache", choices=("auto", "dynamic", "static", "graphs"))
    parser.add_argument(
        "--workers", nargs="+", choices=("exact", "adapters"), help="one after the other (default: the recipe's kind)"
    )
    parser.add_argument("--adapters", nargs="+", help="folders of adapters in place of the recipe's")
    parser.add_argument("--stage", type=int, choices=(0, 1, 2), help="of the curriculum, in place of the recipe's")
    parser.add_argument("--profile", type=int, default=0, metavar="KERNELS", help="of the last step, the longest")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--rollouts", type=int)
    parser.add_argument("--minibatch-rows", type=int)
    parser.add_argument("--oversample", type=float, help="plans drawn for each one learned from, after the first stage")
    parser.add_argument("--refills", type=int, help="how often groups that teach nothing are drawn anew; 0: never")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
