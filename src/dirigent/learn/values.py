"""What every set of recorded answers is worth: the table on which plans get exact values.

    python -m dirigent.learn.values --data FOLDER --out FOLDER [--folds 5] [--seed 1] [--without bbh]
    python -m dirigent.learn.values --table FOLDER --out FOLDER

`--data` reads recorded replies of one model in roles, `--table` a table of your own pool. Writes `pool.json` (whose
answers these are), `questions.jsonl` (id, text, set, split, fold, the samples' final answers), `values.npz` and
`selector/`. A set of samples is a number of at most ten bits, in the order of the pool's slots; for each question and
set, `values.npz` holds

    right       is the answer that the selector picks right; the mean over exact ties
    confidence  the selector's chance for the answer it picks
    vote        is the most common answer right; the mean over ties
    single      is each sample right
    cost        of each sample: output tokens and a quarter of the prompt tokens; of a table, its cost on a scale on
                which one answer of the best single worker costs 176 units on average, so that prices mean the same

The selector is fitted on training questions only. A training question gets the selector of the other folds; development
and test questions get the selector of the whole training part. `--without` leaves a family out of every fit.

The report is about development questions. Nothing is computed about test questions but their number.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.learn.roles_table import Answered, load_table
from dirigent.learn.selector import Row, Selector, features, fit
from dirigent.learn.table import Answer, Table

MOST_SAMPLES = 10
"""Of all workers together: every set of a question's samples has a value of its own."""
UNITS_OF_BEST_SINGLE = 176.0
"""What an answer of the best role of the recorded 1.5B model costs: the scale on which prices were given words."""
DEVELOPMENT = 0.126
"""Share of the questions that are not test questions: about 400 of the recorded ones."""

Floats = npt.NDArray[np.float64]


class RecordedWorker(msgspec.Struct, frozen=True):
    """A worker whose answers were recorded."""

    name: str
    samples: int
    """Recorded answers to each question."""
    about: str = ""
    source: str = ""
    """Its name in the table that it was read from, if that is another."""


class RecordedPool(msgspec.Struct, frozen=True):
    """Whose answers were recorded, to which kinds of questions; `pool.json` in a folder of values."""

    workers: tuple[RecordedWorker, ...]
    kinds: dict[str, str]
    """What a card calls each kind of question."""
    cost_scale: float = 1.0
    """Units of one unit of the table that the answers were read from."""
    plan_token_cost: float | None = None
    """Units that a token costs which the conductor writes; one that it reads costs a quarter. None: its share of the
    parameters of the 1.5B model, whose output token is the unit."""

    @property
    def slots(self) -> tuple[tuple[str, int], ...]:
        """Worker and number of each sample, in the order of the samples' bits."""
        return tuple((worker.name, k) for worker in self.workers for k in range(worker.samples))

    def bits(self, name: str) -> list[int]:
        return [bit for bit, (worker, _) in enumerate(self.slots) if worker == name]


QWEN_IN_ROLES = RecordedPool(
    workers=(
        RecordedWorker("quick", 2, "answers at once", "direct"),
        RecordedWorker("thinker", 4, "thinks step by step", "think"),
        RecordedWorker("programmer", 4, "writes a program, which is run", "code"),
    ),
    kinds={"gsm8k": "word problems", "math": "mathematics", "bbh": "puzzles", "crux": "reading code"},
)
"""One 1.5B model in three roles."""


class Values(msgspec.Struct, frozen=True):
    """Arrays with a row for each question, as in `values.npz`."""

    right: Floats
    confidence: Floats
    vote: Floats
    single: Floats
    cost: Floats


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder of questions_*.jsonl.gz and roles_*.jsonl.gz")
    source.add_argument("--table", type=Path, help="folder of a table, as `dirigent calibrate` writes it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", help="a kind of questions, such as bbh, that nothing is fitted on")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    if options.data is not None:
        pool, table = QWEN_IN_ROLES, load_table(options.data, cache=options.out / "gradings.json")
        splits = [split_of(question) for question in table]
    else:
        pool, table, splits = from_table(Table.load(options.table), where=str(options.table))
    if options.without and not any(one.set.startswith(options.without) for one in table):
        raise ConfigError(f"no question is of the kind {options.without!r}; there are: {', '.join(pool.kinds)}")
    folds = [
        number_from("fold", options.seed, one.id) % options.folds if split == "train" else -1
        for one, split in zip(table, splits, strict=True)
    ]
    print(f"{len(table)} questions: {dict(Counter(splits))}; graded after {time.monotonic() - began:.0f} s", flush=True)
    values, selector = cross_fitted(table, folds, pool, without=options.without, seed=options.seed)
    if options.without:
        splits = [
            "left out" if s != "test" and one.set.startswith(options.without) else s
            for one, s in zip(table, splits, strict=True)
        ]
    write(options.out, table, splits, folds, values, pool)
    selector.save(options.out / "selector")
    print("\n".join(report(table, splits, values, pool)))
    print(f"written to {options.out} after {time.monotonic() - began:.0f} s")


def split_of(question: Answered) -> str:
    """train, dev or test, as the README of the data defines the test."""
    if question.set in ("gsm8k_test", "math500"):
        return "test"
    if not question.set.endswith("_train") and int(hashlib.sha1(question.id.encode()).hexdigest(), 16) % 6 in (0, 3, 5):
        return "test"
    return "dev" if _develops(question.id) else "train"


def _develops(id: str) -> bool:
    return number_from("dev", id) % 1000 < 1000 * DEVELOPMENT


def number_from(*parts: object) -> int:
    return int(hashlib.sha1(" ".join(map(str, parts)).encode()).hexdigest()[:12], 16)


def from_table(table: Table, *, where: str) -> tuple[RecordedPool, list[Answered], list[str]]:
    """Whose answers the table holds, its questions with as many samples of each worker, and their splits.

    Second steps take no part, nor workers that answered fewer than three fifths of the questions. Costs are scaled so
    that one answer of the best single worker costs UNITS_OF_BEST_SINGLE.
    """
    answers = _first_steps(table)
    graded = [question for question in table.questions if question.id in answers]
    samples = {}
    for worker in table.workers:
        counts = sorted(len(answers[question.id][worker.name]) for question in graded)
        if not worker.reads and counts and (enough := counts[int(0.4 * len(counts))]):
            samples[worker.name] = enough
    if len(samples) > MOST_SAMPLES:
        raise ConfigError(f"{where} has {len(samples)} workers; plans over at most {MOST_SAMPLES} can be valued")
    while sum(samples.values()) > MOST_SAMPLES:
        samples[max(samples, key=lambda name: samples[name])] -= 1
    whole = [q for q in graded if all(len(answers[q.id][name]) >= count for name, count in samples.items())]
    if not samples or not whole:
        raise ConfigError(f"{where} has no question that every worker answered and that was graded; calibrate again")
    best = max(samples, key=lambda name: sum(answers[q.id][name][0].right or 0.0 for q in whole))
    paid = sum(answers[q.id][best][0].cost for q in whole) / len(whole)
    kinds = {question.kind or "questions": (question.kind or "questions").replace("_", " ") for question in whole}
    about = {worker.name: worker.about for worker in table.workers}
    pool = RecordedPool(
        tuple(RecordedWorker(name, count, about[name], name) for name, count in samples.items()),
        kinds,
        cost_scale=UNITS_OF_BEST_SINGLE / paid if paid else 1.0,
    )
    splits = ["test" if q.split == "test" else "dev" if _develops(q.id) else "train" for q in whole]
    return pool, answered(table, pool), splits


def answered(table: Table, pool: RecordedPool) -> list[Answered]:
    """The table's questions that hold every sample of the pool; workers are found by source, or else by name."""
    answers = _first_steps(table)
    known = {worker.name for worker in table.workers}
    found = []
    for question in table.questions:
        own: list[Answer] = []
        for worker in pool.workers:
            name = worker.source if worker.source in known else worker.name
            own += answers[question.id][name][: worker.samples] if question.id in answers else []
        if len(own) < len(pool.slots):
            continue
        classes = list(dict.fromkeys(answer.same for answer in own if answer.same >= 0))
        found.append(
            Answered(
                id=question.id,
                set=question.kind or "questions",
                text=question.text,
                answers=tuple(next(a.final for a in own if a.same == same) for same in classes),
                classes=tuple(classes.index(answer.same) if answer.same >= 0 else -1 for answer in own),
                ended=tuple(answer.ended for answer in own),
                right=tuple((answer.right or 0.0) >= 0.5 for answer in own),
                cost=tuple(answer.cost * pool.cost_scale for answer in own),
            )
        )
    return found


def _first_steps(table: Table) -> dict[str, dict[str, list[Answer]]]:
    """The graded answers that read no other answer, by question and worker."""
    answers: dict[str, dict[str, list[Answer]]] = {}
    for answer in sorted(table.answers, key=lambda answer: answer.k):
        if not answer.read and answer.right is not None:
            answers.setdefault(answer.question, defaultdict(list))[answer.worker].append(answer)
    return answers


def cross_fitted(
    table: Sequence[Answered], folds: Sequence[int], pool: RecordedPool, *, without: str | None, seed: int
) -> tuple[Values, Selector]:
    """The values of every question, and the selector of the whole training part. Fold -1 is no training question."""
    rows = [row_of(question, pool) for question in table]
    workers = tuple(worker.source for worker in pool.workers)
    usable = [i for i, one in enumerate(table) if folds[i] >= 0 and not (without and one.set.startswith(without))]
    arrays = {name: np.zeros((len(table), 1 << len(pool.slots))) for name in ("right", "confidence", "vote")}
    selector = fit([rows[i] for i in usable], workers, seed=seed)
    for fold in sorted(set(folds)):
        own = selector if fold < 0 else fit([rows[i] for i in usable if folds[i] != fold], workers, seed=seed)
        asked = [i for i, one in enumerate(folds) if one == fold]
        for i, chance in zip(asked, sets_chances([rows[i] for i in asked], own), strict=True):
            for name, value in zip(arrays, picked(chance, table[i]), strict=True):
                arrays[name][i] = value
    single = np.array([question.right for question in table], dtype=np.float64)
    cost = np.array([question.cost for question in table], dtype=np.float64)
    return Values(**arrays, single=single, cost=cost), selector


def row_of(question: Answered, pool: RecordedPool) -> Row:
    """The question as a selector is fitted on it. A class is as right as its members are on average."""
    right = np.array(question.right, dtype=np.float64)
    classes = np.array(question.classes)
    return Row(
        question=question.text,
        answers=question.answers,
        workers=tuple(worker.source for worker in pool.workers for _ in range(worker.samples)),
        classes=question.classes,
        ended=question.ended,
        right=tuple(float(right[classes == place].mean()) for place in range(len(question.answers))),
    )


def sets_chances(rows: Sequence[Row], selector: Selector) -> Iterable[Floats]:
    """For each question the chances [sets, classes] of its answers in every set; -1 where a set lacks the answer."""
    for start in range(0, len(rows), 100):
        # Equal rows of features are looked up once: most sets differ only in which sample of a role they hold.
        parts = []
        for row in rows[start : start + 100]:
            values, present = features(row, sets_of(len(row.workers)), selector.prior(row.question), selector.workers)
            flat = np.ascontiguousarray(values[present])
            _, first, place = np.unique(flat.view(f"V{flat.shape[1]}").ravel(), return_index=True, return_inverse=True)
            parts.append((present, flat[first], place.ravel()))
        chances = selector.chance_of(np.concatenate([distinct for _, distinct, _ in parts]))
        begin = 0
        for present, distinct, place in parts:
            chance = np.full(present.shape, -1.0)
            chance[present] = chances[begin : begin + len(distinct)][place]
            begin += len(distinct)
            yield chance


def picked(chance: Floats, question: Answered) -> tuple[Floats, Floats, Floats]:
    """(right, confidence, vote) of every set, from the selector's chances.

    Picking a class gives one of its answers in the set at random: graders may differ on equal answers, as on "No" and
    "the answer is `No`".
    """
    sets = sets_of(len(question.classes))
    if not question.answers:
        nothing = np.zeros(len(sets))
        return nothing, nothing, nothing
    member = (np.array(question.classes)[:, None] == np.arange(len(question.answers))).astype(np.float64)
    counts = sets.astype(np.float64) @ member
    right = sets.astype(np.float64) @ (member * np.array(question.right)[:, None]) / np.maximum(counts, 1)
    answered = counts.sum(1) > 0

    def mean_right(among: npt.NDArray[np.bool_]) -> Floats:
        return np.where(answered, (among * right).sum(1) / among.sum(1), 0.0)

    best = chance.max(1, keepdims=True)
    return (
        mean_right(chance == best),
        np.where(answered, best[:, 0], 0.0),
        mean_right(counts == counts.max(1, keepdims=True)),
    )


@functools.cache
def sets_of(samples: int) -> npt.NDArray[np.bool_]:
    """The samples in each set [sets, samples]."""
    return np.array([[s >> bit & 1 for bit in range(samples)] for s in range(1 << samples)], dtype=np.bool_)


def valued(table: Sequence[Answered], pool: RecordedPool, selector: Selector) -> Values:
    """The values of questions that the selector was not fitted on."""
    rows = [row_of(question, pool) for question in table]
    found = [picked(chance, one) for chance, one in zip(sets_chances(rows, selector), table, strict=True)]
    right, confidence, vote = (np.stack([one[i] for one in found]) for i in range(3))
    single = np.array([question.right for question in table], dtype=np.float64)
    cost = np.array([question.cost for question in table], dtype=np.float64)
    return Values(right, confidence, vote, single, cost)


def write(
    folder: Path,
    table: Sequence[Answered],
    splits: Sequence[str],
    folds: Sequence[int],
    values: Values,
    pool: RecordedPool,
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pool.json").write_bytes(msgspec.json.format(msgspec.json.encode(pool), indent=1) + b"\n")
    lines = [
        msgspec.json.encode(
            {
                "id": one.id,
                "text": one.text,
                "set": one.set,
                "split": split,
                "fold": fold,
                "said": [one.answers[same] if same >= 0 else "" for same in one.classes],
            }
        )
        + b"\n"
        for one, split, fold in zip(table, splits, folds, strict=True)
    ]
    (folder / "questions.jsonl").write_bytes(b"".join(lines))
    beside = folder / "values.part.npz"
    sets = {name: getattr(values, name).astype(np.float16) for name in ("right", "confidence", "vote", "single")}
    np.savez_compressed(beside, cost=values.cost.astype(np.float32), **sets)
    beside.replace(folder / "values.npz")


def report(table: Sequence[Answered], splits: Sequence[str], values: Values, pool: RecordedPool) -> list[str]:
    """Figures about development questions, as lines of text."""
    development = [i for i, split in enumerate(splits) if split == "dev"]
    if not development:
        raise ConfigError("no question fell into the development part; the report needs some")
    groups = {"all": development}
    groups |= {kind: [i for i in development if table[i].set.startswith(kind)] for kind in pool.kinds}
    heads = "".join(f"{worker.name[:10]:>11}" for worker in pool.workers)
    lines = [f"development        questions{heads} | all samples: vote select any | select - vote"]
    for name, some in groups.items():
        if not some:
            continue
        singles = "".join(f"{100 * values.single[some][:, pool.bits(one.name)].mean():11.1f}" for one in pool.workers)
        vote, right = 100 * values.vote[some][:, -1], 100 * values.right[some][:, -1]
        error = 1.96 * float((right - vote).std()) / len(some) ** 0.5
        lines.append(
            f"{name:18} {len(some):9}{singles} | {vote.mean():17.1f} {right.mean():6.1f}"
            f" {100 * values.single[some].max(1).mean():3.0f} | {(right - vote).mean():+.1f} +- {error:.1f}"
        )
    lines.append("confidence   share  mean confidence  right   (development, every set)")
    confidence, right = values.confidence[development][:, 1:].ravel(), values.right[development][:, 1:].ravel()
    place = np.minimum((confidence * 10).astype(np.int64), 9)
    for ten in range(10):
        here = place == ten
        if here.any():
            lines.append(
                f"{ten / 10:.1f} to {ten / 10 + 0.1:.1f}  {100 * here.mean():5.1f}%  {confidence[here].mean():15.3f}"
                f"  {right[here].mean():5.3f}"
            )
    return lines


if __name__ == "__main__":
    main()
