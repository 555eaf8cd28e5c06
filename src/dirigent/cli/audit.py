"""`dirigent audit`: verify and export the log of changes to keys and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dirigent.cli.output import (
    FAILED,
    ConfigOption,
    JsonOption,
    carry_out,
    open_output,
    print_json,
    print_text,
    say,
    say_error,
)
from dirigent.cli.storage import configured_store

app = typer.Typer(
    help="The audit log: verify, export.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def verify(
    head: Annotated[str, typer.Option(help="A head from an earlier verify; the log must still contain it.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the whole log: prints its head, or the first error and its place (exit 1). Store the head elsewhere.

    Example:  dirigent audit verify
    """

    async def work() -> int:
        from dirigent.store import audit

        noted = audit.parse_head(head) if head else None
        async with configured_store(config) as store:
            verdict = await audit.verify(store, head=noted)
        if as_json:
            rows, last = verdict.head.number, str(verdict.head)
            print_json({"whole": not verdict.problem, "rows": rows, "head": last, "problem": verdict.problem})
        elif not verdict.problem:
            print_text(str(verdict.head))
            say(f"whole: {verdict.head.number} rows")
        if verdict.problem:
            say_error(f"{verdict.problem}\nthe rows up to {verdict.head.number} are in order")
            return FAILED
        return 0

    carry_out(work, as_json=as_json)


@app.command()
def export(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file. Default: stdout.")] = None,
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="No effect: the output is always JSON lines.")] = False,
) -> None:
    """Write the log as JSON lines, the oldest first.

    Example:  dirigent audit export -o audit.jsonl
    """

    async def work() -> None:
        from dirigent.store import audit

        count = 0
        async with configured_store(config) as store:
            with open_output(output) as file:
                async for row in audit.export(store):
                    file.write(audit.jsonl_of(row))
                    count += 1
                file.flush()
        say(f"{count} rows")

    carry_out(work)
