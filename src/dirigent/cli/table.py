"""`dirigent table`: import recorded answers or live traffic, show a table's figures of workers, export it as lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dirigent.cli.output import ConfigOption, JsonOption, carry_out, open_output, print_json, print_text, say
from dirigent.cli.output import table as columns

if TYPE_CHECKING:
    from dirigent.learn.table import Table
    from dirigent.learn.table_import import Prices

app = typer.Typer(
    help="The table of graded answers: import, from-traffic, show, export.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MOST_COLUMNS = 8
"""With more kinds of questions than this, each has a line and each worker a column."""

FolderArgument = Annotated[Path, typer.Argument(help="The table's folder.", show_default=False)]


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Files of recorded answers.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The folder of the new table.", show_default=False)],
    questions: Annotated[
        list[Path] | None,
        typer.Option(help="A file of questions, for replies without them; several times.", show_default=False),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            help="List prices as JSON, for outputs without a cost. Default: prices_*.json beside the first file, "
            "else today's price lists.",
            show_default=False,
        ),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="A file that keeps comparisons for the next import.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a table of recorded answers: outputs or scores of several models, or replies of one model in roles.

    Example:  dirigent table import roles_a.jsonl.gz --questions questions_a.jsonl.gz --out reports/roles
    """

    async def work() -> None:
        from dirigent.errors import ConfigError
        from dirigent.learn.table_import import import_files

        if (out / "table.json").exists():
            raise ConfigError(f"{out} holds a table already; give another --out, or remove it")
        found = await import_files(
            files, questions=questions or (), prices=_prices(files, prices), cache=cache, say=say
        )
        found.save(out)
        summary = {"questions": len(found.questions), "workers": len(found.workers), "answers": len(found.answers)}
        if as_json:
            print_json({"table": str(out), "unit": found.unit, **summary})
        else:
            say(", ".join(f"{count:,} {what}" for what, count in summary.items()))
            say(f"written to {out}  (dirigent table show {out})")

    carry_out(work, as_json=as_json)


@app.command("from-traffic")
def from_traffic(
    out: Annotated[Path, typer.Option(help="The folder of the new table.", show_default=False)],
    labels: Annotated[
        Path | None,
        typer.Option(help='JSON lines of {"trace_id": …, "answer": …} with the right answers.', show_default=False),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a table of the store's runs that have feedback, or a label: whom live traffic asked, and how right it was.

    Example:  dirigent table from-traffic --out traffic
    """

    async def work() -> None:
        from dirigent.cli.storage import configured_store
        from dirigent.errors import ConfigError
        from dirigent.learn.traffic import read_labels, traffic_table

        if (out / "table.json").exists():
            raise ConfigError(f"{out} holds a table already; give another --out, or remove it")
        known = read_labels(labels) if labels is not None else {}
        async with configured_store(config) as store:
            found = await traffic_table(store, labels=known)
        found.save(out)
        judged = sum(answer.right is not None for answer in found.answers)
        keys = {answer.source for answer in found.answers if answer.source}
        summary = {"questions": len(found.questions), "workers": len(found.workers), "answers": len(found.answers)}
        if as_json:
            print_json({"table": str(out), "unit": found.unit, "graded": judged, "sources": len(keys), **summary})
        else:
            say(", ".join(f"{count:,} {what}" for what, count in summary.items()) + f", {judged:,} of them graded")
            say(f"written to {out}  (dirigent table show {out})")

    carry_out(work, as_json=as_json)


@app.command()
def show(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Show each worker's accuracy on each kind of question, with 95% intervals, and the cost of an answer.

    Example:  dirigent table show reports/roles
    """

    async def work() -> None:
        from dirigent.learn.table import Table

        found = Table.load(folder)
        cells = _matrix(found)
        if as_json:
            print_json({"unit": found.unit, "workers": cells})
            return
        kinds = list(dict.fromkeys(kind for worker in cells for kind in worker["kinds"]))
        rows = [
            [
                worker["name"] + (" (second step)" if worker["reads"] else ""),
                _cell(worker["all"]),
                *(_cell(worker["kinds"].get(kind)) for kind in kinds),
                f"{worker['cost']:.3g}",
                f"{worker['answers']:,}",
            ]
            for worker in cells
        ]
        header = ["worker", "all", *kinds, f"cost ({found.unit})", "answers"]
        lines = [header, *rows]
        if len(kinds) > MOST_COLUMNS:
            lines = [list(line) for line in zip(*lines, strict=True)]
        print_text(columns(lines[0], lines[1:], right=range(1, len(lines[0]))))
        graded = sum(answer.right is not None and not answer.estimated for answer in found.answers)
        say(f"{len(found.questions):,} questions, {len(found.answers):,} answers, {graded:,} of them graded")

    carry_out(work, as_json=as_json)


@app.command()
def export(
    folder: FolderArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file. Default: stdout.")] = None,
) -> None:
    """Write the table as JSON lines: one question a line, with every answer to it.

    Example:  dirigent table export reports/roles -o roles.jsonl
    """

    async def work() -> None:
        import msgspec

        from dirigent.learn.table import Answer, Table

        found = Table.load(folder)
        by_question: dict[str, list[Answer]] = {question.id: [] for question in found.questions}
        for answer in found.answers:
            by_question[answer.question].append(answer)
        with open_output(output) as file:
            for question in found.questions:
                line = {"question": question, "unit": found.unit, "answers": by_question[question.id]}
                file.write(msgspec.json.encode(line) + b"\n")
        say(f"{len(found.questions)} questions")

    carry_out(work)


def _prices(files: list[Path], named: Path | None) -> Prices | None:
    """The prices of the named file, else of the only `prices_*.json` beside the first file, else today's lists."""
    from dirigent.evals.recorded import recorded_price
    from dirigent.learn.table_import import Prices, read_prices, recorded_models

    beside = sorted(files[0].parent.glob("prices_*.json")) if named is None else []
    if len(beside) == 1:
        named = beside[0]
    if named is not None:
        say(f"prices from {named}")
        return read_prices(named)
    known = {model: recorded_price(model)[0] for model in recorded_models(files)}
    if not known or None in known.values():
        return None  # the import says which answer lacks a cost
    return Prices({model: (price.input, price.output) for model, price in known.items() if price is not None})


def _matrix(found: Table) -> list[dict[str, Any]]:
    """For each worker the share of right answers, over all questions and by kind, with the interval of each."""
    from dirigent.evals.stats import mean, share_interval

    kind_of = {question.id: question.kind for question in found.questions}
    rows = []
    for worker in found.workers:
        own = [answer for answer in found.answers if answer.worker == worker.name]
        graded = [(answer.question, answer.right) for answer in own if answer.right is not None]
        by_kind: dict[str, list[tuple[str, float]]] = {}
        for id, right in graded:
            by_kind.setdefault(kind_of[id], []).append((id, right))

        def share(some: list[tuple[str, float]]) -> dict[str, float]:
            rights, ids = [right for _, right in some], [id for id, _ in some]
            low, high = share_interval(rights, ids)
            return {"right": mean(rights), "low": low, "high": high, "questions": len(set(ids))}

        rows.append(
            {
                "name": worker.name,
                "about": worker.about,
                "reads": worker.reads,
                "answers": len(own),
                "cost": mean([answer.cost for answer in own]),
                "all": share(graded),
                "kinds": {kind: share(some) for kind, some in by_kind.items()},
            }
        )
    return rows


def _cell(share: dict[str, float] | None) -> str:
    if not share or not share["questions"]:
        return "-"
    return f"{100 * share['right']:.1f} [{100 * share['low']:.1f}-{100 * share['high']:.1f}]"
