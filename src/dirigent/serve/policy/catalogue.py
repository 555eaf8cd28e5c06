"""Catalogue: the models that a runtime offers, and what each name stands for.

    dirigent-mini, dirigent-ultra    the profiles `mini` and `ultra`
    NAME                             a profile of the configuration
    NAME-2026-11-15                  the same while its policy is the one of that day; afterwards there is no such model
    worker/NAME                      one worker, asked straight: a plan of one step
    planner/NAME                     the default profile with another planner, so that baselines are models too

Without a profile `mini`, `dirigent-mini` is one step by the quickest planner at hand: the trained conductor where a
worker has its adapter and the pool is on this machine, else the default profile's. A policy's day is its profile's
`version`, else that of the card of the trained conductor. An older policy is kept by giving it a profile of its own,
called `ultra-2026-06-01`.

Knows nothing of callers and requests: who may use a model, and how much of it, is `models.py`'s part.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec

from dirigent.config.file import BUILT_IN_PROFILES, VERSION, choose_profile
from dirigent.config.runtime import Runtime
from dirigent.config.worker_config import WIRES
from dirigent.errors import ConfigError
from dirigent.planners import profile_planners
from dirigent.workers.adapters import read_cards

MINI_CHANGES: dict[str, Any] = {"max_steps": 1, "max_rounds": 1}
"""What `dirigent-mini` is over a configuration that has no profile of that name."""

PIN = re.compile(rf"-{VERSION}\Z")
OLDER = re.compile(rf"(?:mini|ultra)-{VERSION}")
"""A profile that keeps an older policy under its dated name."""


class Model(msgspec.Struct, frozen=True):
    """How to make a model's conductor."""

    id: str
    about: str
    profile: str = ""
    changes: tuple[tuple[str, Any], ...] = ()
    worker: str = ""
    """Set for `worker/NAME`."""
    pins: str = ""
    """Set for a dated name: the floating one."""


def models_of(runtime: Runtime) -> list[Model]:
    """Every model that a runtime offers, in the order of its list."""
    profiles = runtime.config.profile or BUILT_IN_PROFILES
    default = choose_profile(runtime.config)[0]
    found = [
        _mini(runtime),
        Model("dirigent-ultra", "plans, works and checks", "ultra" if "ultra" in profiles else default),
        *(Model(f"dirigent-{name}", f"the profile {name}", name) for name in profiles if OLDER.fullmatch(name)),
        *(Model(name, f"the profile {name}", name) for name in profiles),
    ]
    found += _pinned(found, runtime)
    found += [Model(f"worker/{i.name}", i.about or i.model, worker=i.name) for i in runtime.pool.infos]
    for planner in profile_planners():
        model = Model(f"planner/{planner}", f"planned by {planner}", default, (("planner", planner),))
        try:
            runtime.conductor(default, changes=dict(model.changes))
        except ConfigError:
            continue  # such as a trained conductor, where no worker has the adapter
        found.append(model)
    return found


def called(model: Model) -> str:
    """What traces and the usage call it: the profile, whichever of its names was asked for, with the day of a pin;
    a model that is not a profile as it stands has its own name."""
    if model.changes:
        return model.id
    pin = PIN.search(model.id) if model.pins else None
    return model.profile + (pin[0] if pin else "")


def _mini(runtime: Runtime) -> Model:
    """The profile `mini` where the configuration has one, else one step by the quickest planner at hand."""
    about = "one step, quickly"
    if "mini" in runtime.config.profile:
        return Model("dirigent-mini", about, "mini")
    default, settings = choose_profile(runtime.config)
    if settings.planner != "conductor" and (trained := _conductor_worker(runtime)):
        workers = tuple(name for name in settings.workers or runtime.pool.names if name != trained)
        changes = MINI_CHANGES | {"planner": "conductor", "planner_worker": trained, "workers": workers}
        model = Model("dirigent-mini", about, default, tuple(changes.items()))
        with contextlib.suppress(ConfigError):
            runtime.conductor(default, changes=dict(model.changes))
            return model
    if not runtime.config.profile:
        return Model("dirigent-mini", about, "mini")  # the built-in one
    return Model("dirigent-mini", about, default, tuple(MINI_CHANGES.items()))


def _conductor_worker(runtime: Runtime) -> str:
    """The worker that has the trained conductor's adapter, where the whole pool is on this machine."""
    if any(worker.kind in WIRES for worker in runtime.config.worker):
        return ""
    if not any(worker.adapter for worker in runtime.config.worker):
        return ""
    roles = {name: card.role for name, card in read_cards().items()}
    return next((w.name for w in runtime.config.worker if roles.get(w.adapter) == "conductor"), "")


def _pinned(models: list[Model], runtime: Runtime) -> list[Model]:
    """The same models under a name with their policy's day, where that is known."""
    taken = {model.id for model in models}
    found = []
    for model in models:
        day = _policy_day(model, runtime)
        pin = f"{model.id}-{day}"
        if day and not PIN.search(model.id) and pin not in taken:
            about = f"{model.about}; as of {day}"
            found.append(msgspec.structs.replace(model, id=pin, about=about, pins=model.id))
    return found


def _policy_day(model: Model, runtime: Runtime) -> str:
    """When the policy behind a model was made: its profile says so, or the card of its adapter; else empty."""
    settings = choose_profile(runtime.config, model.profile)[1]
    if settings.version:
        return settings.version
    changes = dict(model.changes)
    if changes.get("planner", settings.planner) != "conductor":
        return ""
    planner = changes.get("planner_worker", settings.planner_worker)
    adapter = next((worker.adapter for worker in runtime.config.worker if worker.name == planner), "")
    card = read_cards().get(adapter) if adapter else None
    return card.date if card is not None else ""
