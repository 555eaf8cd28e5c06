"""Planners, and the table of them: `table.py` lists what ships, plugins of `dirigent.planners` add others.

Configuration, `dirigent init`, help texts, evaluations and docs all ask here. A plugin is imported when its name is not
known otherwise, or when a list is printed. A plugin that cannot be loaded is left out of lists; asked for by name, it
raises the error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dirigent import plugins
from dirigent.errors import ConfigError
from dirigent.planners.spec import Fitted, Fitting, PlannerName, PlannerSpec, Setup, parse_name
from dirigent.planners.table import PLANNERS

__all__ = [
    "Fitted",
    "Fitting",
    "PLANNERS",
    "PlannerName",
    "PlannerSpec",
    "Setup",
    "find_planner",
    "known_planners",
    "parse_name",
    "planner",
    "profile_planners",
]

_BY_NAME = {spec.name: spec for spec in PLANNERS}


def find_planner(kind: str) -> PlannerSpec | None:
    """Returns the planner of this name, ours or a plugin's; None if no planner has it."""
    if kind in _BY_NAME:
        return _BY_NAME[kind]
    return _brought(kind) if kind in plugins.entries("planners") else None


def planner(kind: str, *, known: Iterable[str] = ()) -> PlannerSpec:
    """The planner of this name, or a ConfigError that names the nearest of the known ones."""
    if (spec := find_planner(kind)) is not None:
        return spec
    raise unknown_planner(kind, list(known) or [spec.name for spec in known_planners()])


def unknown_planner(name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that no planner has: the nearest names, and all that can be named."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name.lower(), [*names, *_BY_NAME], n=3, cutoff=0.6)
    quoted = [f'"{one}"' for one in dict.fromkeys(near)]
    hint = f"; did you mean {' or '.join(quoted)}?" if near else "."
    return ConfigError(f"no planner is called {name!r}{hint} There are: {', '.join(names)}")


def known_planners() -> tuple[PlannerSpec, ...]:
    """Every planner, ours first, then those of plugins."""
    brought = []
    for name in plugins.entries("planners"):
        if name not in _BY_NAME:
            try:
                brought.append(_brought(name))
            except ConfigError:
                continue  # `dirigent doctor` names it
    return (*PLANNERS, *brought)


def profile_planners() -> tuple[str, ...]:
    """The names that a profile of the configuration may give as its planner."""
    return tuple(spec.name for spec in known_planners() if spec.make is not None)


def _brought(name: str) -> PlannerSpec:
    found = plugins.load("planners", name)
    if not isinstance(found, PlannerSpec) or found.name != name:
        raise ConfigError(f"the plugin {name!r} of dirigent.planners must be a PlannerSpec of that name, not {found!r}")
    return found
