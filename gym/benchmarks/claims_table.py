"""Tables of claims: writes them, reads them, brings them up to date, joins those of several training seeds.

This is a part of `claims.py`, which measures them; it is not a program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.stats import wilson
from dirigent.tasks.task import Task
from dirigent_gym.questions.probe import probe_accuracy
from dirigent_gym.questions.split import generate
from dirigent_gym.train.claims import Claim, Evidence, Run, as_table, claims, join_seeds

DRAWN = (
    "kind", "step", "valid", "accuracy", "accuracy_given_valid", "decomposition", "routing_given_decomposition",
    "routing_own_names", "routing_other_names", "access_given_decomposition", "steps", "steps_needed",
    "steps_over_minimal", "steps_1", "steps_2", "steps_3", "steps_4", "steps_5", "plan_tokens", "cost",
    "worker_entropy", "position_entropy", "zero_variance_groups",
)  # fmt: skip
"""The metrics of a run that docs/generate.py draws."""
VALID_FILES = "valid plans through llama.cpp, grammar on"
RIGHT, VALID = "right answers", "valid plans, no grammar"
FITTED = 78_000
"""The questions that the shortcut probe learns from, as many as the warm start sees decompositions of."""
SHORTCUT = "shortcut probe: a bag of words"
FORMERLY = {"warm start: valid plans": "warm start, greedy: valid plans"}
"""The earlier names of lines -> their present names."""
CONTROL_LINES = {
    "direct": "(a)",
    "right-plans": "(b)",
    "rejection": "(c) RL over rejection",
    "online-rejection": "(c) RL over online",
    "format-only": "(d) format-only",
    "shuffled": "(d) shuffled",
}
"""Role -> the beginning of its line."""


class Table(msgspec.Struct, frozen=True):
    """The content of the file: the lines, and the facts that support them."""

    table: list[Claim]
    workers: str
    """The workers that carried the plans out: `exact` ones answer by table, `local` ones are trained specialists."""
    adapters: dict[str, str]
    """Role -> sha256 of its weights."""
    commit: str
    date: str
    seconds: float
    sizes: dict[str, int]
    device: str
    seeds: int = 1
    """The number of training seeds in the table."""
    right: dict[str, float] = {}
    """torch's result on each test question, to compare files with; only for one seed."""
    cut: dict[str, str] = {}
    """Role -> the progress of its run, for runs that ended before their last update."""


def joined(files: list[Path]) -> Table:
    """One table of several seeds. The shortcut probe depends on the gym and on no seed, so it is measured anew."""
    tables = [read_table(file) for file in files]
    if len({_alike(table) for table in tables}) > 1:
        raise ConfigError("the tables were measured with different workers or sizes; measure them alike")
    sizes = tables[0].sizes
    probe = shortcut(generate("test", sizes["test"], seed=sizes["seed"]))
    probe = msgspec.structs.replace(probe, seeds=len(tables))
    lines = join_seeds([table.table for table in tables])
    return msgspec.structs.replace(
        tables[0],
        table=[probe if line.name == probe.name else line for line in lines],
        adapters={f"{role} {i + 1}": sha for i, table in enumerate(tables) for role, sha in table.adapters.items()},
        commit=", ".join(dict.fromkeys(table.commit or "unknown" for table in tables)),
        date=max(table.date for table in tables),
        seconds=sum(table.seconds for table in tables),
        seeds=len(tables),
        right={},
        cut={f"{role} {i + 1}": far for i, table in enumerate(tables) for role, far in table.cut.items()},
    )


def with_controls(file: Path, measured: Path) -> Table:
    """A table of several seeds in which another table's lines of controls, measured with one of the seeds' conductors,
    replace the earlier ones."""
    table, other = read_table(file), read_table(measured)
    if _alike(table) != _alike(other):
        raise ConfigError(f"{file} and {measured} were measured with different workers or sizes; measure them alike")
    begins = tuple(CONTROL_LINES.values())
    new = {line.name: line for line in other.table if line.name.startswith(begins) and line.value is not None}
    if not new:
        raise ConfigError(f"{measured} has no line of a trained control")
    roles = {role for role, start in CONTROL_LINES.items() if any(name.startswith(start) for name in new)}

    def kept(by_role: Mapping[str, str]) -> dict[str, str]:
        return {name: said for name, said in by_role.items() if name.split()[0] not in roles}

    return msgspec.structs.replace(
        table,
        table=[new.get(line.name, line) for line in table.table],
        adapters=kept(table.adapters) | {f"{role} of {measured.stem}": sha for role, sha in other.adapters.items()},
        commit=", ".join(dict.fromkeys([*table.commit.split(", "), other.commit or "unknown"])),
        date=max(table.date, other.date),
        seconds=table.seconds + other.seconds,
        cut=kept(table.cut) | {role: far for role, far in other.cut.items() if role in roles},
    )


def _alike(table: Table) -> str:
    """The facts that tables must share for their lines to be joined."""
    return json.dumps([table.workers, table.sizes | {"local": 0}], sort_keys=True)


def brought_up_to_date(table: Table) -> Table:
    """A table of an earlier commit with today's lines; new lines are not measured. A shortcut probe that was fitted on
    other questions is left out."""
    nothing = Evidence(test=Run((), ()), ceiling={}, by_table=table.workers == "exact")
    had = {FORMERLY.get(line.name, line.name): line for line in table.table}
    lines = []
    for line in (*claims(nothing), Claim(RIGHT), Claim(VALID), Claim(shortcut_name()), Claim(VALID_FILES)):
        before = had.pop(line.name, line)
        lines.append(msgspec.structs.replace(before, name=line.name, note=before.note or line.note))
    others = [line for name, line in had.items() if not name.startswith(SHORTCUT)]
    return msgspec.structs.replace(table, table=[*lines, *others])


def noted(lines: Sequence[Claim], cut: Mapping[str, str]) -> list[Claim]:
    """The lines, with a note on controls that were cut short."""
    said = {CONTROL_LINES[role]: far for role, far in cut.items() if role in CONTROL_LINES}
    found = []
    for line in lines:
        far = next((far for begins, far in said.items() if line.name.startswith(begins)), "")
        found.append(msgspec.structs.replace(line, note=far) if far and line.value is not None else line)
    return found


def read_table(file: Path) -> Table:
    try:
        return brought_up_to_date(msgspec.json.decode(file.read_bytes(), type=Table))
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{file} is not a table of this program: {error}") from None


def thinned(metrics: str) -> str:
    """The lines of a run's metrics with only the figures that are drawn. Steps that were lost and repeated from a
    checkpoint are left out."""
    kept: list[dict[str, Any]] = []
    for line in (json.loads(line) for line in metrics.splitlines()):
        if line.get("kind") == "train":
            while kept and kept[-1]["step"] >= line["step"]:
                kept.pop()
            kept.append({key: _short(line[key]) for key in DRAWN if key in line})
    return "".join(json.dumps(line) + "\n" for line in kept)


def _short(value: float | str) -> float | str:
    return value if isinstance(value, str) else round(value, 4)


def as_page(found: Table) -> str:
    who = "specialists that answer by the tables" if found.workers == "exact" else "the trained specialists"
    seeds = f"mean of {found.seeds} training seeds" if found.seeds > 1 else "one training seed"
    head = f"{seeds.capitalize()}, over {who}; commit `{found.commit or 'unknown'}`, {found.date}, {found.device}."
    if found.cut:
        head += f" Cut short: {'; '.join(f'{role} at {far}' for role, far in found.cut.items())}."
    return f"{head}\n\n{as_table(found.table)}"


def shortcut(tasks: Sequence[Task]) -> Claim:
    """The shortcut probe on these questions, which takes half a minute."""
    found = probe_accuracy(generate("train", FITTED, seed=1), tasks)
    return Claim(shortcut_name(), value=found, interval=wilson(found * len(tasks), len(tasks)), n=len(tasks))


def shortcut_name() -> str:
    return f"{SHORTCUT}, fitted on {FITTED:,} questions, guesses the sequence of skills"
