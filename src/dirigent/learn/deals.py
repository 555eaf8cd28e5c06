"""Deals: a table's answers as arrays on which plans are replayed, many at a time.

A plan asks workers one after another. What it has seen is a *state*: how often it has asked each worker. The samples
of one worker are exchangeable, so they are dealt to a plan in several orders, and what a plan is worth is the mean
over the deals. Second steps, such as a review, take no part: in no table so far did one pay for its call.

`DealtTable` holds what no selector changes; `judged` adds what one selector makes of every state.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.learn.selector import (
    MOST_WORKERS,
    Floats,
    Mask,
    Row,
    Selector,
    SelectorSettings,
    counted,
    fit_counted,
    hashed_words,
    with_prior,
    worker_scores,
)
from dirigent.learn.table import Answer, Table

MOST_CALLS = 10
MOST_STATES = 1_100
"""Ten workers with one answer each have 1,024. If fewer were allowed, a plan could make three or four calls only."""
DEALS = 4
WHOLE = 0.6
"""A worker that answered a smaller share of the questions takes no part."""

Ints = npt.NDArray[np.int64]


class DealtTable(msgspec.Struct, frozen=True, eq=False):
    """Arrays have the questions first; `states` counts the calls of each worker."""

    workers: tuple[str, ...]
    samples: tuple[int, ...]
    """Recorded answers of each worker to each question."""
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    kinds: tuple[str, ...]
    parts: tuple[str, ...]
    unit: str
    left_out: tuple[str, ...]
    """What takes no part, as sentences."""
    states: Ints
    """[states, workers]: calls so far. The first state has none."""
    after: Ints
    """[states, workers]: the state after one more call; -1 if there is none."""
    cost: Floats
    """[questions, deals, workers, calls]: of a worker's first, second, … call."""
    single: Floats
    """[questions, workers]: how often the worker is right alone."""
    vote: Floats
    """[questions, deals, states]: is the most common answer right; the mean over ties."""
    vote_ties: Floats
    """The same with ties to the answers of programs."""
    most: Ints
    """[questions, deals, states]: how many answers agree with the most common one."""
    hashed: npt.NDArray[np.float32]
    """[questions, words]"""
    targets: Floats
    """[questions, workers + 1]: what the ridge of words predicts."""
    counts: npt.NDArray[np.uint8]
    """[rows, features]: distinct rows of `counted` features."""
    owner: Ints
    """The question of each row."""
    row_right: Floats
    """Whether the class of each row is right, on average."""
    place: npt.NDArray[np.int32]
    """[questions, deals, states, classes]: the row of each class in each state; -1 if it is not there."""
    right: npt.NDArray[np.float32]
    """[questions, deals, states, classes]: is one of the class's answers in the state right, on average."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def deals(self) -> int:
        return int(self.cost.shape[1])

    def priced(self, questions: Ints) -> Priced:
        """The part of the table that a replay needs, for these questions."""
        return Priced(self.cost[questions], self.after)

    def some(self, questions: Ints) -> DealtTable:
        """The same table with these questions only, in this order."""
        new = np.full(len(self), -1)
        new[questions] = np.arange(len(questions))
        kept = np.flatnonzero(new[self.owner] >= 0)
        moved = np.full(len(self.owner) + 1, -1)
        moved[kept] = np.arange(len(kept))
        names = ("cost", "single", "vote", "vote_ties", "most", "hashed", "targets", "right")
        texts = {name: tuple(getattr(self, name)[i] for i in questions) for name in ("ids", "texts", "kinds", "parts")}
        return msgspec.structs.replace(
            self,
            **texts,
            **{name: getattr(self, name)[questions] for name in names},
            counts=self.counts[kept],
            owner=new[self.owner[kept]],
            row_right=self.row_right[kept],
            place=moved[self.place[questions]].astype(np.int32),
        )


class Priced(msgspec.Struct, frozen=True, eq=False):
    """What calls cost and where they lead: the part of a `DealtTable` that a replay needs."""

    cost: Floats
    after: Ints


class Judged(msgspec.Struct, frozen=True, eq=False):
    """What a selector makes of every state [questions, deals, states]."""

    confidence: npt.NDArray[np.float32]
    """Its chance for the answer that it picks; 0 if there is no answer."""
    right: npt.NDArray[np.float32]
    """Whether that answer is right; the mean over exact ties."""


def deal(table: Table, *, where: str, workers: Sequence[str] = (), seed: int = 1) -> DealtTable:
    """The table as arrays, with its first-step workers or the named ones.

    Workers with few answers and questions that lack one are left out, and `left_out` says so. Raises ConfigError if
    too little is left to learn from.
    """
    left_out: list[str] = []
    answers = _graded(table, left_out)
    names = _workers_of(table, answers, workers, left_out, where)
    samples = {name: _samples(answers, name) for name in names}
    whole = [q for q in table.questions if all(len(answers[q.id].get(n, ())) >= samples[n] for n in names)]
    if len(whole) < len(answers):
        left_out.append(f"{len(answers) - len(whole)} questions lack an answer of {', '.join(names)} and take no part")
    if not whole:
        raise ConfigError(f"{where}: no question was answered by all of {', '.join(names)}; calibrate again")
    every = [[answers[q.id][n][: samples[n]] for n in names] for q in whole]
    flat = [[a for own in row for a in own] for row in every]
    slots = tuple(name for name in names for _ in range(samples[name]))
    if all(len({a.same for a in row}) == len(row) and not any(a.text for a in row) for row in flat):
        samples_seen, most_calls = [1] * len(names), 1  # bare scores: nothing to compare
    else:
        samples_seen, most_calls = [samples[n] for n in names], MOST_CALLS
    states = _states(samples_seen, most_calls)
    orders = _orders([samples[n] for n in names], seed)
    sets = np.stack([_set_of(state, order, [samples[n] for n in names]) for order in orders for state in states])
    rows = [_row_of(question.text, row, slots) for question, row in zip(whole, flat, strict=True)]
    runs = np.array([w.runs for name in names for w in table.workers if w.name == name], dtype=np.bool_)
    shape = (len(whole), len(orders), len(states))
    filled = _filled(rows, flat, sets, names, runs, shape)
    cost = np.zeros((len(whole), len(orders), len(names), max(samples.values())))
    for w, name in enumerate(names):
        own = np.array([[a.cost for a in row[w]] for row in every])
        for d, order in enumerate(orders):
            cost[:, d, w, : samples[name]] = own[:, order[w]]
    return DealtTable(
        workers=names,
        samples=tuple(samples[n] for n in names),
        ids=tuple(q.id for q in whole),
        texts=tuple(q.text for q in whole),
        kinds=tuple(q.kind for q in whole),
        parts=tuple(q.part for q in whole),
        unit=table.unit,
        left_out=tuple(left_out),
        states=states,
        after=_after(states),
        cost=cost,
        single=np.array([[np.mean([a.right for a in own]) for own in row] for row in every]),
        hashed=np.stack([hashed_words(q.text) for q in whole]).astype(np.float32),
        targets=np.array([worker_scores(row, names) for row in rows]),
        **filled,
    )


def judged(table: DealtTable, selector: Selector) -> Judged:
    """What the selector picks in every state, and how sure it is."""
    prior = table.hashed.astype(np.float64) @ selector.words
    chance = np.empty(len(table.owner) + 1, dtype=np.float32)
    for begin in range(0, len(table.owner), 1 << 17):
        part = slice(begin, begin + (1 << 17))
        values = with_prior(table.counts[part], prior[table.owner[part]], len(table.workers))
        chance[:-1][part] = selector.chance_of(values)
    chance[-1] = -1.0  # where `place` is -1
    confidence = np.zeros(table.place.shape[:3], dtype=np.float32)
    right = np.zeros(table.place.shape[:3], dtype=np.float32)
    for begin in range(0, len(table), 256):
        part = slice(begin, begin + 256)
        found = chance[table.place[part]]
        best = found.max(-1, keepdims=True)
        among = (found == best) & (found >= 0)
        number = among.sum(-1)
        right[part] = np.where(number > 0, (among * table.right[part]).sum(-1) / np.maximum(number, 1), 0.0)
        confidence[part] = np.maximum(best[..., 0], 0.0)
    return Judged(confidence, right)


def fit_selector(
    table: DealtTable, questions: Ints, *, seed: int, settings: SelectorSettings, blind: Sequence[str] = ()
) -> Selector:
    """A selector fitted on these questions of the table. `blind` names features that it may not see."""
    rng = np.random.default_rng(seed)
    flat = table.place.reshape(len(table), -1, table.place.shape[-1])
    columns = rng.integers(table.deals * len(table.states), size=(len(questions), settings.subsets))
    drawn = flat[questions[:, None], columns].ravel()
    drawn = drawn[drawn >= 0]
    if not len(drawn):
        raise ConfigError("a selector needs answers to be fitted on; these questions have none")
    new = np.zeros(len(table), dtype=np.int64)
    new[questions] = np.arange(len(questions))
    return fit_counted(
        table.counts[drawn],
        table.row_right[drawn],
        new[table.owner[drawn]],
        hashed=table.hashed[questions].astype(np.float64),
        targets=table.targets[questions],
        workers=table.workers,
        settings=settings,
        rng=rng,
        blind=blind,
    )


# ---- from answers to arrays ---------------------------------------------------------------------------------


def _graded(table: Table, left_out: list[str]) -> dict[str, dict[str, list[Answer]]]:
    """The graded first-step answers of every question, by worker."""
    reads = {worker.name for worker in table.workers if worker.reads}
    if reads:
        left_out.append(f"{', '.join(sorted(reads))} read other answers and take no part in an order of first steps")
    found: dict[str, dict[str, list[Answer]]] = defaultdict(lambda: defaultdict(list))
    for answer in table.answers:
        if answer.worker not in reads and answer.right is not None:
            found[answer.question][answer.worker].append(answer)
    for own in found.values():
        for answers in own.values():
            answers.sort(key=lambda answer: answer.k)
    missing = len(table.questions) - len(found)
    if missing:
        left_out.append(f"{missing} questions have no graded answer and take no part")
    return found


def _workers_of(
    table: Table,
    answers: dict[str, dict[str, list[Answer]]],
    wanted: Sequence[str],
    left_out: list[str],
    where: str,
) -> tuple[str, ...]:
    names = [worker.name for worker in table.workers if not worker.reads]
    if unknown := [name for name in wanted if name not in names]:
        raise ConfigError(f"{where}: the table has no first-step worker {unknown[0]!r}; it has: {', '.join(names)}")
    answered = Counter(name for own in answers.values() for name in own)
    kept = []
    for name in wanted or names:
        share = answered[name] / max(1, len(answers))
        if share < WHOLE and not wanted:
            left_out.append(
                f"{name} answered {answered[name]} of {len(answers)} graded questions and takes no part; "
                "calibrate it on the rest"
            )
        else:
            kept.append(name)
    if not kept:
        raise ConfigError(f"{where}: no worker answered {WHOLE:.0%} of the graded questions; calibrate again")
    if len(kept) > MOST_WORKERS:
        left_out.append(f"of {len(kept)} workers the {MOST_WORKERS} that are right most often take part")
        mean = {
            name: np.mean([answer.right for own in answers.values() for answer in own.get(name, ())]) for name in kept
        }
        kept = sorted(sorted(kept, key=lambda name: -mean[name])[:MOST_WORKERS], key=kept.index)
    return tuple(kept)


def _samples(answers: dict[str, dict[str, list[Answer]]], name: str) -> int:
    """How many samples of the worker to use: as many as nine in ten of its questions have."""
    counts = sorted(len(own[name]) for own in answers.values() if name in own)
    return counts[len(counts) // 10]


def _states(samples: Sequence[int], most_calls: int) -> Ints:
    """Every count of calls of each worker, up to as many calls in all as keeps their number bounded."""
    every = np.array(list(itertools.product(*(range(count + 1) for count in samples)))) if _small(samples) else None
    if every is None:
        found = {tuple([0] * len(samples))}
        edge = found
        for _ in range(most_calls):
            edge = {
                (*state[:w], state[w] + 1, *state[w + 1 :])
                for state in edge
                for w in range(len(samples))
                if state[w] < samples[w]
            }
            if not edge or len(found) + len(edge) > MOST_STATES:
                break
            found = found | edge
        every = np.array(sorted(found, key=lambda state: (sum(state), state)))
    every = every[every.sum(1) <= most_calls]
    return np.asarray(every[np.argsort(every.sum(1), kind="stable")], dtype=np.int64)


def _small(samples: Sequence[int]) -> bool:
    return float(np.prod([count + 1.0 for count in samples])) <= MOST_STATES


def _after(states: Ints) -> Ints:
    index = {tuple(state): i for i, state in enumerate(states.tolist())}
    return np.array(
        [
            [index.get((*s[:w], s[w] + 1, *s[w + 1 :]), -1) for w in range(len(s))]
            for s in (tuple(state) for state in states.tolist())
        ],
        dtype=np.int64,
    )


def _orders(samples: Sequence[int], seed: int) -> list[list[Ints]]:
    """For each deal the order of every worker's samples. Over all deals each sample comes first about equally often."""
    rng = np.random.default_rng(seed)
    if max(samples) == 1:
        return [[np.zeros(1, dtype=np.int64) for _ in samples]]
    base = [rng.permutation(count) for count in samples]
    turn = [rng.permutation(DEALS) for _ in samples]
    return [[np.roll(own, -int(turn[w][d])) for w, own in enumerate(base)] for d in range(DEALS)]


def _set_of(state: Ints, order: Sequence[Ints], samples: Sequence[int]) -> Mask:
    member = np.zeros(sum(samples), dtype=np.bool_)
    start = 0
    for count, own, number in zip(state, order, samples, strict=True):
        member[start + own[:count]] = True
        start += number
    return member


def _row_of(question: str, answers: Sequence[Answer], slots: tuple[str, ...]) -> Row:
    """The question as a selector is fitted on it. A class is as right as its members are on average."""
    distinct = sorted({answer.same for answer in answers if answer.same >= 0})
    classes = tuple(distinct.index(answer.same) if answer.same >= 0 else -1 for answer in answers)
    first = [classes.index(place) for place in range(len(distinct))]
    members = [[a.right or 0.0 for a, c in zip(answers, classes, strict=True) if c == p] for p in range(len(distinct))]
    return Row(
        question=question,
        answers=tuple(answers[i].final for i in first),
        workers=slots,
        classes=classes,
        ended=tuple(answer.ended for answer in answers),
        texts=tuple(answer.text for answer in answers),
        right=tuple(float(np.mean(own)) for own in members),
    )


def _filled(
    rows: Sequence[Row],
    answers: Sequence[Sequence[Answer]],
    sets: Mask,
    names: tuple[str, ...],
    runs: Mask,
    shape: tuple[int, int, int],
) -> dict[str, Any]:
    """The arrays of `DealtTable` that hold a row for each class in each state."""
    most_classes = max(1, *(len(row.answers) for row in rows))
    place = np.full((len(rows), len(sets), most_classes), -1, dtype=np.int32)
    right = np.zeros((len(rows), len(sets), most_classes), dtype=np.float32)
    vote, ties = np.zeros((2, len(rows), len(sets)), dtype=np.float64)
    most = np.zeros((len(rows), len(sets)), dtype=np.int64)
    by_program = np.array([runs[names.index(worker)] for worker in rows[0].workers])
    found, owner, row_right = [], [], []
    total = 0
    for q, (row, own) in enumerate(zip(rows, answers, strict=True)):
        if not row.answers:
            continue
        values, present = counted(row, sets, names)
        flat = np.ascontiguousarray(values[present])
        _, first, back = np.unique(flat.view(f"V{flat.shape[1]}").ravel(), return_index=True, return_inverse=True)
        place[q, :, : len(row.answers)][present] = total + back.ravel()
        found.append(flat[first])
        owner.append(np.full(len(first), q))
        row_right.append(np.broadcast_to(np.array(row.right), present.shape)[present][first])
        total += len(first)
        member = np.array(row.classes)[:, None] == np.arange(len(row.answers))
        counts = sets.astype(np.float64) @ member
        good = sets.astype(np.float64) @ (member * np.array([a.right or 0.0 for a in own])[:, None])
        mean = good / np.maximum(counts, 1)
        right[q, :, : len(row.answers)] = mean
        most[q] = counts.max(1)
        top = (counts == counts.max(1, keepdims=True)) & (counts > 0)
        printed = top & ((sets & by_program).astype(np.float64) @ member > 0)
        preferred = np.where(printed.any(1, keepdims=True), printed, top)
        vote[q] = (top * mean).sum(1) / np.maximum(top.sum(1), 1)
        ties[q] = (preferred * mean).sum(1) / np.maximum(preferred.sum(1), 1)
    if not found:
        raise ConfigError("no question has an answer; there is nothing to learn")
    return {
        "place": place.reshape(*shape, most_classes),
        "right": right.reshape(*shape, most_classes),
        "vote": vote.reshape(shape),
        "vote_ties": ties.reshape(shape),
        "most": most.reshape(shape),
        "counts": np.concatenate(found),
        "owner": np.concatenate(owner),
        "row_right": np.concatenate(row_right),
    }
