"""Plugins: what other distributions add to Dirigent through entry points.

| group | an entry | read by |
|---|---|---|
| `dirigent.commands` | a command, or a `typer.Typer` of commands | `dirigent NAME`, `dirigent --help` |
| `dirigent.planners` | a `planners.PlannerSpec` | configuration, `dirigent eval`, help, docs |
| `dirigent.workers` | a `workers.kind.WorkerKind` | `kind = "NAME"` of a `[[worker]]` |
| `dirigent.tasks` | a `tasks.benchmarks.Benchmark`, or a family with workers of its own | `dirigent eval` |
| `dirigent.weights` | a package: `NAME.gguf`, `cards.toml`, `policies/NAME` | workers that name an adapter, profiles |

An entry is imported when it is asked for by name or when a list is printed, never before: a broken plugin cannot stop a
server that does not use it. This module knows which distribution brings a well-known entry, so that an error can name
the install command.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from dirigent.errors import ConfigError
from dirigent.toml import nearest

Group = Literal["commands", "planners", "workers", "tasks", "weights"]
GROUPS: tuple[Group, ...] = ("commands", "planners", "workers", "tasks", "weights")

BROUGHT_BY: dict[tuple[Group, str], str] = {
    ("commands", "train"): "dirigent-gym",
    ("commands", "gym"): "dirigent-gym",
    ("tasks", "gym"): "dirigent-gym",
    ("weights", "gym"): "dirigent-gym",
    ("weights", "embedded"): "dirigent-weights",
}
"""Entries of our own distributions. Errors name the command that installs them."""


@cache
def entries(group: Group) -> dict[str, EntryPoint]:
    """Returns the installed entries of a group by name, without importing any."""
    return {entry.name: entry for entry in sorted(entry_points(group=f"dirigent.{group}"), key=lambda e: e.name)}


def load(group: Group, name: str) -> Any:
    """Imports an entry. Raises ConfigError if no distribution brings it, or if its import fails."""
    entry = entries(group).get(name)
    if entry is None:
        raise ConfigError(missing(group, name))
    try:
        return entry.load()
    except Exception as error:  # a plugin is foreign code: the user must learn which one failed, for any exception
        raise ConfigError(
            f"the plugin {name!r} of {distribution(entry)} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def missing(group: Group, name: str) -> str:
    """Returns the message for an entry that is not installed."""
    if known := BROUGHT_BY.get((group, name)):
        return f"{name!r} comes with {known}, which is not installed; run  pip install {known}"
    return f"no plugin of dirigent.{group} is called {name!r}{nearest(name, list(entries(group)))}"


def distribution(entry: EntryPoint) -> str:
    """Returns the name and version of the distribution that brings an entry."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"
