"""The gym's specialists as workers, and its trained planners: exact ones from the tables, or LoRA adapters on this CPU.

Adapters are GGUF files called after their specialist, in a folder; those that ship are in the package. The planners
`conductor` and `warm-start` are adapters too, and `language` is the base without one, prompted. What is missing is
named before anything runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from dirigent.errors import ConfigError
from dirigent.evals.evaluate import PlannerFor
from dirigent.evals.gym_pools import WorkerFor
from dirigent.gympool import PLAN_TOKENS, REPLY_TOKENS
from dirigent.planner import LanguagePlanner
from dirigent.tasks.gym.oracle import ExactSpecialist
from dirigent.tasks.gym.specialists import Specialist
from dirigent.toml import nearest
from dirigent.weights import FOLDER, packaged
from dirigent.worker import Worker
from dirigent.workers.defaults import Defaults
from dirigent.workers.local import Local, LocalModel

WORKERS = ("exact", "local")

TRAINED_PLANNERS = ("conductor", "warm-start")
PROMPTED = "language"
"""The same base, untrained, told how to write plans."""

BASE_WEIGHTS = "smollm2-135m"


def exact_worker(specialist: Specialist, seed: int) -> Worker:
    """A specialist that answers by the tables, with noise of this seed."""
    return ExactSpecialist(specialist, seed=seed)


@asynccontextmanager
async def gym_workers(
    workers: str,
    planners: Sequence[str],
    roster: Sequence[Specialist],
    *,
    adapters: Path | None = None,
    weights: str | Path = BASE_WEIGHTS,
) -> AsyncIterator[tuple[WorkerFor, Mapping[str, PlannerFor]]]:
    """Whoever answers, and the planners among `planners` that are models; one process serves all adapters.

    `adapters` is a folder of them, the package's by default; `weights` is the base they were made for.
    """
    if workers not in WORKERS:
        raise ConfigError(f"no workers are called {workers!r}{nearest(workers, WORKERS)}")
    kinds = dict.fromkeys(name.partition(":")[0] for name in planners)
    trained = [kind for kind in kinds if kind in TRAINED_PLANNERS]
    names = [*trained, *([s.name for s in roster] if workers == "local" else ())]
    if not names and PROMPTED not in kinds:
        yield exact_worker, {}
        return
    async with LocalModel(weights, adapters=find_adapters(adapters or FOLDER, names)) as model:
        factories = {name: _planner_for(model, name) for name in trained}
        if PROMPTED in kinds:
            factories[PROMPTED] = _prompted(model)
        yield (_worker_for(model) if workers == "local" else exact_worker), factories


def find_adapters(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The adapter files by name; an error that lists all that are missing."""
    found = packaged(folder)
    missing = [name for name in names if name not in found]
    if missing:
        raise ConfigError(
            f"{folder} has no adapter for {', '.join(missing)}; train them (`dirigent train`), name their folder with "
            "--adapters, or use  --workers exact  and planners that are no models"
        )
    return {name: found[name] for name in names}


def adapters_digest(folder: Path) -> str:
    """A name for exactly these adapters, so that outcomes of others are not taken for theirs; empty for none."""
    digest = hashlib.blake2b(digest_size=8)
    found = packaged(folder)
    for name, file in found.items():
        digest.update(name.encode() + hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest() if found else ""


def _worker_for(model: LocalModel) -> WorkerFor:
    def worker_for(specialist: Specialist, seed: int) -> Worker:
        """Greedy, but for one that is meant to be unreliable: it samples, seeded by the run."""
        local = Local(model, name=specialist.name, adapter=specialist.name, skills=specialist.skills, subtask_only=True)
        return Defaults(local, temperature=1.0 if specialist.noise else 0.0, max_output_tokens=REPLY_TOKENS)

    return worker_for


def _planner_for(model: LocalModel, name: str) -> PlannerFor:
    planner = LanguagePlanner(
        Local(model, name=name, adapter=name),
        dialect="lines",
        trained=True,
        max_output_tokens=PLAN_TOKENS,
        name=name,
    )
    return lambda task, pool: planner


def _prompted(model: LocalModel) -> PlannerFor:
    planner = LanguagePlanner(
        Local(model, name=PROMPTED), dialect="lines", max_output_tokens=PLAN_TOKENS, name=PROMPTED
    )
    return lambda task, pool: planner
