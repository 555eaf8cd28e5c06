"""The chance that an answer is right, given who gave it, who disagrees, its form, and the question's text.

A selector is fitted on recorded samples: random subsets of the samples of a question, and for each answer class in a
subset whether it is right. It reads counts (who was asked, who supports the answer, what speaks against it), the form
of the answer, and surface features of the question. It never reads the name of a data set or a gold answer.

The model is a sum of oblivious trees (each level asks one question of every row), fitted by gradient boosting of the
log loss. Every feature is a small whole number, so a file of thresholds is all that is stored. A ridge regression of
hashed words adds, for each worker, how often it is right on questions of such words; during the fit it is
cross-fitted, because in-sample it would be too sure. Those features alone depend on the fit (`with_prior`); the others
(`counted`) are the same for every selector of the same workers.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.messages import Result
from dirigent.tasks.answer_forms import OPTIONS, answer_of, normal_form, number_of

MOST_WORKERS = 12
"""Each worker adds six features; a selector over more would need more answers than tables have."""
WORDS = 1024
"""Buckets of hashed words."""
RIDGES = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Strengths of the ridge regression to choose from."""
LEVELS = 32
"""Values of a feature: 0 to 31."""
CHUNK = 1 << 16

OPTION = re.compile(r"^\s*\(?([A-Z])[).:]\s+(.+)$", re.MULTILINE)
WORD = re.compile(r"[a-z]+|\d+(?:\.\d*[1-9])?")
KINDS = ("integer", "decimal", "letter", "word", "text", "literal", "formula")

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


class Row(msgspec.Struct, frozen=True):
    """The recorded samples of one question."""

    question: str
    answers: tuple[str, ...]
    """One answer of each class."""
    workers: tuple[str, ...]
    """Of each sample."""
    classes: tuple[int, ...]
    """Of each sample; -1 if it has no answer."""
    ended: tuple[bool, ...]
    """Whether each sample's reply ended before its cap."""
    right: tuple[float, ...] = ()
    """Whether each class is right; only a fit needs it."""
    texts: tuple[str, ...] = ()
    """Each sample's whole reply; empty if replies were not kept."""


class Selection(msgspec.Struct, frozen=True):
    """The result that a selector picks."""

    place: int
    """Its place among the results."""
    chance: float | None
    """The chance that it is right. None: no worker that the selector knows gave an answer that can be compared."""
    votes: int
    """How many results gave this answer."""
    of: int
    """How many results gave any answer."""


class SelectorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    subsets: int = 40
    """Random subsets of samples that a fit takes of each question."""
    trees: int = 200
    depth: int = 5
    learning_rate: float = 0.1
    damping: float = 20.0
    """Added to a leaf's curvature: leaves of few rows say little."""
    rows: int = 20_000
    """Rows that each tree sees."""
    columns: float = 0.35
    """Share of the features that each tree may split on."""


class Selector(msgspec.Struct, frozen=True):
    workers: tuple[str, ...]
    """The workers whose answers it was fitted on. It knows nothing of others."""
    base: float
    """Log-odds before the first tree."""
    features: npt.NDArray[np.int64]
    """[trees, depth]: the feature that each level compares."""
    thresholds: npt.NDArray[np.int64]
    """[trees, depth]: a row goes right if its value is above."""
    leaves: Floats
    """[trees, 2**depth]: log-odds to add."""
    words: Floats
    """[WORDS + 1, workers + 1]: weights of hashed words, then of a constant."""

    def chances(self, row: Row) -> list[float]:
        """The chance of each answer class to be right, with every sample of the row seen."""
        if not row.answers:
            return []
        everything = np.ones((1, len(row.workers)), dtype=np.bool_)
        values, present = features(row, everything, self.prior(row.question), self.workers)
        return [float(c) if p else 0.0 for c, p in zip(self.chance_of(values[0]), present[0], strict=True)]

    def choose(self, question: str, results: Sequence[Result]) -> Selection:
        """The result most likely right. Without a chance it is the most common answer, or else the last result.

        A served question has no grader, so answers are equal if they plainly are: numbers and literals by value, other
        answers as text. A program that failed has no answer.
        """
        if not results:
            raise ConfigError("a selector needs at least one result to choose from")
        finals = [_final_of(result, question) for result in results]
        forms = [normal_form(final, grader="math") if final else "" for final in finals]
        distinct = list(dict.fromkeys(form for form in forms if form))
        answered = sum(map(bool, forms))

        def picked(form: str, chance: float | None) -> Selection:
            return Selection(forms.index(form), chance, forms.count(form), answered)

        if not distinct:
            return Selection(len(results) - 1, None, 0, 0)
        known = [i for i, result in enumerate(results) if result.worker in self.workers]
        shown = [form for form in distinct if any(forms[i] == form for i in known)]
        if not shown:
            return picked(max(distinct, key=forms.count), None)
        row = Row(
            question=question,
            answers=tuple(finals[forms.index(form)] for form in shown),
            workers=tuple(results[i].worker for i in known),
            classes=tuple(shown.index(forms[i]) if forms[i] else -1 for i in known),
            ended=tuple(results[i].ended for i in known),
            texts=tuple("" if _failed(results[i]) else results[i].text for i in known),
        )
        chances = self.chances(row)
        best = max(range(len(shown)), key=lambda place: chances[place])
        return picked(shown[best], chances[best])

    def prior(self, question: str) -> Floats:
        """For each worker, how often it is right on questions of such words; last, how often any is."""
        return np.asarray(hashed_words(question) @ self.words)

    def chance_of(self, values: Bytes) -> Floats:
        """The chance of each row of features [rows, features]."""
        columns = np.ascontiguousarray(values.T)
        depth = self.features.shape[1]
        margin = np.full(len(values), self.base)
        if len(values) < 64:  # few rows: all trees at once
            above = columns[self.features] > self.thresholds[:, :, None]
            leaf = (above * (1 << np.arange(depth))[None, :, None]).sum(1)
            margin += np.take_along_axis(self.leaves, leaf, axis=1).sum(0)
        else:
            for begin in range(0, len(values), CHUNK):  # as many rows as a processor's cache holds
                part = slice(begin, begin + CHUNK)
                for chosen, threshold, leaves in zip(self.features, self.thresholds, self.leaves, strict=True):
                    margin[part] += leaves[_leaves_of(columns[:, part], chosen, threshold)]
        return np.asarray(1 / (1 + np.exp(-margin)))

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            folder / "selector.npz",
            names=np.array(names(self.workers)),
            workers=np.array(self.workers),
            base=np.array(self.base),
            features=self.features,
            thresholds=self.thresholds,
            leaves=self.leaves,
            words=self.words,
        )

    @classmethod
    def load(cls, folder: Path) -> Selector:
        file = folder / "selector.npz"
        try:
            arrays = dict(np.load(file))
        except (OSError, ValueError) as error:
            raise ConfigError(f"no selector can be read from {file}: {error}") from None
        workers = tuple(map(str, arrays.get("workers", np.array(())).tolist()))
        if arrays["names"].tolist() != list(names(workers)):
            raise ConfigError(f"{file} was fitted on other features than this version computes; fit it again")
        return cls(
            workers=workers,
            base=float(arrays["base"]),
            **{name: arrays[name] for name in ("features", "thresholds", "leaves", "words")},
        )


def fit(
    rows: Sequence[Row], workers: Sequence[str], *, settings: SelectorSettings | None = None, seed: int = 1
) -> Selector:
    """A selector fitted on these workers' recorded samples of these questions."""
    settings = settings or SelectorSettings()
    workers = tuple(workers)
    if len(rows) < 2:
        raise ConfigError(f"a selector needs at least 2 questions to be fitted on, not {len(rows)}")
    if len(workers) > MOST_WORKERS:
        raise ConfigError(f"a selector is fitted on at most {MOST_WORKERS} workers, not {len(workers)}")
    rng = np.random.default_rng(seed)
    blocks, labels, owners = [], [], []
    for place, row in enumerate(rows):
        values, present = counted(row, random_sets(row.workers, workers, settings.subsets, rng), workers)
        blocks.append(values[present])
        labels.append(np.broadcast_to(np.array(row.right), present.shape)[present])
        owners.append(np.full(len(blocks[-1]), place))
    return fit_counted(
        np.concatenate(blocks),
        np.concatenate(labels),
        np.concatenate(owners),
        hashed=np.stack([hashed_words(row.question) for row in rows]),
        targets=np.array([worker_scores(row, workers) for row in rows]),
        workers=workers,
        settings=settings,
        rng=rng,
    )


def fit_counted(
    values: Bytes,
    label: Floats,
    owner: npt.NDArray[np.int64],
    *,
    hashed: Floats,
    targets: Floats,
    workers: tuple[str, ...],
    settings: SelectorSettings,
    rng: np.random.Generator,
    blind: Sequence[str] = (),
) -> Selector:
    """A selector fitted on rows of `counted` features, given whether each is right and whose question it is.

    `hashed` and `targets` have a row for each question: its hashed words, and `worker_scores`. Features named
    in `blind` are hidden from it; a name that ends in `*` stands for all that begin with it.
    """
    if not 0 < label.mean() < 1:
        raise ConfigError(
            f"a selector needs right and wrong answers to be fitted on; of these {label.mean():.0%} are right"
        )
    prior, words = cross_fitted_ridge(hashed, targets, rng)
    values = with_prior(values, prior[owner], len(workers))
    for column, name in enumerate(names(workers)):
        if any(name.startswith(one[:-1]) if one.endswith("*") else name == one for one in blind):
            values[:, column] = 0  # a constant feature splits nothing
    base, chosen, thresholds, leaves = boosted(values, label, settings, rng)
    return Selector(workers, base, chosen, thresholds, leaves, words)


def cross_fitted_ridge(
    hashed: Floats, targets: Floats, rng: np.random.Generator, *, parts: int = 5
) -> tuple[Floats, Floats]:
    """Each row's targets as the ridge regression of the other parts predicts them, and the weights of all rows.

    How strong the ridge is, is chosen by what two of the parts say of the fit to the others.
    """
    part = rng.integers(parts, size=len(hashed))
    held = [part == one for one in range(parts) if (part == one).any() and (part != one).any()]
    strength = min(
        RIDGES,
        key=lambda ridge_: sum(
            float(((hashed[own] @ ridge(hashed[~own], targets[~own], ridge_) - targets[own]) ** 2).sum())
            for own in held[:2]
        ),
    )
    priors = np.tile(targets.mean(0), (len(hashed), 1))
    for own in held:
        priors[own] = hashed[own] @ ridge(hashed[~own], targets[~own], strength)
    return priors, ridge(hashed, targets, strength)


def boosted(
    values: Bytes, label: Floats, settings: SelectorSettings, rng: np.random.Generator
) -> tuple[float, npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    """Oblivious trees fitted to the labels: (log-odds to start from, features, thresholds, leaves)."""
    count, width = values.shape
    columns = np.ascontiguousarray(values.T)
    base = math.log(label.mean() / (1 - label.mean()))
    margin = np.full(count, base)
    chosen = np.zeros((settings.trees, settings.depth), dtype=np.int64)
    thresholds = np.zeros((settings.trees, settings.depth), dtype=np.int64)
    leaves = np.zeros((settings.trees, 1 << settings.depth))
    for tree in range(settings.trees):
        some = rng.choice(count, min(count, settings.rows), replace=False)
        candidates = rng.choice(width, max(1, round(width * settings.columns)), replace=False)
        seen = columns[np.ix_(candidates, some)].astype(np.int64)
        chance = 1 / (1 + np.exp(-margin[some]))
        slope, curve = label[some] - chance, chance * (1 - chance)
        leaf = np.zeros(len(some), dtype=np.int64)
        for level in range(settings.depth):
            size = LEVELS << level
            best = (-1.0, 0, 0)
            for place, column in enumerate(seen):
                cell = leaf * LEVELS + column
                left = np.bincount(cell, slope, size).reshape(-1, LEVELS).cumsum(1)
                left_curve = np.bincount(cell, curve, size).reshape(-1, LEVELS).cumsum(1)
                right, right_curve = left[:, -1:] - left, left_curve[:, -1:] - left_curve
                gain = (left**2 / (left_curve + settings.damping) + right**2 / (right_curve + settings.damping)).sum(0)
                at = int(gain.argmax())
                if gain[at] > best[0]:
                    best = (float(gain[at]), place, at)
            _, place, at = best
            chosen[tree, level], thresholds[tree, level] = candidates[place], at
            leaf += (seen[place] > at).astype(np.int64) * (1 << level)
        total = np.bincount(leaf, slope, 1 << settings.depth)
        total_curve = np.bincount(leaf, curve, 1 << settings.depth)
        leaves[tree] = settings.learning_rate * total / (total_curve + settings.damping)
        margin += leaves[tree][_leaves_of(columns, chosen[tree], thresholds[tree])]
    return base, chosen, thresholds, leaves


def _leaves_of(columns: Bytes, chosen: npt.NDArray[np.int64], thresholds: npt.NDArray[np.int64]) -> Bytes:
    """The leaf of one tree that each column of values falls into."""
    leaf = np.zeros(columns.shape[1], dtype=np.uint8)
    for level, (place, threshold) in enumerate(zip(chosen.tolist(), thresholds.tolist(), strict=True)):
        leaf |= (columns[place] > threshold).view(np.uint8) << np.uint8(level)
    return leaf


def random_sets(samples: Sequence[str], workers: Sequence[str], count: int, rng: np.random.Generator) -> Mask:
    """Random sets of samples [count, samples]: every number of samples of each worker is equally likely."""
    sets = np.zeros((count, len(samples)), dtype=np.bool_)
    while (empty := ~sets.any(1)).any():
        for worker in workers:
            own = np.array([i for i, one in enumerate(samples) if one == worker], dtype=np.int64)
            # The first few of each row's own random order of the worker's samples.
            ranks = rng.random((int(empty.sum()), len(own))).argsort(1).argsort(1)
            sets[np.ix_(empty, own)] = ranks < rng.integers(len(own) + 1, size=(len(ranks), 1))
    return sets


def _final_of(result: Result, question: str) -> str:
    """The answer in a result; empty if its program failed, or if it states none."""
    return "" if _failed(result) else answer_of(result.text, question=question, grader="exact")


def _failed(result: Result) -> bool:
    return result.ran is not None and not result.ran.printed


def worker_scores(row: Row, workers: Sequence[str]) -> list[float]:
    """How often each worker is right on the question, then whether any sample is."""
    sample_right = [row.right[c] if c >= 0 else 0.0 for c in row.classes]
    means = []
    for worker in workers:
        own = [right for right, one in zip(sample_right, row.workers, strict=True) if one == worker]
        means.append(sum(own) / len(own) if own else 0.0)
    return [*means, max(sample_right, default=0.0)]


def ridge(inputs: Floats, targets: Floats, strength: float) -> Floats:
    """The weights of a ridge regression; with fewer rows than columns they are found through the rows."""
    rows, columns = inputs.shape
    if rows < columns:
        return np.asarray(inputs.T @ np.linalg.solve(inputs @ inputs.T + strength * np.eye(rows), targets))
    return np.asarray(np.linalg.solve(inputs.T @ inputs + strength * np.eye(columns), inputs.T @ targets))


def hashed_words(question: str) -> Floats:
    """Words and pairs of words in buckets, scaled to length 1, then a constant. Every number is one word."""
    words = re.findall(r"\\?[a-z]+|\d+|[^\w\s]", question.lower())
    words = ["0" if word[0].isdigit() else word for word in words]
    counts = np.zeros(WORDS + 1)
    for word in {*words, *(f"{a} {b}" for a, b in itertools.pairwise(words))}:
        counts[zlib.crc32(word.encode()) % WORDS] += 1
    counts = np.sqrt(counts)
    counts /= max(1.0, float(np.linalg.norm(counts)))
    counts[-1] = 1.0
    return counts


# ---- features -----------------------------------------------------------------------------------------------

MARKERS = (
    r"\[python\]", r"how many", r"how much", r"what is", r"find", r"probability", r"area|angle|triangle|circle",
    r"sort", r"date|day", r"true|false|yes", r"per(?:cent)?\b|%", r"hour|minute|speed", r"\$", r"remainder|digit|prime",
    r"polynomial|root|equation", r"\\frac|fraction", r"ratio|times|twice|half", r"return", r"left|right", r"function",
)  # fmt: skip

SHARED = (
    "for it", "best against it", "lead", "share", "answers", "cut off for it", "cut off", "workers for it",
    "alone among samples", "answers of its kind", "kinds", "against it in the question", "cut off against it",
    "near it", "same words", "stated by others",
)  # fmt: skip
FORM = (
    "kind", "length", "size", "negative", "zero or one", "round", "in the question", "times in the question",
    "digits behind the point",
)  # fmt: skip
QUESTION = (
    "question length", "numbers", "largest number", "words", "lines", "formula signs", "options", "capitals",
    "word length",
    *(f"says {marker}" for marker in MARKERS),
)  # fmt: skip
EACH = ("asked", "for it", "best against it", "without an answer", "share of")
"""Features that every worker has, in this order, each for all workers."""


@functools.lru_cache(maxsize=64)
def names(workers: tuple[str, ...]) -> tuple[str, ...]:
    """The name of every feature of a selector over these workers."""
    return (
        *(f"{feature} {worker}" for feature in EACH for worker in workers),
        *SHARED,
        *FORM,
        *QUESTION,
        *(f"prior {worker}" for worker in workers),
        "prior any",
        "prior for it",
        "prior against it",
    )


def features(row: Row, sets: Mask, prior: Floats, workers: tuple[str, ...]) -> tuple[Bytes, Mask]:
    """Features [sets, classes, features] of every class in each set of samples, and which classes the set holds."""
    values, present = counted(row, sets, workers)
    return with_prior(values, prior, len(workers)), present


def with_prior(values: Bytes, prior: Floats, workers: int) -> Bytes:
    """Adds the features that depend on how good each worker is held to be: [..., workers + 1] fits `values`."""
    prior = np.broadcast_to(prior, (*values.shape[:-1], workers + 1))
    asked, support = values[..., :workers], values[..., workers : 2 * workers]
    own = np.clip(prior[..., :workers], 0, 1)
    of_it = (support * own).sum(-1, keepdims=True)
    other = (asked * own).sum(-1, keepdims=True) - of_it
    more = np.clip(np.concatenate([prior * 31, of_it * 8, other * 8], axis=-1), 0, 31).astype(np.uint8)
    return np.concatenate([values, more], axis=-1)


def counted(row: Row, sets: Mask, workers: tuple[str, ...]) -> tuple[Bytes, Mask]:
    """The features that no fit changes [sets, classes, features], and which classes each set holds."""
    width = len(EACH) * len(workers) + len(SHARED) + len(FORM) + len(QUESTION)
    if not row.answers:
        return np.zeros((len(sets), 0, width), dtype=np.uint8), np.zeros((len(sets), 0), dtype=np.bool_)
    whose = np.array([workers.index(worker) for worker in row.workers])
    classes, ended = np.array(row.classes), np.array(row.ended)
    own = whose[None, :] == np.arange(len(workers))[:, None]
    member = classes[None, :] == np.arange(len(row.answers))[:, None]
    counts = sets.astype(np.int64)
    asked = counts @ own.T
    support = np.stack([counts @ (member & mine).T for mine in own], axis=2)
    total = support.sum(2)
    against = np.stack([_best_other(support[:, :, w]) for w in range(len(workers))], axis=2)
    against_total = _best_other(total)
    answered = total.sum(1, keepdims=True)
    present = total > 0
    number = present.sum(1, keepdims=True)
    silent = counts @ (own & (classes < 0)).T

    def each(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.broadcast_to(values, total.shape)

    def share(part: npt.NDArray[np.int64], whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.where(whole > 0, (part * 24) // np.maximum(whole, 1), 31)

    forms = np.array([answer_form(answer, row.question) for answer in row.answers], dtype=np.int64)
    kind, found = forms[:, 0], forms[:, 6]
    numbers = [number_of(answer) for answer in row.answers]
    near = np.array([[_near(one, other) for other in numbers] for one in numbers], dtype=np.int64)
    of_kind = np.stack([total[:, kind == one].sum(1) for one in range(len(KINDS))], axis=1)
    cut = counts @ (member & ~ended).T
    same_words, stated = _relations(row)
    shared = [
        total,
        against_total,
        np.clip(total - against_total + 10, 0, 20),
        share(total, answered),
        each(number),
        cut,
        each(counts[:, ~ended].sum(1)[:, None]),
        (support > 0).sum(2),
        (total == 1).sum(1, keepdims=True) * present,
        of_kind[:, kind],
        each((of_kind > 0).sum(1)[:, None]),
        each((total * found).sum(1)[:, None]) - total * found,
        each(cut.sum(1)[:, None]) - cut,
        total @ near,
        total @ same_words,
        counts @ (stated & ~member).T,
    ]
    by_worker = [
        np.broadcast_to(asked[:, None, :], support.shape),
        support,
        against,
        np.broadcast_to(silent[:, None, :], support.shape),
        share(support, asked[:, None, :]),
    ]
    moving = np.clip(np.concatenate([*by_worker, np.stack(shared, axis=2)], axis=2), 0, 31).astype(np.uint8)
    fixed = np.array([[*form, *question_form(row.question)] for form in forms], dtype=np.uint8)
    return np.concatenate([moving, np.broadcast_to(fixed, (len(sets), *fixed.shape))], axis=2), present


def _best_other(support: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each class the greatest support of any other class."""
    if support.shape[1] < 2:
        return np.zeros_like(support)
    ordered = np.sort(support, axis=1)
    return np.where(support == ordered[:, -1:], ordered[:, -2:-1], ordered[:, -1:])


def _near(one: float | None, other: float | None) -> bool:
    """Whether two numbers differ by rounding, sign or a power of ten."""
    if one is None or other is None or one == other or not one or not other:
        return False
    factor = abs(one / other)
    return factor == 1 or abs(factor - 1) < 0.01 or factor in (0.01, 0.1, 10, 100, 1000)


def _relations(row: Row) -> tuple[npt.NDArray[np.int64], Mask]:
    """Which answers say the same in other words [classes, classes], and which replies state them [classes, samples].

    `D` and the text of option D say the same, and so do `[1, 2]` and `1, 2`.
    """
    said = [_bare(answer) for answer in row.answers]
    options = {letter: _bare(text) for letter, text in OPTION.findall(row.question)}
    letter = [answer.strip() in options for answer in row.answers]
    meant = [options.get(answer.strip(), own) for answer, own in zip(row.answers, said, strict=True)]

    def equal(one: int, two: int) -> bool:
        if one == two or not said[one].strip() or not said[two].strip():
            return False
        if letter[one] != letter[two]:
            return said[two] in meant[one] if letter[one] else said[one] in meant[two]
        return said[one] == said[two]

    places = range(len(said))
    same = np.array([[equal(one, two) for two in places] for one in places], dtype=np.int64)
    replies = [_bare(text) for text in row.texts] or [""] * len(row.workers)
    stated = [[bool(own.strip()) and own in reply for reply in replies] for own in meant]
    return same, np.array(stated, dtype=np.bool_)


def _bare(text: str) -> str:
    """Its words and numbers alone, with a space around each."""
    return " " + " ".join(WORD.findall(re.sub(r"(?<=\d),(?=\d{3})", "", text.lower()))) + " "


def answer_form(answer: str, question: str) -> list[int]:
    number = number_of(answer)
    text = answer.strip()
    if number is not None:
        kind = "integer" if number == int(number) else "decimal"
    elif len(text) == 1 and text.isalpha():
        kind = "letter"
    elif re.match(r"[\[({'\"]|True$|False$|None$", text):
        kind = "literal"
    elif re.search(r"[\\^*/=]", text):
        kind = "formula"
    else:
        kind = "word" if re.fullmatch(r"[A-Za-z]+", text) else "text"
    size = 0 if number is None else min(31, 1 + int(3 * math.log10(1 + abs(number))))
    found = 0
    if number is not None:
        shown = f"{number:.10g}"
        found = len(re.findall(rf"(?<![\d.]){re.escape(shown)}(?![\d])", question.replace(",", "")))
    elif text:
        found = question.count(text)
    point = re.search(r"\.(\d+)", text)
    return [
        KINDS.index(kind),
        _scale(len(text)),
        size,
        int(number is not None and number < 0),
        int(number in (0, 1)),
        int(number is not None and number != 0 and number % 10 == 0),
        int(found > 0),
        min(found, 31),
        min(31, len(point[1])) if point else 0,
    ]


@functools.lru_cache(maxsize=4096)
def question_form(question: str) -> Bytes:
    numbers = [float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", question)]
    words = question.split()
    lowered = question.lower()
    counted = [
        _scale(len(question)),
        min(31, len(numbers)),
        min(31, int(3 * math.log10(1 + max(numbers, default=0)))),
        _scale(len(words)),
        min(31, question.count("\n")),
        min(31, sum(question.count(sign) for sign in "\\$^=")),
        len(re.findall(r"^\(?[A-Z][).]", question, re.MULTILINE)) if OPTIONS.search(question) else 0,
        min(31, sum(word[0].isupper() for word in words)),
        min(31, round(2 * len(question) / max(1, len(words)))),
    ]
    marked = [min(31, len(re.findall(marker, lowered))) for marker in MARKERS]
    return np.array([*counted, *marked], dtype=np.uint8)


def _scale(count: int) -> int:
    """A length as one of 32 steps, each a fifth longer or so than the one before."""
    return min(31, int(3 * math.log2(1 + count)))
