"""Usage: what calls cost, added up from the ledger's own rows. Sums are of whole billionths, and so exact.

A row's day is the UTC day on which the call was reserved. Its model is that of the run that made it, as the run's
trace has it in `profile`: a profile's name (with the day of a pin), `worker/NAME`, `planner/NAME`. A run that is under
way, or whose trace was deleted, counts under an empty name, and none is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec
from sqlalchemy import ColumnElement, Connection, case, distinct, func, select

from dirigent.store import Store
from dirigent.store.tables import attempts, traces, utc_text

Group = Literal["day", "model", "worker", "key", "user", "tag", "conversation"]
GROUPS: tuple[Group, ...] = get_args(Group)


class UsageRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One group of calls. A field that was not grouped by is left out."""

    calls: int
    lost_calls: int
    """Calls without a known end, charged at their worst case."""
    output_tokens: int
    cost_nusd: int
    """Billionths of a dollar, of calls that have ended: whole numbers, whose sums are exact."""
    held_nusd: int
    """Set aside for calls under way."""
    cost_usd: float
    runs: int = 0
    """Runs that these calls were made for. A run with calls in several groups counts in each of them."""
    day: str | None = None
    model: str | None = None
    worker: str | None = None
    key: str | None = None
    user: str | None = None
    """The caller's own user; empty for calls without one. Likewise for the tag and the conversation."""
    tag: str | None = None
    conversation: str | None = None


async def usage_rows(
    store: Store,
    *,
    group_by: Sequence[Group] = (),
    key_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[UsageRow]:
    """Calls reserved from `since` up to, not including, `until`; of one key, or of all."""
    return await store.read(lambda connection: _rows(connection, tuple(group_by), key_id, since, until))


def _rows(
    connection: Connection,
    groups: tuple[Group, ...],
    key_id: str | None,
    since: datetime | None,
    until: datetime | None,
) -> list[UsageRow]:
    columns = [_COLUMNS[group].label(f"by_{group}") for group in groups]
    is_open = attempts.c.state == "open"
    sums = (
        func.count(),
        func.coalesce(func.sum(case((attempts.c.state == "lost", 1), else_=0)), 0),
        func.coalesce(func.sum(attempts.c.output_tokens), 0),
        func.coalesce(func.sum(attempts.c.cost_nusd), 0),
        func.coalesce(func.sum(case((is_open, attempts.c.hold_nusd), else_=0)), 0),
        func.count(distinct(attempts.c.run_id)),
    )
    source: Any = attempts
    if "model" in groups:
        source = attempts.outerjoin(traces, traces.c.id == attempts.c.run_id)
    query = select(*sums, *columns).select_from(source).where(*_conditions(key_id, since, until))
    if columns:
        query = query.group_by(*columns).order_by(*columns)
    return [_row(row, groups) for row in connection.execute(query)]


_COLUMNS: dict[Group, ColumnElement[str]] = {
    "day": func.substr(attempts.c.reserved_at, 1, 10),
    "model": func.coalesce(traces.c.profile, ""),
    "worker": attempts.c.worker,
    "key": attempts.c.key_id,
    "user": func.coalesce(attempts.c.end_user, ""),
    "tag": func.coalesce(attempts.c.tag, ""),
    "conversation": func.coalesce(attempts.c.conversation, ""),
}


def _conditions(key_id: str | None, since: datetime | None, until: datetime | None) -> list[ColumnElement[bool]]:
    conditions = []
    if key_id is not None:
        conditions.append(attempts.c.key_id == key_id)
    if since is not None:
        conditions.append(attempts.c.reserved_at >= utc_text(since))
    if until is not None:
        conditions.append(attempts.c.reserved_at < utc_text(until))
    return conditions


def _row(row: Any, groups: tuple[Group, ...]) -> UsageRow:
    calls, lost, tokens, cost, held, runs = (int(value) for value in row[:6])  # PostgreSQL adds up into decimals
    return UsageRow(calls, lost, tokens, cost, held, cost / 1e9, runs, **dict(zip(groups, row[6:], strict=True)))
