"""`dirigent audit`: what was done to keys and settings, and whether that record is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dirigent.cli.output import (
    FAILED,
    ConfigOption,
    JsonOption,
    carry_out,
    opened_for_writing,
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
    head: Annotated[str, typer.Option(help="A head that an earlier verify told: it must still be there.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Walk the whole log; tells its head, or what is wrong and where (exit 1). Note the head somewhere else.

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
    as_json: Annotated[bool, typer.Option("--json", help="The same: JSON lines are its only form.")] = False,
) -> None:
    """Write the log as JSON lines, the oldest first.

    Example:  dirigent audit export -o audit.jsonl
    """

    async def work() -> None:
        from dirigent.store import audit

        count = 0
        async with configured_store(config) as store:
            with opened_for_writing(output) as file:
                async for row in audit.export(store):
                    file.write(audit.jsonl_of(row))
                    count += 1
                file.flush()
        say(f"{count} rows")

    carry_out(work)
