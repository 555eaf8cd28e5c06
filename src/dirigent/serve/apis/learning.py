"""`/v1/learning`: what was measured and learned for this server's pool, for admins.

Everything is read from the folders that the configuration names: the policies of profiles (`dirigent learn`), the cards
of a table (`dirigent calibrate`), and below `[serve] reports` evaluation reports (`dirigent eval --out`) and training
runs (`metrics.jsonl`). A policy's operating point is switched, or its last version brought back, as `dirigent learn
switch` and `rollback` do; new runs use it at once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from dirigent.config.runtime import Runtime
from dirigent.errors import ConfigError
from dirigent.learn.cards import Card
from dirigent.serve.http.body import CLIENT_GONE, decoded, read_body
from dirigent.serve.http.errors import Problem, require_admin
from dirigent.serve.runs.asked import Strict
from dirigent.serve.service import Service
from dirigent.store.audit import Entry, record
from dirigent.store.keys import Caller

MOST_FILES = 200
MOST_POINTS = 400
"""Points of a curve that are sent; a longer one is thinned."""
MOST_BYTES = 50_000_000
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
    profile: str = ""
    versions: tuple[str, ...] = ()
    """Earlier versions that can be brought back, the oldest first."""


class PlannerRow(msgspec.Struct, frozen=True):
    """A planner in an evaluation."""

    n: int
    accuracy: float
    interval: tuple[float, float]
    calls: float
    cost_usd: float | None
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
    curves: dict[str, tuple[tuple[float, float], ...]]
    """Name -> (step, value) pairs."""


class Learning(msgspec.Struct, frozen=True):
    policies: tuple[PolicyShown, ...]
    cards: tuple[Card, ...]
    evaluations: tuple[EvaluationShown, ...]
    """The newest first."""
    trainings: tuple[TrainingShown, ...]
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
                versions = tuple(sorted(path.name for path in (folder / "versions").glob("*") if path.is_dir()))
                policies.append(msgspec.structs.replace(found, profile=name, versions=versions))
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
    return Learning(tuple(policies), cards, tuple(evaluations), tuple(trainings), tuple(faults))


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
    return TrainingShown(folder, steps, {name: _thinned(curve) for name, curve in curves.items()})


def _thinned(curve: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    every = -(-len(curve) // MOST_POINTS)
    return tuple(curve[::every])


_POLICY = msgspec.json.Decoder(PolicyShown)
_EVALUATION = msgspec.json.Decoder(EvaluationShown)
_SWITCH = msgspec.json.Decoder(PolicySwitch)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
