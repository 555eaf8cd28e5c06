"""`/v1/learning`: what was measured and learned for this server's pool, for admins.

Everything is read from the folders that the configuration names: the policies of profiles (`dirigent learn`), the cards
of a table (`dirigent calibrate`), and below `[serve] reports` evaluation reports (`dirigent eval --out`) and training
runs (`metrics.jsonl`). A policy's operating point is switched, or its last version brought back, as `dirigent learn
switch` and `rollback` do; new runs use it at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.config.build import adapter_file
from dirigent.config.runtime import Runtime
from dirigent.config.worker_config import WorkerConfig
from dirigent.errors import ConfigError
from dirigent.learn.cards import Card, Share
from dirigent.serve.http.body import CLIENT_GONE, decoded, read_body
from dirigent.serve.http.errors import Problem, require_admin
from dirigent.serve.runs.asked import Strict
from dirigent.serve.service import Service
from dirigent.store.audit import Entry, record
from dirigent.store.keys import Caller
from dirigent.workers.adapters import packaged, read_cards

MOST_FILES = 200
MOST_POINTS = 400
"""Points of a curve that are sent; a longer one is thinned."""
MOST_BYTES = 50_000_000
UNDER_WAY_S = 600.0
"""A training whose file has not grown for so long has ended or hangs."""
CURVES = ("reward", "accuracy", "right", "valid", "steps", "entropy", "distinct", "cost", "calls")


class FrontPoint(msgspec.Struct, frozen=True):
    """One point of a policy's front."""

    accuracy: float
    cost: float
    """Mean of a question, in the policy's unit."""
    calls: float
    diff: float
    """Accuracy less that of the best single worker, on the same questions."""
    low: float
    high: float


class PolicyVersion(msgspec.Struct, frozen=True):
    """An earlier version of a policy."""

    name: str
    saved_at: str
    """UTC, ISO 8601."""
    version: int = 0
    active: str = ""
    why: str = ""


class FixedPlan(msgspec.Struct, frozen=True):
    """A fixed plan that was measured on the same questions as the policy."""

    name: str
    accuracy: float
    cost: float
    calls: int
    diff: float
    low: float
    high: float


class PolicyShown(msgspec.Struct, frozen=True):
    """The policy of a profile. Its fields are those of `policy.json`."""

    version: int
    unit: str
    workers: tuple[str, ...]
    baseline: str
    baseline_accuracy: float
    baseline_cost: float
    questions: int
    labels: int
    points: tuple[FrontPoint, ...]
    """From the dearest to the cheapest."""
    named: dict[str, int]
    """The points called `same` and `best`, if the evidence confirmed them."""
    why: str
    more_labels: int | None
    active: str
    fixed: tuple[FixedPlan, ...] = ()
    profile: str = ""
    versions: tuple[PolicyVersion, ...] = ()
    """Earlier versions that can be brought back, the oldest first."""


class PlannerRow(msgspec.Struct, frozen=True):
    """A planner in an evaluation."""

    n: int
    accuracy: float
    interval: tuple[float, float]
    calls: float
    cost_usd: float | None
    """Of all questions."""
    seconds_p50: float
    failed: int


class EvaluationShown(msgspec.Struct, frozen=True):
    """A report of `dirigent eval`."""

    date: str
    commit: str
    complete: bool
    verdict: str
    planners: dict[str, PlannerRow]
    file: str = ""


class TrainingShown(msgspec.Struct, frozen=True):
    """A training run: its curves so far."""

    folder: str
    steps: int
    under_way: bool
    """Its file has grown in the last minutes."""
    curves: dict[str, tuple[tuple[float, float], ...]]
    """Name -> (step, value) pairs."""


class AdapterShown(msgspec.Struct, frozen=True):
    """The adapter of a worker: which version it is, and how well it does."""

    worker: str
    adapter: str
    """Its packaged name or its path, as the configuration has it."""
    bytes: int | None
    """None: the file is missing."""
    date: str = ""
    """Day of its training; empty: it has no card."""
    commit: str = ""
    sha256: str = ""
    data: str = ""
    """One sentence about its training data."""
    figures: dict[str, int | float] = {}
    """Measured after export, by name."""
    right: Share | None = None
    """How often its worker was right in calibration."""


class Learning(msgspec.Struct, frozen=True):
    policies: tuple[PolicyShown, ...]
    cards: tuple[Card, ...]
    evaluations: tuple[EvaluationShown, ...]
    """The newest first."""
    trainings: tuple[TrainingShown, ...]
    adapters: tuple[AdapterShown, ...] = ()
    faults: tuple[str, ...] = ()
    """Files that could not be read, and why."""
    object: str = "dirigent.learning"


class PolicySwitch(Strict, frozen=True):
    """The body of `POST /v1/learning/{id}`."""

    to: Annotated[str, Meta(min_length=1, max_length=60)]
    """`same`, `best`, `max-cost X`, `price X`, `off`, or `rollback`: the version before."""


async def learning(request: Request) -> Response:
    """Policies with their fronts and versions, cards, evaluations and training runs, for admins."""
    require_admin(request)
    service: Service = request.app.service
    return _json(await asyncio.to_thread(_learning, service.runtime, service.settings.reports))


async def switch_policy(request: Request) -> Response:
    """Switch the operating point of a profile's policy, or bring its last version back, for admins."""
    require_admin(request)
    service: Service = request.app.service
    caller: Caller = request.scope["caller"]
    try:
        wanted = decoded(await read_body(request, timeout_s=service.settings.body_timeout_s), _SWITCH)
    except ClientDisconnect:
        return CLIENT_GONE
    profile = request.path_params["id"]
    settings = service.runtime.config.profile.get(profile)
    if settings is None or not settings.policy:
        raise Problem(404, f"no profile {profile[:60]!r} has a policy", code="policy_not_found")
    try:
        await asyncio.to_thread(_switched, service.runtime, settings.policy, wanted.to)
        service.models.renew()
    except ConfigError as error:
        raise Problem(400, str(error), code="not_possible", param="to") from None
    except ModuleNotFoundError as error:
        said = f'switching a policy needs {error.name}: pip install "dirigent[eval]"'
        raise Problem(400, said, code="not_possible") from None
    await record(service.store, Entry(caller.key_id, "policy.switch", {"profile": profile, "to": wanted.to}))
    return _json(await asyncio.to_thread(_learning, service.runtime, service.settings.reports))


def _switched(runtime: Runtime, policy: str, to: str) -> None:
    from dirigent.learn.policy import Policy, roll_back  # numpy

    folder = runtime.loaded.folder / Path(policy).expanduser()
    if to == "rollback":
        roll_back(folder)
    else:
        Policy.load(folder).switched(to).save(folder)


def _learning(runtime: Runtime, reports: str) -> Learning:
    faults: list[str] = []
    policies = []
    for name, profile in runtime.config.profile.items():
        if profile.policy:
            folder = runtime.loaded.folder / Path(profile.policy).expanduser()
            found = _read(folder / "policy.json", _POLICY, faults)
            if found is not None:
                policies.append(msgspec.structs.replace(found, profile=name, versions=_versions(folder)))
    evaluations: list[EvaluationShown] = []
    trainings: list[TrainingShown] = []
    if reports:
        root = runtime.loaded.folder / Path(reports).expanduser()
        for file in sorted(root.rglob("*.json"))[:MOST_FILES]:
            if (report := _read(file, _EVALUATION, None)) is not None:
                evaluations.append(msgspec.structs.replace(report, file=str(file.relative_to(root))))
        for file in sorted(root.rglob("metrics.jsonl"))[:MOST_FILES]:
            trainings.append(_training(file, str(file.parent.relative_to(root))))
        evaluations.sort(key=lambda report: report.date, reverse=True)
    cards = tuple(runtime.cards.values())
    adapters = tuple(
        adapter_shown(worker, folder=runtime.loaded.folder, cards=runtime.cards)
        for worker in runtime.config.worker
        if worker.adapter
    )
    return Learning(tuple(policies), cards, tuple(evaluations), tuple(trainings), adapters, tuple(faults))


def _versions(folder: Path) -> tuple[PolicyVersion, ...]:
    found = []
    for file in sorted((folder / "versions").glob("*/policy.json")):
        saved_at = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
        version = PolicyVersion(file.parent.name, saved_at)
        if (old := _read(file, _POLICY, None)) is not None:
            version = msgspec.structs.replace(version, version=old.version, active=old.active, why=old.why)
        found.append(version)
    return tuple(found)


def adapter_shown(worker: WorkerConfig, *, folder: Path, cards: Mapping[str, Card]) -> AdapterShown:
    """The adapter of a worker; `cards` are those that calibration measured, by worker."""
    file = adapter_file(worker.adapter, folder=folder)
    measured = cards.get(worker.name)
    shown = AdapterShown(
        worker.name,
        worker.adapter,
        file.stat().st_size if file.is_file() else None,
        right=measured.right if measured is not None else None,
    )
    card = read_cards().get(worker.adapter) if worker.adapter in packaged() else None
    if card is None:
        return shown
    return msgspec.structs.replace(
        shown, date=card.date, commit=card.commit, sha256=card.sha256, data=card.data, figures=card.figures
    )


def _read(file: Path, decoder: msgspec.json.Decoder[Any], faults: list[str] | None) -> Any:
    """What the file holds; None if it is something else, with a fault if it should not be."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise OSError(f"it has more than {MOST_BYTES:,} bytes")
        return decoder.decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        if faults is not None:
            faults.append(f"{file.name} of {file.parent.name}: {error}")
        return None


def _training(file: Path, folder: str) -> TrainingShown:
    curves: dict[str, list[tuple[float, float]]] = {}
    steps = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                facts = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.MsgspecError:
                continue  # the line that is being written
            steps = number
            at = float(facts.get("step", number))
            for name, value in facts.items():
                if isinstance(value, int | float) and name.rpartition("/")[2].startswith(CURVES):
                    curves.setdefault(name, []).append((at, float(value)))
    under_way = time.time() - file.stat().st_mtime < UNDER_WAY_S
    return TrainingShown(folder, steps, under_way, {name: _thinned(curve) for name, curve in curves.items()})


def _thinned(curve: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    every = -(-len(curve) // MOST_POINTS)
    return tuple(curve[::every])


_POLICY = msgspec.json.Decoder(PolicyShown)
_EVALUATION = msgspec.json.Decoder(EvaluationShown)
_SWITCH = msgspec.json.Decoder(PolicySwitch)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
