"""`GET /v1/usage`: the cost of calls, by day, model, worker and key, as JSON or CSV.

A key sees its own calls; an admin sees all calls, and may ask for one key. Sums are exactly those of the ledger.
"""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Literal, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dirigent.serve.http.errors import Problem
from dirigent.serve.service import Service
from dirigent.store.keys import Caller
from dirigent.store.usage import GROUPS, Group, UsageRow, usage_rows
from dirigent.toml import nearest

PARAMETERS = ("from", "to", "group_by", "key", "format")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of a cell that a spreadsheet would run as a formula."""


class UsageReport(msgspec.Struct, frozen=True):
    """The reply of `GET /v1/usage`."""

    data: tuple[UsageRow, ...]
    total: UsageRow
    object: Literal["dirigent.usage"] = "dirigent.usage"


async def usage(request: Request) -> Response:
    """What calls cost; `from`, `to` (UTC), `group_by` (day, model, worker, key, user, tag, …), `key`, `format=csv`."""
    service: Service = request.app.service
    caller: Caller = request.scope["caller"]
    query = dict(request.query_params)
    if unknown := sorted(query.keys() - set(PARAMETERS)):
        hint = nearest(unknown[0][:60], PARAMETERS)
        raise Problem(400, f"unknown parameter {unknown[0][:60]!r}{hint}", param=unknown[0][:60])
    groups = _groups(query.get("group_by", "day"))
    key_id, since, until = _key(query.get("key"), caller), _moment(query, "from"), _moment(query, "to")
    if query.get("format", "json") not in ("json", "csv"):
        raise Problem(400, f"format must be json or csv, not {query['format'][:20]!r}", param="format")
    rows = await usage_rows(service.store, group_by=groups, key_id=key_id, since=since, until=until)
    if query.get("format") == "csv":
        name = {"Content-Disposition": 'attachment; filename="usage.csv"'}
        return Response(csv_of(rows, groups), media_type="text/csv; charset=utf-8", headers=name)
    report = UsageReport(tuple(rows), _total(rows))
    return Response(msgspec.json.encode(report), media_type="application/json")


def csv_of(rows: list[UsageRow], groups: tuple[Group, ...]) -> str:
    """One line for each group. A text that looks like a formula gets a quote in front."""
    columns = (*groups, "calls", "lost_calls", "output_tokens", "cost_usd", "cost_nusd", "held_nusd")
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\r\n")
    lines.writerow(columns)
    for row in rows:
        lines.writerow([_cell(row, column) for column in columns])
    return text.getvalue()


def _cell(row: UsageRow, column: str) -> str:
    if column == "cost_usd":  # all its digits: a float would round
        return f"{row.cost_nusd // 10**9}.{row.cost_nusd % 10**9:09d}"
    text = str(getattr(row, column))
    return f"'{text}" if text.startswith(FORMULA) else text


def _total(rows: list[UsageRow]) -> UsageRow:
    names = ("calls", "lost_calls", "output_tokens", "cost_nusd", "held_nusd")
    calls, lost, tokens, cost, held = (sum(getattr(row, name) for row in rows) for name in names)
    return UsageRow(calls, lost, tokens, cost, held, cost / 1e9)


def _groups(text: str) -> tuple[Group, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in GROUPS:
            raise Problem(400, f"cannot group by {name[:40]!r}{nearest(name[:40], GROUPS)}", param="group_by")
    return cast("tuple[Group, ...]", names)


def _key(wanted: str | None, caller: Caller) -> str | None:
    """The key whose calls count; None for all keys."""
    if caller.role == "admin":
        return wanted
    if wanted not in (None, caller.key_id):
        raise Problem(403, "another key's usage needs a key with the role admin", code="role", param="key")
    return caller.key_id


def _moment(query: dict[str, str], name: str) -> datetime | None:
    """A time, or a day: its beginning for `from`, its end for `to`, so that both may name the same day."""
    text = query.get(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        said = f"{name} must be a day such as 2026-01-31 or a time such as 2026-01-31T12:00:00Z, not {text[:40]!r}"
        raise Problem(400, said, param=name) from None
    found = found.replace(tzinfo=UTC) if found.tzinfo is None else found
    whole_day = len(text) <= len("2026-01-31")
    try:
        return found + timedelta(days=1) if name == "to" and whole_day else found.astimezone(UTC)
    except OverflowError:
        raise Problem(400, f"{name} is beyond the calendar: {text[:40]!r}", param=name) from None
