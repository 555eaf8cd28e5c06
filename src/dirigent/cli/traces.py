"""`dirigent traces`: list stored runs and run them again.

`replay` runs the recorded plan again on the recorded replies. It needs no provider and must give the same answer. With
`--live` it asks the workers of the current pool instead.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

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
    short,
    table,
)
from dirigent.cli.storage import configured_store

if TYPE_CHECKING:
    from dirigent.run.trace import RunStatus, Trace
    from dirigent.store import Store, TraceRow

app = typer.Typer(
    help="Stored runs: list, show, export, replay, fork, delete, prune.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

IdArgument = Annotated[str, typer.Argument(help="The trace's id, or an unambiguous beginning of it.")]
NewestArgument = Annotated[str, typer.Argument(help="The trace's id or its beginning. Default: the newest.")]
StatusOption = Annotated[str, typer.Option(help="Only runs with this status: done, failed, cancelled or waiting.")]
SearchOption = Annotated[str, typer.Option(help="Only runs with this text in the question, answer or error.")]


class Style(enum.StrEnum):
    timeline = "timeline"
    tree = "tree"


class Format(enum.StrEnum):
    jsonl = "jsonl"


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Most runs to list, newest first.")] = 20,
    status: StatusOption = "",
    search: SearchOption = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest runs.

    Example:  dirigent traces list --status failed
    """

    async def work() -> None:
        async with configured_store(config) as store:
            rows = await store.list(limit=limit, status=_status(status), search=search)
        if as_json:
            print_json({"traces": rows})
        elif rows:
            print_text(_rows(rows))
        else:
            say('no runs are stored yet: try  dirigent ask "…"')

    carry_out(work, as_json=as_json)


@app.command()
def show(
    id: NewestArgument = "",
    style: Annotated[Style, typer.Option(help="Draw a timeline, or the plan as a tree.")] = Style.timeline,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a run with its plan, steps, time, cost and answer.

    Example:  dirigent traces show 7f3a --style tree
    """

    async def work() -> None:
        async with configured_store(config) as store:
            trace = await store.get(id or await _newest(store))
        if as_json:
            print_json(trace)
        else:
            from dirigent.show import draw_trace, print_drawing, width_of

            print_drawing(draw_trace(trace, width=width_of(), style=style.value))

    carry_out(work, as_json=as_json)


@app.command()
def export(
    format: Annotated[Format, typer.Option(help="The output format: one JSON object a line.")] = Format.jsonl,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file. Default: stdout.")] = None,
    status: StatusOption = "",
    search: SearchOption = "",
    config: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="No effect: the output is always JSON lines.")] = False,
) -> None:
    """Write complete traces as JSON lines, oldest first, each with its feedback.

    Example:  dirigent traces export --format jsonl > traces.jsonl
    """

    async def work() -> None:
        import msgspec

        from dirigent.store import feedback

        count = 0
        wanted = _status(status)
        async with configured_store(config) as store:
            with open_output(output) as file:  # opening empties the file, so it comes after every check
                async for trace, verdicts in feedback.export(store, status=wanted, search=search):
                    file.write(msgspec.json.encode(msgspec.to_builtins(trace) | {"feedback": verdicts}) + b"\n")
                    count += 1
                file.flush()
        say("1 trace" if count == 1 else f"{count} traces")

    carry_out(work)


@app.command()
def replay(
    id: NewestArgument = "",
    live: Annotated[bool, typer.Option("--live", help="Ask the workers of the current pool.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a stored plan again on its recorded replies, or with --live on the current workers.

    Example:  dirigent traces replay 7f3a
    """

    async def work() -> int:
        from dirigent.replay import same_outcome

        async with configured_store(config) as store:
            old = await store.get(id or await _newest(store))
        new = await (_live(old, config) if live else _recorded(old))
        same = same_outcome(new, old)
        if as_json:
            print_json(_replay_json(old, new, live=live) | {"same_answer": same})
        else:
            from dirigent.show import cost_text

            print_text(new.answer if new.status == "done" else f"{new.status}: {new.error}")
            comparison = "the same answer as" if same else "another answer than"
            say(f"{comparison} trace {short(old.id)} · {_calls(new.usage.calls)} · {cost_text(new)}")
        return 0 if same or (live and new.status == "done") else FAILED

    carry_out(work, as_json=as_json)


@app.command()
def fork(
    id: IdArgument,
    step: Annotated[int, typer.Option(min=0, max=31, help="The step to ask anew, counted from 0.")],
    worker: Annotated[str | None, typer.Option(help="Another worker for it.")] = None,
    subtask: Annotated[str | None, typer.Option(help="Another subtask.")] = None,
    access: Annotated[str | None, typer.Option(help="The steps that it reads, such as 0,1; empty for none.")] = None,
    max_cost: Annotated[float | None, typer.Option("--max-cost", min=0, help="Most USD that it may cost.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change one step of a finished run and run again from there. Steps that do not read it keep their replies, unpaid.

    Example:  dirigent traces fork 7f3a --step 1 --worker gpt-5
    """

    async def work() -> int:
        from dirigent.cli.running import open_pool, watched_run
        from dirigent.fork import StepChange, fork_conductor, fork_of, fork_state

        async with configured_store(config) as store:
            old = await store.get(id)
        forked = fork_of(old, StepChange(step, worker, subtask, None if access is None else _numbers(access)))
        async with open_pool(config) as runtime:
            changes = {"max_rounds": 1} | ({} if max_cost is None else {"max_cost_usd": max_cost})
            conductor = fork_conductor(runtime.conductor(changes=changes), forked)
            state = fork_state(conductor, old, forked)
            new = await watched_run(conductor, old.question, config=runtime.config, resume=state)
        if as_json:
            from dirigent.cli.ask import steps_of, summary

            kept = [record.index for record in forked.kept]
            print_json(summary(new) | {"plan": steps_of(forked.plan), "forks": old.id, "kept": kept})
        else:
            from dirigent.show import cost_text

            print_text(new.answer if new.status == "done" else f"{new.status}: {new.error}")
            say(f"forked {short(old.id)} at step {step} · {_calls(new.usage.calls)} · {cost_text(new)}")
        return 0 if new.status == "done" else FAILED

    carry_out(work, as_json=as_json)


@app.command()
def delete(
    id: IdArgument,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a run and its rows. The ledger stays, and the audit log records the deletion.

    Example:  dirigent traces delete 7f3a9c0d12345678
    """

    async def work() -> None:
        from dirigent.store.retention import forget

        async with configured_store(config) as store:
            whole = await store.whole_id(id)
            gone = await forget(store, whole, actor="cli")
        if as_json:
            print_json({"deleted": whole})
        else:
            others = gone.responses + gone.feedback + gone.run_states + gone.idempotency
            say(f"deleted {whole}" + (f" and {others} of its rows" if others else ""))

    carry_out(work, as_json=as_json)


@app.command()
def prune(
    older_than: Annotated[
        str,
        typer.Option(help="Delete runs older than this: 30d, 12h. Default: [serve] retention_days and each key's own."),
    ] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete runs beyond their retention period, with their rows; the ledger stays.

    A key's own retention_days come first.

    Example:  dirigent traces prune --older-than 30d
    """

    async def work() -> None:
        import msgspec

        from dirigent.config.file import Config, config_path, load_config
        from dirigent.store.retention import prune as prune_store

        path = config_path(config)
        settings = (load_config(path).config if path is not None else Config()).serve
        days = _days(older_than) if older_than else settings.retention_days
        async with configured_store(config) as store:
            pruned = await prune_store(store, days=days, actor="cli")
        if as_json:
            print_json(msgspec.structs.asdict(pruned))
        else:
            others = pruned.responses + pruned.feedback + pruned.run_states
            say(f"deleted {pruned.traces} runs and {others} of their rows")

    carry_out(work, as_json=as_json)


def _numbers(text: str) -> tuple[int, ...]:
    """Returns the steps in `0,1`."""
    from dirigent.errors import ConfigError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdecimal() and len(part) < 4 for part in parts):
        raise ConfigError(f'"{text}" is no list of steps; write it as 0,1')
    return tuple(int(part) for part in parts)


def _days(text: str) -> float:
    """Returns the days in `30d`, `12h`, `2w`."""
    import re

    from dirigent.errors import ConfigError

    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*([hdw])", text.strip())
    if found is None:
        raise ConfigError(f'"{text}" is not an age; write it as 30d (days), 12h (hours) or 2w (weeks)')
    return float(found[1]) * {"h": 1 / 24, "d": 1.0, "w": 7.0}[found[2]]


async def _newest(store: Store) -> str:
    from dirigent.errors import StoreError

    rows = await store.list(limit=1)
    if not rows:
        raise StoreError('no runs are stored yet: try  dirigent ask "…"')
    return rows[0].id


async def _live(old: Trace, config: Path | None) -> Trace:
    from dirigent.cli.running import open_pool, watched_run
    from dirigent.replay import plan_of

    async with open_pool(config) as runtime:
        plan = plan_of(old)
        changes = {"max_steps": max(len(plan.steps), 1), "max_rounds": 1}
        profile = old.profile if old.profile in runtime.config.profile else ""
        conductor = runtime.conductor(profile, changes=changes, plan=plan)
        return await watched_run(conductor, old.question, config=runtime.config)


async def _recorded(old: Trace) -> Trace:
    from dirigent.replay import replay as replay_trace

    return await replay_trace(old)


def _replay_json(old: Trace, new: Trace, *, live: bool) -> dict[str, Any]:
    """Returns the object of `ask --json`. A replay from the record is not stored, so it has no id of its own."""
    from dirigent.cli.ask import steps_of, summary
    from dirigent.replay import plan_of

    result = summary(new) | {"plan": steps_of(plan_of(old)), "replays": old.id}
    if not live:
        del result["trace_id"]
    return result


def _status(text: str) -> RunStatus | None:
    from dirigent.errors import ConfigError
    from dirigent.toml import nearest

    known = ("done", "failed", "cancelled", "waiting")
    if text and text not in known:
        raise ConfigError(f'no status is called "{text}"{nearest(text, known)}')
    return cast("RunStatus | None", text or None)


def _rows(rows: Sequence[TraceRow]) -> str:
    from dirigent.show import one_line, seconds_text, usd_text

    header = (
        "trace",
        "when (UTC)",
        "profile",
        "status",
        "steps",
        "calls",
        "tokens",
        "cost",
        "time",
        "question",
    )
    cells = [
        (
            short(row.id),
            row.created_at[:16].replace("T", " "),
            row.profile,
            row.status,
            str(row.steps),
            str(row.calls),
            f"{row.tokens:,}",
            usd_text(row.cost_usd),
            seconds_text(row.seconds),
            one_line(row.question, 60),
        )
        for row in rows
    ]
    return table(header, cells, right=(4, 5, 6, 7, 8))


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"
