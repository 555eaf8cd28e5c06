"""Carried rows: a planner's row of an earlier report, copied into a new one under a name of its own.

A copy keeps the figures of weights that no longer ship, and of planners that are slow and have not changed. A row is
copied only if both reports asked the very same questions of the same workers; otherwise `carry_fault` returns the
reason. A copied row is no measurement, so it has no paired difference and no part in the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.metrics import Figures
from dirigent.evals.report import Report
from dirigent.evals.tables import Earlier
from dirigent.planners import parse_name

SETTINGS = ("sets", "split", "limit", "seed", "pool_sizes", "cards", "workers", "max_steps")
"""The settings that questions, pools and answers depend on."""


def with_carried_row(report: Report, earlier: Report, *, planner: str, name: str, behind: str) -> Report:
    """The report with the earlier `planner` as `name`, after the rows of `behind`. Call `carry_fault` first."""
    row = msgspec.structs.replace(earlier.planners[planner], versus_best=None, versus_equal_cost=None)
    weights = {name: earlier.weights[planner]} if planner in earlier.weights else {}
    return msgspec.structs.replace(
        report,
        planners=_insert(report.planners, row, behind=behind, name=name),
        weights={**report.weights, **weights},
        earlier={**report.earlier, name: Earlier(commit=earlier.commit, date=earlier.date)},
    )


def carry_fault(report: Report, earlier: Report, *, planner: str) -> str:
    """Returns why the earlier report's row cannot be copied into this one; empty if it can."""
    if planner not in earlier.planners:
        return f"it has no row {planner!r}, only {', '.join(earlier.planners) or 'none'}"
    if report.by_task or earlier.by_task:
        return "a row is copied only if all questions are one set, not several"
    if not earlier.complete:
        return "it is incomplete"
    for setting in SETTINGS:
        then, now = _setting(earlier, setting), _setting(report, setting)
        if then != now:
            return f"its {setting} is {then!r}, here it is {now!r}"
    if _is_same_planner(report, earlier, planner):
        return f"its {planner} is in the table already"
    then, now = (found.tasks.get("questions") for found in (earlier, report))
    if then is None or then != now:
        return f"its questions are {then or 'not named'}, here they are {now or 'not named'}"
    return ""


def read_report(path: Path) -> Report:
    """Reads a report from JSON. A file without a report is an error that names the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except OSError as error:
        raise ConfigError(f"the report {path} cannot be read: {error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not a report ({error}); make it again, or move it away") from None


def _setting(report: Report, name: str) -> object:
    """The setting as JSON has it, without tuples: one report may have been read, the other just made."""
    value = report.recipe.get(name)
    return list(value) if isinstance(value, tuple) else value


def _is_same_planner(report: Report, earlier: Report, planner: str) -> bool:
    """The same adapter, or the same figures to the last digit: a table must not show one planner as two."""
    ours, theirs = report.weights.get(planner), earlier.weights.get(planner)
    same_file = ours is not None and theirs is not None and ours.sha256 == theirs.sha256
    return same_file or report.planners.get(planner) == earlier.planners[planner]


def _insert(rows: Mapping[str, Figures], row: Figures, *, behind: str, name: str) -> dict[str, Figures]:
    """Inserts the row after the last of `behind`, `behind:2`, ..., or first if there are no such rows. A row with the
    same name is replaced."""
    others = [other for other in rows if other != name]
    place = 1 + max((i for i, other in enumerate(others) if parse_name(other).kind == behind), default=-1)
    order = [*others[:place], name, *others[place:]]
    return {other: row if other == name else rows[other] for other in order}
