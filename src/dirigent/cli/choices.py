"""The names that a user may write, put into help texts: planners, benchmarks, kinds of workers, and defaults.

A help text writes `{planners}` for the list; `dirigent.cli.Listing` fills it in when the help is printed.
"""

from __future__ import annotations

from collections.abc import Callable


def listed(text: str) -> str:
    """A help text with its lists filled in."""
    for name, names in LISTS.items():
        if f"{{{name}}}" in text:
            text = text.replace(f"{{{name}}}", names())
    return text


def _profile_planners() -> str:
    from dirigent.planners import profile_planners

    *most, last = profile_planners()
    return f"{', '.join(most)} or {last}"


def _eval_planners() -> str:
    from dirigent.evals.planners import FIGURES
    from dirigent.planners import known_planners

    names = [spec.forms[0] if spec.name == "single" else spec.name for spec in known_planners() if spec.fit is not None]
    return ", ".join((*names, *FIGURES))


def _defaults(pool: str) -> str:
    from dirigent.evals.planners import default_planners

    return ",".join(default_planners(pool))


def _benchmarks() -> str:
    from dirigent.tasks.benchmarks import known_benchmarks

    return ", ".join(known_benchmarks())


def _kinds() -> str:
    from dirigent.config.worker_config import known_kinds

    return ", ".join(known_kinds())


LISTS: dict[str, Callable[[], str]] = {
    "planners": _profile_planners,
    "eval_planners": _eval_planners,
    "live_defaults": lambda: _defaults("live"),
    "gym_defaults": lambda: _defaults("gym"),
    "recorded_defaults": lambda: _defaults("recorded"),
    "benchmarks": _benchmarks,
    "kinds": _kinds,
}
