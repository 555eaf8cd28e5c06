"""Prove a conductor: replay its adapter on a table of questions that nothing was learned from, on a CPU.

Its plans are written from the prompts of its training, greedily, at every price, and each plan has an exact value: the
mean over all ways to deal the recorded answers to its steps. Its own prompt and plan are paid for. A text that is no
plan is wrong.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from dirigent.errors import ConfigError
from dirigent.evals.prove import Proof, Row, Standard
from dirigent.learn.base import Base
from dirigent.learn.decoder import Adapter
from dirigent.learn.grpo import greedy_plans
from dirigent.learn.policy import mark_of
from dirigent.learn.policy_fit import paired_interval
from dirigent.learn.roles_table import Answered
from dirigent.learn.sampler import BatchedSampler
from dirigent.learn.saved_conductor import SavedConductor
from dirigent.learn.selector import Floats, Selector
from dirigent.learn.table import Table
from dirigent.learn.table_plans import PRICES, PlanValues, RecordedQuestions, TablePlan, TableTask, TableTaskSettings
from dirigent.learn.values import answered, valued

ROWS = 96
"""Plans that are written at the same time: what a laptop's memory holds."""


def prove_conductor(
    folder: Path, table: Table, *, where: str, base: Base | None = None, limit: int | None = None
) -> Proof:
    """The comparison on the table's questions; raises ConfigError if the table is of another pool.

    `base` is read from the weights' cache unless it is given.
    """
    saved = SavedConductor.load(folder)
    if saved.environment != "plan-first":
        raise ConfigError(
            f"{folder} holds a conductor of the environment {saved.environment}; only plan-first is replayed"
        )
    known = {worker.name for worker in table.workers}
    if missing := [worker.name for worker in saved.pool.workers if not known & {worker.name, worker.source}]:
        raise ConfigError(
            f"{where} is a table of another pool: it has no answers of {', '.join(missing)}; the conductor was trained "
            f"over {', '.join(worker.name for worker in saved.pool.workers)}"
        )
    rows = answered(table, saved.pool)
    if not rows:
        told = ", ".join(f"{worker.samples} of {worker.name}" for worker in saved.pool.workers)
        raise ConfigError(
            f"{where} has no question with as many graded answers as the conductor's plans may ask: {told}"
        )
    seen = set(saved.seen)
    new = [row for row in rows if int(mark_of(row.text)) not in seen]
    if not new:
        raise ConfigError(f"the conductor learned from every question of {where}; prove it on others")
    notes = [
        f"{count} questions {why}"
        for count, why in (
            (len(table.questions) - len(rows), "lack an answer that its plans may ask for, and are left out"),
            (len(rows) - len(new), "that the conductor learned from are left out"),
        )
        if count
    ]
    if limit is not None:
        new = sorted(new, key=lambda row: hashlib.sha1(row.id.encode()).hexdigest())[:limit]
    base = base or packaged_base(saved.base)
    recorded = _recorded(new, saved, Selector.load(folder / "selector"))
    task = TableTask(recorded, base, TableTaskSettings(), cards=saved.cards)
    device = str(base.weights["model.norm.weight"].device)
    sampler = BatchedSampler(end=base.end, max_tokens=saved.max_plan_tokens, rows=ROWS)
    write = greedy_plans(base, Adapter.load(folder / "adapter", device=device), sampler)
    outcomes = task.outcomes(write, range(len(new)))

    names = [worker.name for worker in saved.pool.workers]
    single = np.stack([recorded.single[:, recorded.pool.bits(name)].mean(1).numpy() for name in names], axis=1)
    paid = np.stack([recorded.cost[:, recorded.pool.bits(name)].mean(1).numpy() for name in names], axis=1)
    paid = paid / saved.pool.cost_scale
    best = int(single.mean(0).argmax())
    clusters = np.unique([int(mark_of(row.text)) for row in new], return_inverse=True)[1]

    def row(planner: str, price: float, right: Floats, cost: Floats, calls: float) -> Row:
        difference = right - single[:, best]
        low, high = paired_interval(difference, clusters)
        return Row(planner, price, float(right.mean()), float(cost.mean()), calls, float(difference.mean()), low, high)

    front = []
    for name, price in PRICES.items():
        own = [one for one in outcomes if one["price"] == name]
        right, cost = (np.array([one[fact] for one in own]) for fact in ("right", "cost"))
        calls = float(np.mean([one.get("calls", 0.0) for one in own]))
        front.append(row("conductor", price, right, cost / saved.pool.cost_scale, calls))
    if invalid := sum(not one["valid"] for one in outcomes):
        notes.append(f"{invalid} of {len(outcomes)} texts were no plan, and count as wrong")
    values = PlanValues(recorded)
    votes = []
    for count in range(2, saved.pool.workers[best].samples + 1):
        plan = TablePlan((names[best],) * count, "vote")
        right, cost, _ = (one.numpy() for one in values.of(range(len(new)), [plan] * len(new)))
        votes.append(row(f"vote of {count} by {names[best]}", 0.0, right, cost / saved.pool.cost_scale, float(count)))
    known_best = single.argmax(1)
    places = np.arange(len(new))
    standard = Standard(names[best], float(single[:, best].mean()), float(paid[:, best].mean()))
    return Proof(
        best_single=standard,
        oracle=Standard(
            "the right worker, known beforehand", float(single.max(1).mean()), float(paid[places, known_best].mean())
        ),
        front=tuple(front),
        equal_cost_vote=tuple(votes),
        questions=len(new),
        unit=table.unit,
        verdict=_verdict(front, standard),
        notes=tuple(notes),
    )


def packaged_base(name: str) -> Base:
    """The base model in the weights' cache; raises ConfigError if its file is not there."""
    from dirigent.workers.weights import KNOWN, cached

    for weights in KNOWN.values():
        if Path(weights.file_name).stem == name:
            if (file := cached(weights)) is None:
                raise ConfigError(
                    f"the conductor's base {weights.file_name} is missing; `dirigent pool pull {weights.name}`"
                )
            return Base.from_gguf(file)
    raise ConfigError(f"the conductor's base {name!r} is no model that dirigent knows; name its file with --base")


def _recorded(rows: list[Answered], saved: SavedConductor, selector: Selector) -> RecordedQuestions:
    values = valued(rows, saved.pool, selector)

    def tensor(array: Floats) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32))

    return RecordedQuestions(
        ids=[row.id for row in rows],
        texts=[row.text for row in rows],
        families=[row.set for row in rows],
        splits=["test"] * len(rows),
        folds=[-1] * len(rows),
        pool=saved.pool,
        right=tensor(values.right),
        confidence=tensor(values.confidence),
        vote=tensor(values.vote),
        single=tensor(values.single),
        cost=tensor(values.cost),
    )


def _verdict(front: list[Row], best: Standard) -> str:
    gains = [row for row in front if row.low > 0]
    if not gains:
        return f"Nothing pays here: at no price is the conductor shown to be better than {best.name}."
    top = max(gains, key=lambda row: row.low)
    return (
        f"It pays: {100 * top.diff:+.1f} points ({100 * top.low:+.1f} to {100 * top.high:+.1f}) at "
        f"{top.cost / max(best.cost, 1e-12):.2f} of the cost of {best.name}."
    )
