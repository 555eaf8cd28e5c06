"""Of a configured pool, who is asked and who only plans.

A profile that says `planner = "conductor"` has a worker that only plans; no question is given to it. `conductor` is the
planner of the first such profile. `warm-start` is the planner of the profile called so, where the file has one: the
start of a conductor of one's own. Without it, it is the start of ours, which ships: its adapter joins the configuration
as a local worker and a profile of that name, so it is opened, prompted and held to a grammar as the conductor is.

A name does not say which weights stand behind it: a conductor that was trained on has the same name. So what an
evaluation keeps names the files of local models by digest, and so it does what else of a worker's settings changes its
answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from dirigent.config.build import adapter_file
from dirigent.config.file import Config, Loaded, Profile
from dirigent.config.runtime import Runtime
from dirigent.config.worker_config import DEFAULT_WEIGHTS, WorkerConfig
from dirigent.errors import ConfigError
from dirigent.evals.footnotes import Weights
from dirigent.evals.planners import TRAINED
from dirigent.evals.reply_cache import weights_digest
from dirigent.plan.planner import LanguagePlanner
from dirigent.planners.spec import PlannerFor, kinds_of
from dirigent.workers.adapters import packaged, read_cards
from dirigent.workers.pool import Pool
from dirigent.workers.weights import KNOWN

CONDUCTOR, WARM_START = "conductor", "warm-start"
PLAN_TOKENS = 256
"""The most tokens of a plan by a trained conductor."""

SETTLING = ("temperature", "effort", "system", "extra", "subtask_only", "path", "replies")
"""What changes a worker's answers beside its model; where it is reached and how often it is tried do not."""


def with_warm_start(loaded: Loaded, planners: Sequence[str]) -> Loaded:
    """The configuration, with the warm start that ships where it is named and the file has no profile for it."""
    config = loaded.config
    if WARM_START not in kinds_of(planners) or _plans(config.profile.get(WARM_START)):
        return loaded
    if WARM_START in config.profile or any(worker.name == WARM_START for worker in config.worker):
        raise ConfigError(
            f"a worker or a profile of the pool is called {WARM_START!r} and does not plan: "
            f'say  planner = "conductor"  and who its  planner_worker  is in  [profile.{WARM_START}], or rename it'
        )
    if WARM_START not in packaged():
        raise ConfigError(f"this copy of the package has no weights for {WARM_START!r}; leave it out")
    worker = WorkerConfig(
        name=WARM_START, kind="local", adapter=WARM_START, merged=True, weights=DEFAULT_WEIGHTS, about="Writes plans."
    )
    only_plan = {profile.planner_worker for profile in config.profile.values() if _plans(profile)}
    profile = Profile(
        planner=CONDUCTOR,
        planner_worker=WARM_START,
        workers=tuple(asked.name for asked in config.worker if asked.name not in only_plan),
        planner_output_tokens=PLAN_TOKENS,
        fallback="none",
    )
    joined = msgspec.structs.replace(
        config, worker=(*config.worker, worker), profile={**config.profile, WARM_START: profile}
    )
    return msgspec.structs.replace(loaded, config=joined)


def live_pool(runtime: Runtime, planners: Sequence[str]) -> tuple[Pool, Mapping[str, PlannerFor]]:
    """The workers that are asked, and the planners among those named that are models trained to plan."""
    found = {kind: _profile_of(kind, runtime.config) for kind in TRAINED if kind in kinds_of(planners)}
    trained = {kind: _planner_for(runtime, profile, name=kind) for kind, profile in found.items() if profile}
    pool = runtime.pool.without([p.planner_worker for p in runtime.config.profile.values() if _plans(p)])
    for name in pool:
        if name in runtime.problems:
            raise ConfigError(runtime.problems[name])
    return pool, trained


def shipped_weights(config: Config, trained: Collection[str]) -> dict[str, Weights]:
    """What the cards say of those of these planners that are adapters of the package, for the report to name."""
    ours = [kind for kind in trained if _worker_of(kind, config).adapter == kind]
    return trained_weights(ours)


def trained_weights(planners: Collection[str], folder: Path | None = None) -> dict[str, Weights]:
    """The cards of the trained planners, from a folder or from all that are installed; planners without one are left
    out."""
    cards = read_cards(folder)
    kinds = kinds_of(planners)
    return {
        kind: Weights(recipe=card.recipe, commit=card.commit, sha256=card.sha256, claims=card.claims)
        for kind in kinds
        if kind in TRAINED and (card := cards.get(kind)) is not None
    }


def planners_behind(loaded: Loaded, trained: Collection[str]) -> dict[str, str]:
    """Exactly which weights these planners run on, by planner, for the record: a resumed evaluation must not go on with
    others under the same name."""
    return {kind: _behind(_worker_of(kind, loaded.config), loaded.folder) for kind in trained}


def workers_behind(loaded: Loaded, pool: Pool) -> str:
    """The same of everybody who is asked, in a line."""
    configured = {worker.name: worker for worker in loaded.config.worker}
    return ", ".join(f"{name}={_behind(configured[name], loaded.folder)}" for name in pool)


def _worker_of(kind: str, config: Config) -> WorkerConfig:
    """The worker that writes this planner's plans."""
    name = config.profile[_profile_of(kind, config)].planner_worker
    return next(worker for worker in config.worker if worker.name == name)


def _behind(worker: WorkerConfig, folder: Path) -> str:
    """What answers under a worker's name: its model, and a digest of the settings that are not the usual ones."""
    usual = WorkerConfig()
    said = {name: getattr(worker, name) for name in SETTLING if getattr(worker, name) != getattr(usual, name)}
    if not said:
        return _model(worker, folder)
    digest = hashlib.blake2b(msgspec.json.encode(said, order="sorted"), digest_size=4).hexdigest()
    return f"{_model(worker, folder)} ({', '.join(said)}: {digest})"


def _model(worker: WorkerConfig, folder: Path) -> str:
    """A model's id at its endpoint; of a local one the base and its adapter, files by digest."""
    if worker.kind != "local":
        return worker.model
    base = worker.weights if worker.weights in KNOWN else _digest(folder / Path(worker.weights).expanduser())
    return f"{base}+{_digest(adapter_file(worker.adapter, folder=folder))}" if worker.adapter else base


def _digest(file: Path) -> str:
    try:
        return f"{file.name}:{weights_digest(file)}"
    except OSError as error:
        raise ConfigError(
            f"the weights {file} cannot be read: {error.strerror}; mend the path in the pool's file"
        ) from None


def _profile_of(kind: str, config: Config) -> str:
    """The profile whose planner it is; empty where there is none."""
    planning = [name for name, profile in config.profile.items() if _plans(profile)]
    return next((name for name in planning if (name == WARM_START) == (kind == WARM_START)), "")


def _planner_for(runtime: Runtime, profile: str, *, name: str) -> PlannerFor:
    planner = runtime.conductor(profile).planner
    if isinstance(planner, LanguagePlanner):
        planner.name = name  # what its traces are found by
    return lambda task, pool: planner


def _plans(profile: Profile | None) -> bool:
    return profile is not None and profile.planner == CONDUCTOR
