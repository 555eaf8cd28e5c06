"""The Conductor paper's whole table, run with a stub in place of the models: 7 tasks, 7 workers, every method.

    python benchmarks/paper_table.py [--rows 3] [--fit 2] [--out docs/results/paper-dry-run] [--json]

Proves that with keys one command, `dirigent eval recipes/eval-paper.toml`, gives the table: the recipe, the pool file,
the loaders (a few made-up rows in each benchmark's published form), the three wire formats, the sandbox, every planner
and the report are the real ones; only the models' replies come from a provider on loopback, so the accuracies mean
nothing. Then it estimates the cost of the real run. Exits 1 if any planner misses any question.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.published_rows import published  # noqa: E402
from tests.stub_provider import StubProvider  # noqa: E402
from tests.stub_wires import StubCall  # noqa: E402

from dirigent.cli.evaluating import limits_of  # noqa: E402
from dirigent.config.build import card  # noqa: E402
from dirigent.config.file import Loaded, WorkerConfig, load_config  # noqa: E402
from dirigent.config.runtime import open_runtime  # noqa: E402
from dirigent.evals.costing import Estimate, estimate_by_planner  # noqa: E402
from dirigent.evals.entries import Evaluated  # noqa: E402
from dirigent.evals.evaluate import evaluate  # noqa: E402
from dirigent.evals.live import LiveField, live_pool  # noqa: E402
from dirigent.evals.questions import gather, grading, held_out  # noqa: E402
from dirigent.evals.recipe import EvalRecipe, load_recipe  # noqa: E402
from dirigent.evals.record import Outcome, source_commit  # noqa: E402
from dirigent.evals.report import Report, as_table  # noqa: E402
from dirigent.messages import Event  # noqa: E402
from dirigent.show.words import usd_text  # noqa: E402
from dirigent.tasks.benchmarks import BENCHMARKS  # noqa: E402
from dirigent.workers.worker import Price  # noqa: E402

KEY = "DRY_RUN_KEY"
SIZES = {"math500": 500, "mmlu": 14042, "rlpr": 15540, "livecodebench": 175, "aime24": 30, "aime25": 30,
         "bigcodebench_hard": 148, "gpqa": 198}  # fmt: skip
"""The number of questions of each test, as published."""
NEEDS = {
    "livecodebench": "a machine that can sandbox",
    "bigcodebench_hard": "a machine that can sandbox; only questions that need nothing beyond the standard library are "
    "asked, how many is seen then, so its figures are **not comparable** with published ones",
    "gpqa": "its terms accepted on the hub, and `HF_TOKEN`",
}
"""The needs of a task besides the workers' keys."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3, help="made-up questions of each task")
    parser.add_argument("--fit", type=int, default=2, help="further questions to fit on")
    parser.add_argument("--out", type=Path, default=None, help="write PATH.json and PATH.md")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    args = parser.parse_args()
    found = asyncio.run(dry_run(rows=args.rows, fit=args.fit))
    if args.out is not None:
        args.out.with_suffix(".json").write_text(json.dumps(found.figures, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(as_page(found))
    if not args.json:
        print(as_table(found.report))
        print(as_page(found))
    print(json.dumps(found.figures))
    sys.exit(0 if found.figures["whole"] else 1)


class Counts(msgspec.Struct, frozen=True):
    asked: int
    fit: int


class DryRun(msgspec.Struct, frozen=True):
    report: Report
    counts: dict[str, Counts]
    """The real run's questions of each task."""
    estimates: dict[str, Estimate]
    figures: dict[str, Any]


async def dry_run(*, rows: int, fit: int) -> DryRun:
    """The unchanged recipe over the stub, with a few rows of each task."""
    began = time.monotonic()
    recipe = load_recipe(ROOT / "recipes" / "eval-paper.toml")
    real = load_config(Path(recipe.pool))
    os.environ[KEY] = "not-a-key"
    seen: list[Outcome] = []

    def observe(event: Event) -> None:
        if isinstance(event, Evaluated):
            seen.append(event.outcome)

    with tempfile.TemporaryDirectory() as folder:
        most = max(rows + fit, 3 * fit)  # a third of a set at most is held out
        stub = StubProvider(Answers(recipe, most).answer)
        async with stub, open_runtime(stubbed(real, stub)) as runtime:
            questions = await gather(
                recipe.tasks, data=written(recipe, most, Path(folder)), limit=rows, fit=fit, seed=recipe.seed
            )
            pool, trained = live_pool(runtime, recipe.planners)
            async with grading(questions) as (questions, sandbox):
                field = LiveField(
                    questions,
                    pool,
                    seed=recipe.seed,
                    limits=limits_of(recipe),
                    sandbox=sandbox,
                    trained=trained,
                    pool_name="a stub on loopback",
                )
                report = await evaluate(
                    field,
                    recipe.planners,
                    concurrency=recipe.concurrency,
                    commit=await source_commit(),
                    date=datetime.now(UTC).date().isoformat(),
                    observe=observe,
                )
        calls = len(stub.calls)
    prices = {worker.name: card(worker).price or Price() for worker in real.config.worker}
    counts = counts_of(recipe)
    estimates = estimated(recipe, seen, prices, counts=counts, fit_of={task.id for task in questions.fit})
    figures = figures_of(report, estimates, max_cost_usd=recipe.max_cost, calls=calls, seconds=time.monotonic() - began)
    return DryRun(report, counts, estimates, figures)


def stubbed(real: Loaded, stub: StubProvider) -> Loaded:
    """The same workers at the stub's address, with the vendors' prices and a made-up key."""

    def moved(worker: WorkerConfig) -> WorkerConfig:
        wire = worker.kind if worker.kind in ("anthropic", "gemini") else "openai"
        return msgspec.structs.replace(
            worker,
            base_url=stub.url(wire),  # type: ignore[arg-type]
            api_key_env=KEY,
            price=card(worker).price or Price(),
            requests_per_minute=None,
        )

    config = msgspec.structs.replace(real.config, worker=tuple(moved(worker) for worker in real.config.worker))
    return msgspec.structs.replace(real, config=config)


def written(recipe: EvalRecipe, n: int, folder: Path) -> Path:
    """Made-up rows of every task, in a data folder."""
    for name in sets_of(recipe):
        lines = (json.dumps(row) for row, _ in published(name, n))
        (folder / f"{BENCHMARKS[name].files[-1]}.jsonl").write_text("\n".join(lines))
    return folder


def sets_of(recipe: EvalRecipe) -> list[str]:
    """The tasks, and other benchmarks that are their training parts."""
    return list(dict.fromkeys([*recipe.tasks, *(BENCHMARKS[name].train_from or name for name in recipe.tasks)]))


class Answers:
    """The stub's replies: a plan if the request asks for one, else an answer; a stronger model is right more often."""

    STRENGTH = {"gpt-5": 1.0, "gemini-2.5-pro": 0.8, "claude-sonnet-4-0": 0.75, "qwen/qwen3-32b": 0.55}  # noqa: RUF012
    """How often a model is right. gpt-5 is the best, as in the paper, because the estimate depends on the best one."""
    PLAN = (
        "model_id = [0, 1, 2]\nsubtasks = ['Plan it.', 'Work it out.', 'Answer it.']\naccess_list = [[], [0], [0, 1]]"
    )
    """Three steps over the three strongest, which is the trained conductor's mean in the paper."""
    ACCEPT = "model_id = []\nsubtasks = []\naccess_list = []"

    def __init__(self, recipe: EvalRecipe, n: int) -> None:
        self.right = {(name, i): reply for name in sets_of(recipe) for i, (_, reply) in enumerate(published(name, n))}

    def answer(self, call: StubCall) -> str:
        text = json.dumps(call.body, ensure_ascii=False)
        if call.model == "conductor-7b":
            return self.ACCEPT if '"assistant"' in text else self.PLAN
        if "access_list" in text or '"steps"' in text:
            return (
                "model_id = [0, 2]\nsubtasks = ['Answer.', 'Check the answer and give it.']\naccess_list = [[], 'all']"
            )
        found = re.search(r"\[(\w+) #(\d+)\]", text)
        if found is None:
            return "The answer is unknown."
        lot = hashlib.blake2b(f"{call.model} {found[0]}".encode(), digest_size=2).digest()
        if int.from_bytes(lot) / 65536 > self.STRENGTH.get(call.model, 0.4):
            return "The answer is 0."
        return self._reply(found[1], int(found[2]), text)

    def _reply(self, name: str, i: int, text: str) -> str:
        reply = self.right.get((name, i), "")
        if name != "gpqa":
            return reply
        letter = re.search(rf"([A-D])\. {reply}", text)
        return f"The answer is ({letter[1]})." if letter else reply


def counts_of(recipe: EvalRecipe) -> dict[str, Counts]:
    """The questions of each task that the real run asks and fits on, by the rules of `gather`, from the hub."""

    def counts(name: str) -> Counts:
        other = BENCHMARKS[name].train_from
        has_training = BENCHMARKS[name].train_hub or (other and other not in recipe.tasks)
        held = 0 if has_training else held_out(SIZES[name], fit=recipe.fit)
        asked = SIZES[name] - held
        train = min(recipe.fit, SIZES.get(other) or recipe.fit)
        return Counts(min(asked, recipe.limit or asked), train if has_training else held)

    return {name: counts(name) for name in recipe.tasks}


def estimated(
    recipe: EvalRecipe,
    seen: list[Outcome],
    prices: dict[str, Price],
    *,
    counts: dict[str, Counts],
    fit_of: set[str],
) -> dict[str, Estimate]:
    """The cost of the real run, planner by planner; `fitting` is the cost of choosing and learning."""
    test = [outcome for outcome in seen if outcome.task not in fit_of]
    asked = {name: count.asked for name, count in counts.items()}
    found = estimate_by_planner(test, prices, questions=asked, max_output_tokens=recipe.max_output_tokens)
    fitting = estimate_by_planner(
        [outcome for outcome in seen if outcome.task in fit_of],
        prices,
        questions={name: count.fit for name, count in counts.items()},
        max_output_tokens=recipe.max_output_tokens,
    )
    return {**sized(found), "fitting": sum(fitting.values(), Estimate(0.0, 0.0, 0.0))}


def sized(found: dict[str, Estimate]) -> dict[str, Estimate]:
    """The estimates, with planners of equal cost at the conductor's cost and not at that of the stub's sizes."""
    measure = found.get("conductor")
    if measure is None:
        return found
    return {
        name: one.times(measure.usual_usd / one.usual_usd) if name in ("vote", "self-moa") and one.usual_usd else one
        for name, one in found.items()
    }


def figures_of(
    report: Report, estimates: dict[str, Estimate], *, max_cost_usd: float | None, calls: int, seconds: float
) -> dict[str, Any]:
    total = sum(estimates.values(), Estimate(0.0, 0.0, 0.0))
    n = report.tasks["by_task"]
    short = {
        f"{planner} {task}": row.n
        for task, rows in report.by_task.items()
        for planner, row in rows.items()
        if row.n != n[task] or row.failed or row.valid < 1  # the stub writes valid plans, in the dialect it is asked in
    }
    return {
        "tasks": len(report.by_task),
        "workers": len(report.prices),
        "planners": len(report.planners),
        "cells": len(report.by_task) * len(report.planners),
        "short": short,
        "whole": report.complete and not short,
        "calls": calls,
        "seconds": round(seconds, 1),
        "estimate_usual_usd": round(total.usual_usd),
        "estimate_most_usd": round(total.most_usd),
        "max_cost_usd": max_cost_usd,
        "estimate_calls": round(total.calls),
        "by_planner_usd": {name: round(found.usual_usd, 1) for name, found in estimates.items()},
        "commit": report.commit,
        "date": report.date,
        "seed": report.seed,
        "prices": f"genai-prices {version('genai-prices')}",
    }


def as_page(found: DryRun) -> str:
    figures = found.figures
    lines = [
        "# The paper's table: a dry run and what it would cost",
        "",
        f"`python benchmarks/paper_table.py`: {figures['tasks']} tasks x {figures['planners']} planners = "
        f"{figures['cells']} cells over {figures['workers']} workers, {'all' if figures['whole'] else 'NOT all'} "
        f"complete; {figures['calls']:,} calls to a stub in {figures['seconds']:.0f} s. Replies were made up, so no "
        "accuracy is shown.",
        "",
        "With keys, `dirigent eval recipes/eval-paper.toml` fills the table. Its cost is estimated from the calls of "
        "the dry run, list prices, assumed question lengths, and replies of 900 tokens (usual) or 4,096 (most). "
        "Three things are unknown beforehand: the best worker, the samples that cost as much as the conductor, and how "
        "many of BigCodeBench's questions need no library; all are counted. **The conductor's own planning counts as "
        "free**, here and in the table: its calls and tokens count, but no USD, as it runs on a machine of your own.",
        "",
        *needed(found),
        "## Cost",
        "",
        "| planner | calls | usual, USD | most, USD |",
        "| --- | --- | --- | --- |",
    ]
    for name, cost in found.estimates.items():
        lines.append(f"| {name} | {cost.calls:,.0f} | {usd_text(cost.usual_usd)} | {usd_text(cost.most_usd)} |")
    total = sum(found.estimates.values(), Estimate(0.0, 0.0, 0.0))
    lines.append(f"| **all** | {total.calls:,.0f} | {usd_text(total.usual_usd)} | {usd_text(total.most_usd)} |")
    if said := stopped(figures["max_cost_usd"], total):
        lines += ["", said]
    unpriced = [name for name, price in found.report.prices.items() if price is None or not price.output]
    if unpriced:
        lines += ["", f"Taken as free, for want of a price: {', '.join(unpriced)}."]
    made = f"Commit `{figures['commit'] or 'unknown'}`, {figures['date']}, seed {figures['seed']}."
    return "\n".join([*lines, "", *priced(found), made, ""])


def stopped(max_cost_usd: float | None, total: Estimate) -> str:
    """A note that the recipe's own limit may end the run early; empty if it cannot."""
    if max_cost_usd is None or total.most_usd <= max_cost_usd:
        return ""
    return (
        f"The recipe says `max_cost = {max_cost_usd:g}`, which is below the most: if replies are long, the run "
        "stops there with rows unfinished. Answers until then are kept; `--resume` with a higher `--max-cost` "
        "continues."
    )


def needed(found: DryRun) -> list[str]:
    """The needs of the rows."""
    lines = [
        "## What it needs",
        "",
        "Every row needs the keys that `recipes/pools/seven-workers.toml` names. `conductor` and `conductor:2` need a "
        "trained 7B, which does not ship: train it by `recipes/paper-7b.toml` and serve it yourself where the pool's "
        "file says; until then leave both out of `planners`. `vote` and `self-moa` are sized by the cost of the "
        "conductor, and without it by that of `language`.",
        "",
        "| task | questions asked | fitted on | needs besides |",
        "| --- | --- | --- | --- |",
    ]
    for name, count in found.counts.items():
        lines.append(f"| {name} | {count.asked:,} | {count.fit:,} | {NEEDS.get(name, '')} |")
    return [*lines, ""]


def priced(found: DryRun) -> list[str]:
    """The prices behind the estimate, and their date."""
    lines = [
        "## Prices",
        "",
        f"USD for a million tokens, as {found.figures['prices']} has them for {found.figures['date']}:",
        "",
        "| worker | input | output |",
        "| --- | --- | --- |",
    ]
    for name, price in found.report.prices.items():
        known = price or Price()
        lines.append(f"| {name} | {known.input:g} | {known.output:g} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
