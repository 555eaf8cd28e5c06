"""Traffic fit: what partial rows of traffic can teach a fitted policy.

A question that live traffic did not ask of every worker supports no order. But its graded answers say how often such
answers are right, so they refit the selector. And they hold every plan that stops earlier than the one that ran, so
they judge earlier stops. A refitted selector is kept only if it judges traffic better that it did not see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from dirigent.learn.selector import (
    Floats,
    Row,
    Selector,
    SelectorSettings,
    counted,
    fit_counted,
    hashed_words,
    random_sets,
    worker_scores,
)
from dirigent.learn.table import Answer, Table

LEAST_QUESTIONS = 25
"""Judged questions of traffic below which nothing is refitted and no stop is judged."""
STOPS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
REFIT = SelectorSettings(subsets=20, trees=120, rows=8_000, learning_rate=0.15, columns=0.3)
MARGIN = 0.01
"""An earlier stop may lose this share of right answers at most."""
Z_ONE_SIDED = 1.644854


class Earlier(msgspec.Struct, frozen=True):
    """A stop at a lower confidence, replayed on traffic."""

    until: float
    right: float
    cost: float
    """As a share of what was paid."""
    was: float
    """The share of right answers without the earlier stop."""
    questions: int


def refitted(
    selector: Selector, table: Table, *, traffic: Collection[str], settings: SelectorSettings, seed: int = 1
) -> tuple[Selector, str]:
    """Returns the selector fitted on all rows of the table if that judges its rows of traffic better, else the same.

    `traffic` has the ids of live questions. They are dealt into two halves; each half is judged by a selector that saw
    the rest. The second value says what was done and why.
    """
    rows, live = _rows(table, selector.workers, traffic)
    if sum(live) < LEAST_QUESTIONS:
        return selector, f"the selector stays: {sum(live)} judged questions, and refitting it takes {LEAST_QUESTIONS}"
    half = np.random.default_rng(seed).permutation(len(rows)) % 2
    gains = []
    for side in (0, 1):
        kept = [not is_live or h != side for h, is_live in zip(half, live, strict=True)]
        other = _fitted([row for row, keep in zip(rows, kept, strict=True) if keep], selector, settings, seed)
        unseen = [row for row, keep in zip(rows, kept, strict=True) if not keep]
        gains += [_loss(selector, row) - _loss(other, row) for row in unseen]
    gain, error = float(np.mean(gains)), float(np.std(gains)) / len(gains) ** 0.5
    if gain <= error:
        return selector, f"the selector stays: refitted on traffic it judges {len(gains)} questions no better"
    found = _fitted(rows, selector, settings, seed)
    return found, f"the selector is refitted: it judges {len(gains)} questions of traffic better that it did not see"


def earlier_stops(selector: Selector, table: Table, *, traffic: Collection[str]) -> list[Earlier]:
    """Returns the earlier stops that lose less than a point with 95% confidence, the cheapest first.

    Only questions count of which several answers are graded, in the order in which they were asked.
    """
    answers = _graded(table, selector.workers, traffic)
    texts = {question.id: question.text for question in table.questions}
    runs = [(texts[id], own) for id, own in answers.items() if len(own) > 1]
    if len(runs) < LEAST_QUESTIONS:
        return []
    seen = [[_picked(selector, text, own[: n + 1]) for n in range(len(own))] for text, own in runs]
    paid = [np.cumsum([answer.cost for answer in own]) for _, own in runs]
    whole = np.array([steps[-1][1] for steps in seen])
    found = []
    for until in STOPS:
        stop = [next((n for n, (chance, _) in enumerate(steps) if chance >= until), len(steps) - 1) for steps in seen]
        right = np.array([steps[n][1] for steps, n in zip(seen, stop, strict=True)])
        diff = right - whole
        low = float(diff.mean()) - Z_ONE_SIDED * float(diff.std()) / len(diff) ** 0.5
        cost = sum(float(p[n]) for p, n in zip(paid, stop, strict=True)) / max(sum(float(p[-1]) for p in paid), 1e-12)
        if low > -MARGIN and cost < 1:
            found.append(Earlier(until, float(right.mean()), cost, float(whole.mean()), len(runs)))
    return sorted(found, key=lambda one: one.cost)


def _graded(table: Table, workers: Sequence[str], ids: Collection[str]) -> dict[str, list[Answer]]:
    """The graded answers of first steps of these questions, in the order in which they were given."""
    found: dict[str, list[Answer]] = defaultdict(list)
    for answer in table.answers:
        if answer.question in ids and answer.right is not None and not answer.read and answer.worker in workers:
            found[answer.question].append(answer)
    return found


def _rows(table: Table, workers: Sequence[str], traffic: Collection[str]) -> tuple[list[Row], list[bool]]:
    """Every question's graded answers, and whether the question is live."""
    rows, live = [], []
    texts = {question.id: question.text for question in table.questions}
    for id, own in _graded(table, workers, texts).items():
        if any(answer.same >= 0 for answer in own):
            rows.append(_row(texts[id], own))
            live.append(id in traffic)
    return rows, live


def _row(text: str, answers: Sequence[Answer]) -> Row:
    distinct = sorted({answer.same for answer in answers if answer.same >= 0})
    members = [[answer for answer in answers if answer.same == same] for same in distinct]
    return Row(
        question=text,
        answers=tuple(own[0].final for own in members),
        workers=tuple(answer.worker for answer in answers),
        classes=tuple(distinct.index(answer.same) if answer.same >= 0 else -1 for answer in answers),
        ended=tuple(answer.ended for answer in answers),
        texts=tuple(answer.text for answer in answers),
        right=tuple(float(np.mean([answer.right or 0.0 for answer in own])) for own in members),
    )


def _fitted(rows: Sequence[Row], old: Selector, settings: SelectorSettings, seed: int) -> Selector:
    """A selector over the same workers. It keeps the old ridge of words, by which the policy's clusters are formed."""
    rng = np.random.default_rng(seed)
    values, labels, owners = [], [], []
    for place, row in enumerate(rows):
        found, present = counted(row, random_sets(row.workers, old.workers, settings.subsets, rng), old.workers)
        values.append(found[present])
        labels.append(np.broadcast_to(np.array(row.right), present.shape)[present])
        owners.append(np.full(len(values[-1]), place))
    hashed = np.stack([hashed_words(row.question) for row in rows])
    new = fit_counted(
        np.concatenate(values),
        np.concatenate(labels),
        np.concatenate(owners),
        hashed=hashed,
        targets=np.array([_targets(row, old, words) for row, words in zip(rows, hashed, strict=True)]),
        workers=old.workers,
        settings=settings,
        rng=rng,
    )
    return msgspec.structs.replace(new, words=old.words)


def _targets(row: Row, old: Selector, words: Floats) -> list[float]:
    """How often each worker is right; of a worker that was not asked what the old selector expects."""
    expected = words @ old.words
    *known, any_right = worker_scores(row, old.workers)
    for place, worker in enumerate(old.workers):
        if worker not in row.workers:
            known[place] = float(expected[place])
    return [*known, any_right]


def _loss(selector: Selector, row: Row) -> float:
    """The mean log loss of the chances that the selector gives the row's answers."""
    chances = np.clip(selector.chances(row), 0.001, 0.999)
    right = np.array(row.right)
    return float(-(right * np.log(chances) + (1 - right) * np.log(1 - chances)).mean())


def _picked(selector: Selector, text: str, answers: Sequence[Answer]) -> tuple[float, float]:
    """How sure the selector is of the answer that it picks, and how right that is; 0 if there is no answer."""
    row = _row(text, answers)
    if not row.answers:
        return 0.0, 0.0
    chances = selector.chances(row)
    best = int(np.argmax(chances))
    return chances[best], row.right[best]
