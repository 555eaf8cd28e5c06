"""`dirigent eval`: planners compared on the same questions, over the same workers.

The table and the verdict go to stdout, progress to stderr. The report is written as JSON, Markdown and one HTML page,
with every question's outcome beside it, compressed. Outcomes are recorded as they come, so `--resume` continues a run
that was cut and pays for nothing twice. An `EvalRecipe`, from a file, from options, or from both, says what is
evaluated; `evaluating.py` opens it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dirigent.cli.output import FAILED, JsonOption, carry_out, print_json, print_text, say

if TYPE_CHECKING:
    from dirigent.evals.recipe import EvalRecipe
    from dirigent.evals.report import Report

ENDINGS = (".md", ".html", ".jsonl", ".outcomes.jsonl.gz")
"""The files beside the report: two pages, the record that `--resume` reads, and every question's outcome."""

RecipeArgument = Annotated[
    Path | None,
    typer.Argument(help="A recipe, such as gym/recipes/eval-gym.toml; options change it.", show_default=False),
]
TasksOption = Annotated[
    str | None,
    typer.Option(
        help="Benchmarks by name ({benchmarks}), or the gym and its sets: gym (default), gym:second-seed, gym:novel, "
        "gym:handwritten, gym:plain, gym:reasoning, gym:reasoning-new; by commas.",
        show_default=False,
    ),
]
PlannersOption = Annotated[
    str | None,
    typer.Option(
        help="{eval_planners}; on the gym also right; by commas. Default on the gym: {gym_defaults}; with a pool of "
        "yours: {live_defaults}; with a recorded one: {recorded_defaults}.",
        show_default=False,
    ),
]
PoolOption = Annotated[
    str | None,
    typer.Option(help="A dirigent.toml whose workers answer, or recorded:FILE to replay.", show_default=False),
]
OutOption = Annotated[
    str | None,
    typer.Option(metavar="<path>", help="The report, as JSON. Default: reports/NAME.json", show_default=False),
]
LimitOption = Annotated[int | None, typer.Option(help="Questions of each task. Default: 200.", show_default=False)]
DataOption = Annotated[
    Path | None,
    typer.Option(help="Folder or file with the benchmarks. Default: the Hugging Face hub.", show_default=False),
]
FitOption = Annotated[
    int | None, typer.Option(help="Questions of each task to fit planners on. Default: 60.", show_default=False)
]
MaxCostOption = Annotated[
    float | None, typer.Option(help="Most the evaluation may cost, fitting included, in USD.", show_default=False)
]


def evaluate(
    recipe: RecipeArgument = None,
    tasks: TasksOption = None,
    planners: PlannersOption = None,
    pool: PoolOption = None,
    limit: LimitOption = None,
    seed: Annotated[int | None, typer.Option(help="The seed of questions, pools and noise. Default: 1.")] = None,
    out: OutOption = None,
    data: DataOption = None,
    fit: FitOption = None,
    workers: Annotated[str | None, typer.Option(help="The gym's workers: exact (default), or local adapters.")] = None,
    adapters: Annotated[Path | None, typer.Option(help="Folder of NAME.gguf adapters, for models.")] = None,
    split: Annotated[str | None, typer.Option(help="The part of the gym: test (default), dev, novel.")] = None,
    cards: Annotated[str | None, typer.Option(help="Wording of the gym's cards: train or held_out.")] = None,
    calibration: Annotated[int | None, typer.Option(help="Gym questions that rank the workers. Default: 300.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Questions at a time. Default: 8.")] = None,
    max_cost: MaxCostOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was cut.")] = False,
    traces: Annotated[bool, typer.Option("--traces", help="Keep every run's trace in the store.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare planners on the same questions: does conducting pay?

    Example:  dirigent eval --tasks gsm8k,math500 --planners best,moa,language --pool dirigent.toml --limit 200
    """

    async def work() -> int:
        from dirigent.cli.evaluating import carried_out
        from dirigent.errors import ConfigError
        from dirigent.evals.recipe import EvalRecipe, changed, load_recipe

        if out is not None and not out.strip():
            raise ConfigError("--out names no file; write  --out reports/mine.json, or leave it out")
        wanted = changed(
            load_recipe(recipe) if recipe else EvalRecipe(limit=200),
            tasks=_names(tasks),
            planners=_names(planners),
            pool=pool,
            limit=limit,
            seed=seed,
            out=out,
            data=str(data) if data else None,
            fit=fit,
            workers=workers,
            adapters=str(adapters) if adapters else None,
            split=split,
            cards=cards,
            calibration=calibration,
            concurrency=concurrency,
            max_cost=max_cost,
        )
        file = _report_file(wanted)
        report = await carried_out(wanted, file, resume=resume, traces=traces, source=str(recipe or ""))
        return _tell(report, file, as_json=as_json)

    carry_out(work, as_json=as_json)


def _names(listed: str | None) -> tuple[str, ...] | None:
    """The names between the commas; None if the option was not given."""
    return tuple(name.strip() for name in listed.split(",") if name.strip()) if listed is not None else None


def _report_file(recipe: EvalRecipe) -> Path:
    """The report's file; the pages and the outcomes go beside it under endings of their own."""
    from dirigent.errors import ConfigError

    named = {
        "gym": f"{'-'.join(_set_words(recipe))}-{recipe.seed}",
        "recorded": f"recorded-{recipe.seed}",
        "live": f"{'-'.join(recipe.tasks)}-{recipe.seed}"[:100],
    }
    file = Path(recipe.out or Path("reports") / f"{recipe.name or named[recipe.kind]}.json")
    if file.is_dir() or recipe.out.endswith("/"):
        raise ConfigError(f"--out {file} is a folder; name a file in it, such as  --out {file / 'report.json'}")
    if file.suffix in ENDINGS:
        raise ConfigError(f"--out {file} is where the {file.suffix} beside the report goes; end it in .json")
    for page in (file.with_suffix(ending) for ending in ENDINGS):
        if page.is_dir():
            raise ConfigError(f"{page} goes beside the report, and a folder is there; give another --out")
    return file


def _set_words(recipe: EvalRecipe) -> list[str]:
    """The gym's sets that were asked, for the name of a file."""
    return ["gym", *(recipe.split if name == "gym" else name for name in recipe.gym_sets)]


def _tell(report: Report, file: Path, *, as_json: bool) -> int:
    """Write the report and print it; the exit code."""
    from dirigent.errors import ConfigError
    from dirigent.evals.page import as_html
    from dirigent.evals.report import TABLE_WIDTH, as_markdown, as_table
    from dirigent.evals.report import as_json as encoded

    pages = {".md": as_markdown(report), ".html": as_html(report)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(report))
        for ending, text in pages.items():
            file.with_suffix(ending).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {file}: {error}") from None
    if as_json:
        print_json(report)
    else:
        print_text(as_table(report, width=shutil.get_terminal_size((TABLE_WIDTH, 0)).columns))
    say(f"report: {file}, {', '.join(file.with_suffix(ending).name for ending in pages)}")
    return 0 if report.complete else FAILED
