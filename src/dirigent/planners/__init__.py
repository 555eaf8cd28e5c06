"""Planners by the names the configuration and the command line use."""

from __future__ import annotations

import difflib

from dirigent.errors import ConfigError
from dirigent.plan import Dialect
from dirigent.planner import LanguagePlanner, Planner
from dirigent.planners.fixed import FanOut, Reflect, Single, Vote
from dirigent.pool import Pool

PLANNERS = ("language", "single", "moa", "reflect", "vote")


def make_planner(name: str, *, pool: Pool, worker: str = "", dialect: Dialect = "lists") -> Planner:
    """The planner of that name. `worker` plans for `language`, answers for the others; empty = the pool's first."""
    if worker:
        pool.require(worker)
    match name:
        case "language":
            return LanguagePlanner(pool[worker or pool.names[0]], dialect=dialect)
        case "single":
            return Single(worker)
        case "moa":
            return FanOut(worker)
        case "reflect":
            return Reflect(worker)
        case "vote":
            return Vote(worker)
    near = difflib.get_close_matches(name, PLANNERS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(PLANNERS)}"
    raise ConfigError(f"no planner is called {name!r}{hint}")
