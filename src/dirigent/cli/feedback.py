"""`dirigent feedback`: judgements of runs from a file, for systems that learn the right answer later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dirigent.cli.output import FAILED, ConfigOption, JsonOption, carry_out, print_json, say

if TYPE_CHECKING:
    from dirigent.learn.traffic import Judged
    from dirigent.store import Store

app = typer.Typer(
    help="Judgements of runs: import.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """Judgements of runs: import."""


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="JSON lines: trace_id, and a score or a label.", show_default=False)],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bind a score from 0 to 1, or the right answer, to each run that a file names; once for each run.

    Example:  dirigent feedback import judged.jsonl
    """

    async def work() -> int:
        from dirigent.cli.storage import configured_store
        from dirigent.learn.traffic import read_judged

        rows = read_judged(file)
        counts = {"kept": 0, "again": 0, "unknown": 0}
        async with configured_store(config) as store:
            for row in rows:
                said = await _bound(store, row)
                counts[said] += 1
                if said == "unknown":
                    say(f"no run has the id {row.trace_id!r}")
        if as_json:
            print_json(counts)
        else:
            again = f", {counts['again']:,} were judged before" if counts["again"] else ""
            say(f"{counts['kept']:,} of {len(rows):,} judgements kept{again}")
        return FAILED if counts["unknown"] else 0

    carry_out(work, as_json=as_json)


async def _bound(store: Store, row: Judged) -> str:
    from dirigent.errors import StoreError
    from dirigent.learn.traffic import label_score
    from dirigent.store.feedback import LOCAL, Verdict, add_for_owner

    score = row.score
    if row.label is not None:
        try:
            score = await label_score(await store.get(row.trace_id), row.label)
        except StoreError:
            return "unknown"
    assert score is not None  # `read_judged` checked that one of the two is there
    return await add_for_owner(store, Verdict(row.trace_id, LOCAL, score, row.comment, label=row.label))
