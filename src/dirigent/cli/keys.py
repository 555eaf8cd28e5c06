"""`dirigent keys`: the keys that callers of the server need. A key is shown once and never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dirigent.cli.output import ConfigOption, JsonOption, carry_out, print_json, print_text, say, table
from dirigent.cli.storage import configured_store

if TYPE_CHECKING:
    from datetime import datetime

    from dirigent.store.keys import KeyRow, Role

app = typer.Typer(
    help="The keys that open the server: create, list, rotate, revoke.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def create(
    label: Annotated[str, typer.Argument(help="A name for the key, such as its owner.")],
    role: Annotated[str, typer.Option(help="inference, or admin, which may see and change everything.")] = "inference",
    budget_day: Annotated[float | None, typer.Option(help="Most USD that the key may spend in a day (UTC).")] = None,
    budget_month: Annotated[float | None, typer.Option(help="Most USD that the key may spend in a month.")] = None,
    budget_total: Annotated[float | None, typer.Option(help="Most USD that the key may spend in all.")] = None,
    user_day: Annotated[float | None, typer.Option(help="Most USD that one end user may spend in a day.")] = None,
    tag_day: Annotated[float | None, typer.Option(help="Most USD that one tag may spend in a day.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Most requests a minute.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Most requests at the same time.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="A worker that the key may use (repeat). Default: all.")
    ] = None,
    deny: Annotated[list[str] | None, typer.Option(help="A worker that the key may not use (repeat).")] = None,
    region: Annotated[str, typer.Option(help="The only region whose workers the key may use.")] = "",
    retention_days: Annotated[int | None, typer.Option(help="Days until its traces are deleted.")] = None,
    expires_days: Annotated[float | None, typer.Option(help="Days until the key expires.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key and print it once. Save it now: it is not stored.

    Example:  dirigent keys create "team a" --budget-day 5 --requests-per-minute 60
    """

    async def work() -> None:
        from dirigent.store.keys import Caller, create_key

        caller = Caller(
            role=cast("Role", role),
            label=label,
            allow=tuple(allow or ()),
            deny=tuple(deny or ()),
            region=region,
            budget_day_usd=budget_day,
            budget_month_usd=budget_month,
            budget_total_usd=budget_total,
            user_day_usd=user_day,
            tag_day_usd=tag_day,
            requests_per_minute=requests_per_minute,
            concurrency=concurrency,
            retention_days=retention_days,
        )
        async with configured_store(config) as store:
            made = await create_key(store, caller, expires_at=_in_days(expires_days))
        if as_json:
            print_json({"key": made.text} | _key_json(made.row))
        else:
            print_text(made.text)
            say(f"key {made.row.caller.key_id} for {label}: shown only now; send it as  Authorization: Bearer …")

    carry_out(work, as_json=as_json)


@app.command("list")
def list_(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List all keys with their limits and spending.

    Example:  dirigent keys list
    """

    async def work() -> None:
        from dirigent.store.keys import keys_of_another_pepper, list_keys
        from dirigent.store.ledger import usage

        async with configured_store(config) as store:
            rows = await list_keys(store)
            spent = {row.caller.key_id: (await usage(store, row.caller.key_id)).cost_usd for row in rows}
            foreign = await keys_of_another_pepper(store)
        if as_json:
            print_json({"keys": [_key_json(row) | {"spent_usd": spent[row.caller.key_id]} for row in rows]})
        elif rows:
            print_text(_rows(rows, spent))
        else:
            say('there are no keys: create one with  dirigent keys create "…"')
        if foreign:
            ids = ", ".join(row.caller.key_id for row in foreign)
            say(f"these keys do not work here, because they have another pepper: {ids}; set DIRIGENT_PEPPER to theirs")

    carry_out(work, as_json=as_json)


@app.command()
def rotate(
    id: Annotated[str, typer.Argument(help="The key's id, or enough of its beginning.")],
    expires_days: Annotated[float | None, typer.Option(help="Days until the key expires. Default: unchanged.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace a key's text and print the new one once. Limits, runs and spending stay; the old text stops working.

    Example:  dirigent keys rotate 3f2a
    """

    async def work() -> None:
        from dirigent.store.keys import rotate_key

        async with configured_store(config) as store:
            made = await rotate_key(store, id, expires_at=_in_days(expires_days))
        if as_json:
            print_json({"key": made.text} | _key_json(made.row))
        else:
            print_text(made.text)
            say(f"key {made.row.caller.key_id} ({made.row.caller.name}): shown only now; the old one no longer works")

    carry_out(work, as_json=as_json)


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(help="The key's id, or enough of its beginning.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key for good; running servers refuse it within a second.

    Example:  dirigent keys revoke 3f2a
    """

    async def work() -> None:
        from dirigent.store.keys import revoke_key

        async with configured_store(config) as store:
            row = await revoke_key(store, id)
        if as_json:
            print_json(_key_json(row))
        else:
            say(f"revoked {row.caller.key_id} ({row.caller.name}, …{row.last4})")

    carry_out(work, as_json=as_json)


def _in_days(days: float | None) -> datetime | None:
    from datetime import timedelta

    from dirigent.errors import ConfigError
    from dirigent.store.tables import now

    if days is not None and not abs(days) <= 36_500:
        raise ConfigError(f"--expires-days must be at most 36,500, not {days:g}")
    return now() + timedelta(days=days) if days is not None else None


def _key_json(row: KeyRow) -> dict[str, Any]:
    """Returns a key for JSON: every limit by name, set or not."""
    import msgspec

    return msgspec.structs.asdict(row.caller) | {
        "last4": row.last4,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
        "status": _status(row),
    }


def _rows(rows: Sequence[KeyRow], spent: dict[str, float]) -> str:
    from dirigent.show import one_line, usd_text

    cells = [
        (
            row.caller.key_id,
            f"…{row.last4}",
            row.caller.role,
            _status(row),
            row.created_at[:10],
            usd_text(spent[row.caller.key_id]),
            " ".join(f"{usd_text(usd)}/{period}" for period, usd in row.caller.budgets_usd.items()) or "-",
            one_line(_bounds(row), 60),
            one_line(row.caller.label, 40),
        )
        for row in rows
    ]
    header = ("key", "ends", "role", "status", "made (UTC)", "spent", "budget", "bounds", "label")
    return table(header, cells, right=(5,))


def _bounds(row: KeyRow) -> str:
    """Returns the key's other limits in a few words."""
    caller = row.caller
    every = (
        (caller.requests_per_minute, f"{caller.requests_per_minute}/min"),
        (caller.concurrency, f"{caller.concurrency} at once"),
        (caller.allow, f"only {','.join(caller.allow)}"),
        (caller.deny, f"not {','.join(caller.deny)}"),
        (caller.region, f"in {caller.region}"),
        (caller.retention_days, f"kept {caller.retention_days} d"),
        (row.expires_at, f"until {(row.expires_at or '')[:10]}"),
    )
    return " ".join(words for value, words in every if value) or "-"


def _status(row: KeyRow) -> str:
    from dirigent.store.tables import now, utc_text

    if row.revoked_at is not None:
        return "revoked"
    return "active" if row.usable(utc_text(now())) else "expired"
