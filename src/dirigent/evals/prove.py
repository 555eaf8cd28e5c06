"""Prove: the value of a policy on questions that it did not learn from.

A table with every worker's answers to new questions has an exact value for every plan over first steps. The learned
policy, at each of its prices, and the plain fixed plans chosen with it are compared with the best single worker (best
on these very questions, so the comparison favours it) and with votes. Differences are paired by question; questions
with the same text count as one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

import msgspec
import numpy as np

from dirigent.errors import ConfigError
from dirigent.evals.front import Mark, svg_front
from dirigent.learn.deals import DealtTable, Judged, deal, judged
from dirigent.learn.orders import replay
from dirigent.learn.policy import Point, Policy, mark_of
from dirigent.learn.policy_fit import paired_interval, reachable, voted
from dirigent.learn.selector import Floats, Selector
from dirigent.learn.table import Table

T = TypeVar("T")


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """A planner at a price."""

    planner: str
    price: float
    accuracy: float
    cost: float
    calls: float
    diff: float
    """Accuracy less the best single worker's."""
    low: float
    high: float
    seconds: float | None = None
    """The median of a run, if the planner was asked live."""


class LiveRun(msgspec.Struct, frozen=True):
    """What a planner did with one question when it was asked live."""

    right: float
    cost: float
    """In the table's unit."""
    calls: int
    seconds: float


class Live(msgspec.Struct, frozen=True):
    """A planner that was asked live, and its runs by question."""

    planner: str
    runs: Mapping[str, LiveRun]


class Standard(msgspec.Struct, frozen=True):
    name: str
    accuracy: float
    cost: float


class Proof(msgspec.Struct, frozen=True):
    best_single: Standard
    oracle: Standard
    """One call of the right worker for each question, known only with hindsight."""
    front: tuple[Row, ...]
    equal_cost_vote: tuple[Row, ...]
    questions: int
    unit: str
    verdict: str
    notes: tuple[str, ...] = ()


def prove(folder: Path, table: Table, *, where: str, limit: int | None = None, live: Sequence[Live] = ()) -> Proof:
    """The comparison on the table's questions; raises ConfigError if the table is of another pool.

    `live` has planners that were asked the same questions live; each gets a row named `NAME, live`.
    """
    policy = Policy.load(folder)
    if not policy.points:
        raise ConfigError(f"{folder} has nothing to prove: {policy.why}")
    _same_pool(policy, table, where)
    new = unseen(policy, table.questions, text=lambda question: question.text)
    notes = []
    if len(new) < len(table.questions):
        notes.append(f"{len(table.questions) - len(new)} questions that the policy learned from are left out")
    if not new:
        raise ConfigError(f"the policy learned from every question of {where}; prove it on others")
    if limit is not None:
        new = sorted(new, key=lambda q: hashlib.sha1(q.id.encode()).hexdigest())[:limit]
    kept = {q.id for q in new}
    some = Table(
        table.workers, tuple(q for q in table.questions if q.id in kept),
        tuple(a for a in table.answers if a.question in kept), table.unit,
    )  # fmt: skip
    dealt = deal(some, where=where, workers=policy.workers)
    selector = Selector.load(folder)
    return compared(policy, dealt, judged(dealt, selector), notes=[*notes, *dealt.left_out], live=live)


def unseen(policy: Policy, questions: Sequence[T], *, text: Callable[[T], str]) -> list[T]:
    """Returns the questions that the policy did not learn from."""
    seen = set(policy.seen.tolist())
    return [question for question in questions if mark_of(text(question)) not in seen]


def compared(
    policy: Policy, table: DealtTable, seen: Judged, *, notes: Sequence[str] = (), live: Sequence[Live] = ()
) -> Proof:
    """The policy's every point, its plain plans, and the standards it is measured by."""
    hashed = table.hashed.astype(np.float64)
    group = policy.kind_of(hashed)
    novel = np.array([policy.novel(row) for row in hashed])
    best = int(table.single.mean(0).argmax())
    single, single_cost = table.single[:, best], table.cost[:, :, best, 0].mean(1)
    clusters = np.unique([mark_of(text) for text in table.texts], return_inverse=True)[1]

    def row(planner: str, price: float, right: Floats, cost: Floats, calls: float) -> Row:
        low, high = paired_interval(right - single, clusters)
        accuracy, diff = float(right.mean()), float((right - single).mean())
        return Row(planner, price, accuracy, float(cost.mean()), calls, diff, low, high)

    learned, plain = [], []
    for point in policy.points:
        worth = replay(table, seen, [k.order for k in point.kinds], group, [k.until for k in point.kinds])
        fixed_right, fixed_cost = voted(table, point.plain)
        right, cost = np.where(novel, fixed_right, worth.right), np.where(novel, fixed_cost, worth.cost)
        calls = float(np.where(novel, len(point.plain), worth.calls).mean())
        learned.append(row("learned", point.price, right, cost, calls))
        plain.append(row("fixed", point.price, fixed_right, fixed_cost, float(len(point.plain))))
    asked = []
    for one in live:
        if len(runs := [one.runs[id] for id in table.ids if id in one.runs]) < len(table):
            notes = [*notes, f"{one.planner} answered {len(runs)} of {len(table)} questions and has no row"]
            continue
        right, cost = np.array([run.right for run in runs]), np.array([run.cost for run in runs])
        at = row(f"{one.planner}, live", 0.0, right, cost, fmean(run.calls for run in runs))
        asked.append(msgspec.structs.replace(at, seconds=median(run.seconds for run in runs)))
    votes = [
        row(f"vote of {count} by {table.workers[best]}", 0.0, *voted(table, (best,) * count), float(count))
        for count in range(2, table.samples[best] + 1)
    ] or [
        row(f"vote of {count} workers", 0.0, *voted(table, tuple(panel)), float(count))
        for count in range(2, min(5, len(table.workers)) + 1)
        if (panel := np.argsort(-table.single.mean(0))[:count]) is not None and reachable(table, panel.tolist())
    ]
    known = table.single.argmax(1)
    places = np.arange(len(table))
    named = Standard(table.workers[best], float(single.mean()), float(single_cost.mean()))
    if novel.any():
        notes = [*notes, f"{int(novel.sum())} questions are unlike any learned from and got the plain plan"]
    return Proof(
        best_single=named,
        oracle=Standard(
            "the right worker, known beforehand",
            float(table.single.max(1).mean()),
            float(table.cost[places, :, known, 0].mean()),
        ),
        front=(*learned, *plain, *asked),
        equal_cost_vote=tuple(votes),
        questions=len(table),
        unit=table.unit,
        verdict=_verdict(policy, learned, named),
        notes=tuple(notes),
    )


def as_json(proof: Proof) -> Mapping[str, object]:
    return msgspec.structs.asdict(proof)


def as_page(proof: Proof, *, name: str) -> str:
    """One page for readers who do not use the command line: the verdict, the picture, the table."""
    learned = [Mark("learned", r.cost, r.accuracy) for r in proof.front if r.planner == "learned"]
    others = [Mark(proof.best_single.name, proof.best_single.cost, proof.best_single.accuracy)]
    others += [Mark(r.planner, r.cost, r.accuracy) for r in proof.equal_cost_vote]
    picture = svg_front(learned, others, title=f"{name}: accuracy against cost", unit=proof.unit)
    rows = "".join(
        f"<tr><td>{escape(r.planner)}</td><td>{100 * r.accuracy:.1f}%</td><td>{r.cost:.4g}</td>"
        f"<td>{r.cost / max(proof.best_single.cost, 1e-12):.2f}x</td><td>{r.calls:.1f}</td>"
        f"<td>{100 * r.diff:+.1f} [{100 * r.low:+.1f} to {100 * r.high:+.1f}]</td></tr>"
        for r in (*proof.front, *proof.equal_cost_vote)
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in proof.notes)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Does it pay?</title>'
        "<style>:root{color-scheme:light dark}"
        "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;font-size:14px}td,th{padding:.2rem .6rem;text-align:right;"
        "border-bottom:1px solid #8888}td:first-child,th:first-child{text-align:left}</style>"
        f"<h1>Does it pay?</h1><p><strong>{escape(proof.verdict)}</strong></p>{picture}"
        f"<p>{proof.questions:,} questions that nothing was learned from. The best single worker on them is "
        f"{escape(proof.best_single.name)}: {100 * proof.best_single.accuracy:.1f}% at "
        f"{proof.best_single.cost:.4g} {escape(proof.unit)} a question. If the right worker were known beforehand, one "
        f"call would be right {100 * proof.oracle.accuracy:.1f}% of the time. Differences are to the best single "
        "worker, paired by question, with 95% intervals.</p>"
        "<table><tr><th>planner</th><th>right</th><th>cost</th><th></th><th>calls</th><th>difference</th></tr>"
        f"{rows}</table><ul>{notes}</ul></html>\n"
    )


def _same_pool(policy: Policy, table: Table, where: str) -> None:
    named = {worker.name: worker for worker in table.workers}
    if missing := [name for name in policy.workers if name not in named]:
        raise ConfigError(
            f"{where} is a table of another pool: it has no answers of {', '.join(missing)}; "
            f"the policy was fitted on {', '.join(policy.workers)}"
        )
    for name, fingerprint in policy.fingerprints.items():
        found = named[name].fingerprint
        if fingerprint and found and fingerprint != found:
            raise ConfigError(
                f"{where} is a table of another pool: {name} answered it with another model, role or sampling than "
                "the policy was fitted on; learn again"
            )


def _verdict(policy: Policy, learned: Sequence[Row], best: Standard) -> str:
    """One sentence about the operating point in use; without one, about the point that shows the most."""
    if policy.on:
        point: Point = policy.point(policy.active)
        at = learned[policy.points.index(point)]
        share = f"{at.cost / max(best.cost, 1e-12):.2f} of the cost of {best.name}"
        if at.low > 0:
            return f"It pays: {100 * at.diff:+.1f} points ({100 * at.low:+.1f} to {100 * at.high:+.1f}) at {share}."
        if at.low > -0.01 and at.cost < best.cost:
            return f"It pays: as right as {best.name} within a point, at {share}."
        return (
            f"Not shown: {100 * at.diff:+.1f} points ({100 * at.low:+.1f} to {100 * at.high:+.1f}) against "
            f"{best.name}, at {share}."
        )
    gains = [row for row in learned if row.low > 0]
    if gains:
        top = max(gains, key=lambda row: row.low)
        return (
            f"It is switched off; here it would gain {100 * top.diff:+.1f} points ({100 * top.low:+.1f} to "
            f"{100 * top.high:+.1f}) at {top.cost / max(best.cost, 1e-12):.2f} of the cost of {best.name}."
        )
    return f"Nothing pays here: no point is shown to be better than {best.name}, and the policy is switched off."
