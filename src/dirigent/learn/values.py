"""What every set of recorded answers is worth: the table on which plans get exact values.

    python -m dirigent.learn.values --data FOLDER --out FOLDER [--folds 5] [--seed 1] [--without bbh]

Writes `questions.jsonl` (id, text, set, split, fold), `values.npz` and `selector/`. A set of samples is a number of
ten bits, in the order of `roles_table.SLOTS`; for each question and set, `values.npz` holds

    right       is the answer that the selector picks right; the mean over exact ties
    confidence  the selector's chance for the answer it picks
    vote        is the most common answer right; the mean over ties
    single      is each sample right
    cost        of each sample: output tokens and a quarter of the prompt tokens

The selector is fitted on training questions only. A training question gets the selector of the other folds; development
and test questions get the selector of the whole training part. `--without` leaves a family out of every fit.

The report is about development questions. Nothing is computed about test questions but their number.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.learn.roles_table import SAMPLES, SLOTS, Answered, load_table
from dirigent.learn.selector import Row, Selector, features, fit

FAMILIES = ("gsm8k", "math", "bbh", "crux")
ROLES = tuple(SAMPLES)
BITS = len(SLOTS)
SETS = np.array([[s >> bit & 1 for bit in range(BITS)] for s in range(1 << BITS)], dtype=np.bool_)
"""[sets, samples]: the samples in each set."""
DEVELOPMENT = 0.126
"""Share of the questions that are not test questions: about 400 of the recorded ones."""

Floats = npt.NDArray[np.float64]


class Values(msgspec.Struct, frozen=True):
    """Arrays with a row for each question, as in `values.npz`."""

    right: Floats
    confidence: Floats
    vote: Floats
    single: Floats
    cost: Floats


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of questions_*.jsonl.gz and roles_*.jsonl.gz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", choices=FAMILIES, help="a family that no selector is fitted on")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    table = load_table(options.data, cache=options.out / "gradings.json")
    splits = [split_of(question) for question in table]
    folds = [
        number_from("fold", options.seed, one.id) % options.folds if split == "train" else -1
        for one, split in zip(table, splits, strict=True)
    ]
    print(f"{len(table)} questions: {dict(Counter(splits))}; graded after {time.monotonic() - began:.0f} s", flush=True)
    values, selector = cross_fitted(table, folds, without=options.without, seed=options.seed)
    write(options.out, table, splits, folds, values)
    selector.save(options.out / "selector")
    print("\n".join(report(table, splits, values)))
    print(f"written to {options.out} after {time.monotonic() - began:.0f} s")


def split_of(question: Answered) -> str:
    """train, dev or test, as the README of the data defines the test."""
    if question.set in ("gsm8k_test", "math500"):
        return "test"
    if not question.set.endswith("_train") and int(hashlib.sha1(question.id.encode()).hexdigest(), 16) % 6 in (0, 3, 5):
        return "test"
    return "dev" if number_from("dev", question.id) % 1000 < 1000 * DEVELOPMENT else "train"


def number_from(*parts: object) -> int:
    return int(hashlib.sha1(" ".join(map(str, parts)).encode()).hexdigest()[:12], 16)


def cross_fitted(
    table: Sequence[Answered], folds: Sequence[int], *, without: str | None, seed: int
) -> tuple[Values, Selector]:
    """The values of every question, and the selector of the whole training part. Fold -1 is no training question."""
    rows = [row_of(question) for question in table]
    usable = [i for i, one in enumerate(table) if folds[i] >= 0 and not (without and one.set.startswith(without))]
    arrays = {name: np.zeros((len(table), len(SETS))) for name in ("right", "confidence", "vote")}
    selector = fit([rows[i] for i in usable], ROLES, seed=seed)
    for fold in sorted(set(folds)):
        own = selector if fold < 0 else fit([rows[i] for i in usable if folds[i] != fold], ROLES, seed=seed)
        asked = [i for i, one in enumerate(folds) if one == fold]
        for i, chance in zip(asked, sets_chances([rows[i] for i in asked], own), strict=True):
            for name, value in zip(arrays, picked(chance, table[i]), strict=True):
                arrays[name][i] = value
    single = np.array([question.right for question in table], dtype=np.float64)
    cost = np.array([question.cost for question in table], dtype=np.float64)
    return Values(**arrays, single=single, cost=cost), selector


def row_of(question: Answered) -> Row:
    """The question as a selector is fitted on it. A class is as right as its members are on average."""
    right = np.array(question.right, dtype=np.float64)
    classes = np.array(question.classes)
    return Row(
        question=question.text,
        answers=question.answers,
        workers=tuple(role for role, _ in SLOTS),
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
            values, present = features(row, SETS, selector.prior(row.question), ROLES)
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
    if not question.answers:
        nothing = np.zeros(len(SETS))
        return nothing, nothing, nothing
    member = (np.array(question.classes)[:, None] == np.arange(len(question.answers))).astype(np.float64)
    counts = SETS.astype(np.float64) @ member
    right = SETS.astype(np.float64) @ (member * np.array(question.right)[:, None]) / np.maximum(counts, 1)
    answered = counts.sum(1) > 0

    def mean_right(among: npt.NDArray[np.bool_]) -> Floats:
        return np.where(answered, (among * right).sum(1) / among.sum(1), 0.0)

    best = chance.max(1, keepdims=True)
    return (
        mean_right(chance == best),
        np.where(answered, best[:, 0], 0.0),
        mean_right(counts == counts.max(1, keepdims=True)),
    )


def write(folder: Path, table: Sequence[Answered], splits: Sequence[str], folds: Sequence[int], values: Values) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        msgspec.json.encode({"id": one.id, "text": one.text, "set": one.set, "split": split, "fold": fold}) + b"\n"
        for one, split, fold in zip(table, splits, folds, strict=True)
    ]
    (folder / "questions.jsonl").write_bytes(b"".join(lines))
    beside = folder / "values.part.npz"
    sets = {name: getattr(values, name).astype(np.float16) for name in ("right", "confidence", "vote", "single")}
    np.savez_compressed(beside, cost=values.cost.astype(np.float32), **sets)
    beside.replace(folder / "values.npz")


def report(table: Sequence[Answered], splits: Sequence[str], values: Values) -> list[str]:
    """Figures about development questions, as lines of text."""
    development = [i for i, split in enumerate(splits) if split == "dev"]
    if not development:
        raise ConfigError("no question fell into the development part; the report needs some")
    groups = {"all": development}
    groups |= {f: [i for i in development if table[i].set.startswith(f)] for f in FAMILIES}
    own = {role: [bit for bit, (one, _) in enumerate(SLOTS) if one == role] for role in ("direct", "think", "code")}
    mixed = sum(1 << bit for bit in own["think"] + own["code"])
    six = [
        sum(1 << bit for bit in (*three, *four)) for three in _triples(own["think"]) for four in _triples(own["code"])
    ]
    lines = [
        "development        questions direct think  code | all ten: vote select | 4 think + 4 code: vote select any"
        " | 3 + 3: vote select | select - vote over 3 + 3"
    ]
    for name, some in groups.items():
        if not some:
            continue
        singles = [100 * values.single[some][:, bits].mean() for bits in own.values()]
        three = [100 * array[some][:, six].mean() for array in (values.vote, values.right)]
        difference = 100 * (values.right[some][:, six] - values.vote[some][:, six]).mean(1)
        error = 1.96 * float(difference.std()) / len(some) ** 0.5
        pairs = [100 * array[some][:, s].mean() for s in (-1, mixed) for array in (values.vote, values.right)]
        reached = 100 * values.single[some][:, own["think"] + own["code"]].max(1).mean()
        lines.append(
            f"{name:18} {len(some):9} {singles[0]:6.1f} {singles[1]:5.1f} {singles[2]:5.1f} |"
            f" {pairs[0]:13.1f} {pairs[1]:6.1f} | {pairs[2]:22.1f} {pairs[3]:6.1f} {reached:3.0f} |"
            f" {three[0]:11.1f} {three[1]:6.1f} | {difference.mean():+.1f} +- {error:.1f}"
        )
    lines.append("confidence   share  mean confidence  right   (development, sets of 3 think and 3 code)")
    confidence, right = values.confidence[development][:, six].ravel(), values.right[development][:, six].ravel()
    place = np.minimum((confidence * 10).astype(np.int64), 9)
    for ten in range(10):
        here = place == ten
        if here.any():
            lines.append(
                f"{ten / 10:.1f} to {ten / 10 + 0.1:.1f}  {100 * here.mean():5.1f}%  {confidence[here].mean():15.3f}"
                f"  {right[here].mean():5.3f}"
            )
    return lines


def _triples(bits: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(bit for bit in bits if bit != left) for left in bits]


if __name__ == "__main__":
    main()
