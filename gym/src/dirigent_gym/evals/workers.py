"""The gym's specialists as workers, and its trained planners: exact ones from the tables, or LoRA adapters on this CPU.

Adapters are GGUF files in a folder, named after their specialist; the package has those that ship. The planners
`conductor` and `warm-start` are adapters too, and `language` is the prompted base without an adapter. A missing adapter
is an error before anything runs. Planners may share greedy replies of models (`dirigent.evals.reply_cache`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from dirigent.config.build import local_worker, with_defaults
from dirigent.errors import ConfigError
from dirigent.evals.reply_cache import Replies, Shared, weights_digest
from dirigent.plan.planner import LanguagePlanner
from dirigent.planners.spec import PlannerFor, kinds_of
from dirigent.toml import nearest
from dirigent.workers.adapters import packaged
from dirigent.workers.local import Local, LocalModel
from dirigent.workers.weights import KNOWN
from dirigent.workers.worker import Worker
from dirigent_gym.evals.pools import WorkerFor
from dirigent_gym.pool import PLAN_TOKENS, specialist_config
from dirigent_gym.questions.oracle import ExactSpecialist
from dirigent_gym.questions.specialists import Specialist
from dirigent_gym.weights import FOLDER

WORKERS = ("exact", "local")

Share = Callable[[Worker, str, Mapping[str, Any]], Worker]
"""Wraps a worker that uses the named adapter and these extra settings, so that planners share its greedy replies."""

TRAINED_PLANNERS = ("conductor", "warm-start")
PROMPTED = "language"
"""The planner that is the untrained base with a prompt on how to write plans."""

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
    replies: Replies | None = None,
) -> AsyncIterator[tuple[WorkerFor, Mapping[str, PlannerFor]]]:
    """Opens the workers, and the planners among `planners` that are models.

    As in a user's pool, one process serves all specialists, and each trained planner is merged into a base of its own.
    `adapters` is a folder of adapters, the package's by default; `weights` is their base. With `replies`, planners
    share the replies to equal requests; `language`, whose prompts have new marks each time, shares no replies.
    """
    if workers not in WORKERS:
        raise ConfigError(f"there are no workers {workers!r}{nearest(workers, WORKERS)}")
    kinds = kinds_of(planners)
    trained = [kind for kind in kinds if kind in TRAINED_PLANNERS]
    adapted = [specialist.name for specialist in roster] if workers == "local" else []
    if not trained and not adapted and PROMPTED not in kinds:
        yield exact_worker, {}
        return
    found = find_adapters(adapters or FOLDER, [*trained, *adapted])
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(LocalModel(weights, adapters={name: found[name] for name in adapted}))
        share = await asyncio.to_thread(_sharing, replies, found, weights)
        factories = {}
        for name in trained:
            merged = await stack.enter_async_context(LocalModel(weights, merged=found[name]))
            factories[name] = _planner_for(share(Local(merged, name=name), name, {}))
        if PROMPTED in kinds:
            factories[PROMPTED] = _prompted(model)

        def local_one(specialist: Specialist, seed: int) -> Worker:
            return specialist_worker(model, specialist, share=share)

        yield (local_one if workers == "local" else exact_worker), factories


def find_adapters(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The adapter files by name. Raises a ConfigError that lists all missing adapters."""
    found = packaged(folder)
    missing = [name for name in names if name not in found]
    if missing:
        raise ConfigError(
            f"{folder} has no adapter for {', '.join(missing)}; train them (`dirigent train`), name their folder with "
            "--adapters, or use  --workers exact  and planners that are not models"
        )
    return {name: found[name] for name in names}


def adapters_digest(folder: Path) -> str:
    """A digest of exactly these adapters, which tells their outcomes from those of others; empty without adapters."""
    digest = hashlib.blake2b(digest_size=8)
    found = packaged(folder)
    for name, file in found.items():
        digest.update(name.encode() + hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest() if found else ""


def specialist_worker(model: LocalModel, specialist: Specialist, *, share: Share | None = None) -> Worker:
    """Makes a worker as a user's pool has it, from the same text by the same code, so that the measurement is of that
    worker. Only the wrappers are left out, so nothing is retried; sharing takes their place."""
    config = specialist_config(specialist)
    bare = local_worker(config, model)
    return with_defaults(share(bare, specialist.name, config.extra) if share else bare, config)


def _sharing(replies: Replies | None, adapters: Mapping[str, Path], weights: str | Path) -> Share:
    if replies is None:
        return lambda worker, adapter, extra: worker
    known = KNOWN.get(str(weights))
    base = known.sha256 if known else weights_digest(Path(weights).expanduser())
    digests = {name: f"{base} {weights_digest(file)}" for name, file in adapters.items()}
    return lambda worker, adapter, extra: Shared(worker, replies, weights=digests[adapter], extra=extra)


def _planner_for(worker: Worker) -> PlannerFor:
    planner = LanguagePlanner(
        worker,
        dialect="lines",
        trained=True,
        max_output_tokens=PLAN_TOKENS,
        name=worker.info.name,
    )
    return lambda task, pool: planner


def _prompted(model: LocalModel) -> PlannerFor:
    planner = LanguagePlanner(
        Local(model, name=PROMPTED), dialect="lines", max_output_tokens=PLAN_TOKENS, name=PROMPTED
    )
    return lambda task, pool: planner
