"""Policy: for a question, whom to ask in which order, when to stop, and whose answer to believe.

A policy is fitted by `policy_fit.py` and served from here. It knows clusters of question texts, and for each cluster
and each price of cost an order of workers and a confidence to stop at. Questions unlike anything it was fitted on get
a plain fixed plan. What it decides is a plan like any other: the workers in order, then the selector.

A policy is a folder: `policy.json`, `policy.npz`, and the selector's `selector.npz`. Earlier versions lie below it in
`versions/`. It is bound to the workers it was fitted on; others take no part.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.learn.selector import Floats, Selector, hashed_words
from dirigent.workers.adapters import folders

FORMAT = 1
PACKAGED = "packaged:"
FILES = ("policy.json", "policy.npz", "selector.npz")

End = Literal["last", "vote", "select"]
Prefer = Literal["cost", "speed"]
Vectors = npt.NDArray[np.float32]

TEXT_SCALE, PRIOR_SCALE = 0.5, 2.0
"""Weights of a question's words, and of what the ridge expects of each worker, where clusters are formed."""


class Decision(msgspec.Struct, frozen=True):
    """One question's plan, and why."""

    order: tuple[str, ...]
    """Workers in the order in which they are asked. Without `until` all are asked at once."""
    end: End
    """`last`: the only call is the answer. `vote` or `select`: a last step chooses among the answers."""
    until: float | None
    """With `select`: stop as soon as the selector is this sure."""
    why: str
    accuracy: float | None
    """The share of right answers among questions of this kind; None if nothing like it was measured."""
    cost: float | None
    """The mean cost of such questions, in the policy's unit."""
    baseline: str
    """The best single worker."""
    baseline_accuracy: float
    baseline_cost: float
    novel: bool = False
    """The question is unlike anything the policy was fitted on."""


class Kind(msgspec.Struct, frozen=True):
    """What to do with one cluster of questions."""

    order: tuple[int, ...]
    until: float
    right: float
    cost: float


class Point(msgspec.Struct, frozen=True):
    """A point of the front: what to do if accuracy has this price, and what that was worth on questions not learned
    from."""

    price: float
    """Right answers that one call of the best single worker must be worth."""
    kinds: tuple[Kind, ...]
    at_once: tuple[Kind, ...]
    """The same without stopping early, for callers who prefer speed."""
    plain: tuple[int, ...]
    """The calls of the best plain vote of no greater cost; for questions unlike any other."""
    accuracy: float
    cost: float
    calls: float
    diff: float
    """Accuracy less that of the best single worker, on the same questions."""
    low: float
    high: float
    """95% interval of the difference."""


class FixedPlan(msgspec.Struct, frozen=True):
    """A vote that asks the same workers about every question, as the table would have answered it."""

    name: str
    accuracy: float
    cost: float
    """Mean of a question."""
    calls: int
    diff: float
    """Accuracy less the best single worker's, on the same questions."""
    low: float
    high: float


class PolicyFacts(msgspec.Struct, frozen=True):
    """What `policy.json` holds."""

    version: int
    unit: str
    workers: tuple[str, ...]
    fingerprints: dict[str, str]
    baseline: str
    baseline_accuracy: float
    baseline_cost: float
    questions: int
    """Graded questions that it was fitted on."""
    labels: int
    """Those graded by a label, and not by an estimate."""
    points: tuple[Point, ...]
    """From the dearest to the cheapest; empty if there was too little to learn from."""
    named: dict[str, int]
    """The points called `same` and `best`, if the evidence confirmed them."""
    why: str
    """What the evidence says of `same`, as a sentence."""
    more_labels: int | None
    """How many more graded questions would show that `same` holds; None if it does, or none would."""
    active: str
    """The operating point in use: `off`, `same`, `best`, `max-cost X` or `price X`."""
    novel_above: tuple[float, float]
    """A question is novel if one of its measures of `novelty` is above."""
    left_out: tuple[str, ...] = ()
    fixed: tuple[FixedPlan, ...] = ()
    """Fixed plans over the same questions, to compare the points with."""
    format: int = FORMAT


class Policy(PolicyFacts, frozen=True):
    """A fitted policy: its facts, and the arrays of `policy.npz`."""

    centres: Vectors = msgspec.field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    """[clusters, dimensions]"""
    familiar: Vectors = msgspec.field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    """[directions, words]: orthonormal directions in which known questions lie."""
    seen: npt.NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    """Marks of the questions it was fitted on, so that no proof is made on them."""
    words: Floats = msgspec.field(default_factory=lambda: np.zeros((0, 0)))
    """The selector's ridge of words; `selector.npz` holds it."""

    @property
    def on(self) -> bool:
        return self.active != "off" and bool(self.points)

    @classmethod
    def load(cls, folder: Path) -> Policy:
        """The policy in the folder; raises ConfigError if it is not whole."""
        file = folder / "policy.json"
        if not file.is_file():
            raise ConfigError(f"{folder} holds no policy (policy.json); `dirigent learn TABLE --out {folder}` fits one")
        try:
            head = msgspec.json.decode(file.read_bytes(), type=PolicyFacts)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{file}: {error}") from None
        if head.format != FORMAT:
            raise ConfigError(f"{file} has format {head.format}; this version reads {FORMAT}: learn again")
        facts = msgspec.structs.asdict(head)
        if not head.points:
            return cls(**facts)
        try:
            arrays = dict(np.load(folder / "policy.npz"))
            words = Selector.load(folder).words
            return cls(
                **facts,
                centres=arrays["centres"].astype(np.float32),
                familiar=arrays["familiar"].astype(np.float32),
                seen=arrays["seen"],
                words=words,
            )
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"{folder} holds a part of a policy only: {error}") from None

    def save(self, folder: Path, selector: Selector | None = None) -> None:
        """Writes the policy, and its selector if given. What was there before becomes an earlier version."""
        _archive(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self.points:
            np.savez_compressed(
                folder / "policy.npz",
                centres=self.centres.astype(np.float16),
                familiar=self.familiar.astype(np.float16),
                seen=self.seen,
            )
        if selector is not None:
            selector.save(folder)
        head = PolicyFacts(**{name: getattr(self, name) for name in PolicyFacts.__struct_fields__})
        beside = folder / "policy.json.part"
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(head), indent=1) + b"\n")
        beside.replace(folder / "policy.json")

    def switched(self, to: str) -> Policy:
        """The same policy at another operating point; raises ConfigError for one that it does not have."""
        if to != "off":
            self.point(to)
        return msgspec.structs.replace(self, active=to, version=self.version + 1)

    def point(self, name: str) -> Point:
        """The point of the front that an operating point names."""
        if not self.points:
            raise ConfigError(f"this policy has no operating points: {self.why}")
        word, _, number = name.partition(" ")
        if word in ("same", "best") and not number:
            if word not in self.named:
                raise ConfigError(f"the evidence does not support the operating point {word!r}: {self.why}")
            return self.points[self.named[word]]
        try:
            value = float(number)
        except ValueError:
            raise ConfigError(
                f"there is no operating point {name!r}; there are: off, same, best, max-cost X, price X"
            ) from None
        if word == "max-cost":
            within = [point for point in self.points if point.cost <= value]
            if not within:
                cheapest = min(point.cost for point in self.points)
                raise ConfigError(f"no point costs at most {value:g} {self.unit} a question; the cheapest {cheapest:g}")
            return max(within, key=lambda point: point.accuracy)
        if word == "price":
            return max(self.points, key=lambda point: point.accuracy - value * point.cost)
        raise ConfigError(f"there is no operating point {name!r}; there are: off, same, best, max-cost X, price X")

    def plan_for(
        self,
        question: str,
        workers: Collection[str],
        *,
        prefer: Prefer = "cost",
        most_calls: int | None = None,
        at: str = "",
    ) -> Decision:
        """What to do with the question, given the workers that can be asked; `at` names another operating point."""
        name = at or self.active
        if name == "off" or not self.points:
            return self._one_call(workers, self.why)
        point = self.point(name)
        hashed = hashed_words(question)
        if self.novel(hashed):
            return self._plain(point, workers, most_calls)
        place = int(self.kind_of(hashed[None])[0])
        kind = (point.at_once if prefer == "speed" else point.kinds)[place]
        order = tuple(self.workers[i] for i in kind.order if self.workers[i] in workers)[:most_calls]
        if not order:
            return self._one_call(workers, "no worker of the policy's order can be asked")
        missing = sorted({self.workers[i] for i in kind.order} - set(workers))
        why = f"kind {place} of {len(point.kinds)} at {name}: right {kind.right:.0%} of such questions"
        if missing:
            why += f"; without {', '.join(missing)}"
        several = len(order) > 1
        return Decision(
            order=order,
            end="select" if several else "last",
            until=kind.until if several and prefer == "cost" and kind.until < 1 else None,
            why=why,
            accuracy=kind.right,
            cost=kind.cost,
            baseline=self.baseline,
            baseline_accuracy=self.baseline_accuracy,
            baseline_cost=self.baseline_cost,
        )

    def novel(self, hashed: Floats) -> bool:
        """Whether the question's words lie outside what the policy was fitted on."""
        measured = novelty(hashed[None].astype(np.float32), self.familiar, self.centres)[0]
        return bool((measured > np.array(self.novel_above)).any())

    def kind_of(self, hashed: Floats) -> npt.NDArray[np.int64]:
        """The cluster of each row of hashed words."""
        points = cluster_points(hashed.astype(np.float32), (hashed @ self.words).astype(np.float32))
        squares = (points**2).sum(1)[:, None] - 2 * points @ self.centres.T + (self.centres**2).sum(1)
        return np.asarray(squares.argmin(1))

    def _one_call(self, workers: Collection[str], why: str) -> Decision:
        ranked = [self.baseline, *(name for name in self.workers if name != self.baseline)]
        known = [name for name in ranked if name in workers]
        if not known:
            raise ConfigError(
                f"none of the policy's workers can be asked: {', '.join(self.workers)}; learn again for this pool"
            )
        measured = known[0] == self.baseline
        return Decision(
            order=(known[0],),
            end="last",
            until=None,
            why=why,
            accuracy=self.baseline_accuracy if measured else None,
            cost=self.baseline_cost if measured else None,
            baseline=self.baseline,
            baseline_accuracy=self.baseline_accuracy,
            baseline_cost=self.baseline_cost,
        )

    def _plain(self, point: Point, workers: Collection[str], most_calls: int | None) -> Decision:
        order = tuple(self.workers[i] for i in point.plain if self.workers[i] in workers)[:most_calls]
        why = "unlike the questions that the policy was fitted on: a plain fixed plan"
        one = self._one_call(workers, why)
        if len(order) < 2:
            return msgspec.structs.replace(one, novel=True, accuracy=None, cost=None)
        return msgspec.structs.replace(one, order=order, end="vote", novel=True, accuracy=None, cost=None)


def policy_folder(name: str, base: Path) -> Path:
    """The folder that a profile's `policy` names: `packaged:NAME` is one that ships, others are below `base`."""
    if not name.startswith(PACKAGED):
        return base / Path(name).expanduser()
    policies = packaged()
    wanted = name.removeprefix(PACKAGED)
    if wanted not in policies:
        there = f"there are: {', '.join(policies)}" if policies else "run  pip install dirigent-weights"
        raise ConfigError(f"no packaged policy has the name {wanted!r}; {there}")
    return policies[wanted]


def packaged() -> dict[str, Path]:
    """The installed policies by name; see the group `dirigent.weights` in `plugins.py`."""
    return {file.parent.name: file.parent for one in folders() for file in sorted(one.glob("policies/*/policy.json"))}


def roll_back(folder: Path) -> Policy:
    """Restores the version before the present one and returns it."""
    versions = _versions(folder)
    if not versions:
        raise ConfigError(f"{folder} holds no earlier version to go back to")
    last = versions[-1]
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        if (last / name).exists():
            shutil.copy2(last / name, folder / name)
    shutil.rmtree(last)
    return Policy.load(folder)


def next_version(folder: Path) -> int:
    """The number of the version that would be saved next."""
    return Policy.load(folder).version + 1 if (folder / "policy.json").is_file() else 1


def cluster_points(hashed: Vectors, prior: Vectors) -> Vectors:
    """The vectors in which clusters are formed: a question's words, and what is expected of each worker."""
    return np.concatenate([hashed[:, :-1] * TEXT_SCALE, prior * PRIOR_SCALE], axis=1).astype(np.float32)


def novelty(hashed: Vectors, familiar: Vectors, centres: Vectors) -> Vectors:
    """Two measures of how new each row of words is, from 0 to 1 [rows, 2].

    The share of its vector that lies outside the familiar directions, and its distance in angle from the nearest
    cluster. Each finds questions that the other misses: a new subject, and known words in a new form.
    """
    words = hashed[:, :-1] / np.maximum(np.linalg.norm(hashed[:, :-1], axis=1, keepdims=True), 1e-6)
    middle = centres[:, : words.shape[1]]
    middle = middle / np.maximum(np.linalg.norm(middle, axis=1, keepdims=True), 1e-6)
    outside = 1 - ((words @ familiar.T) ** 2).sum(1)
    return np.stack([outside, 1 - (words @ middle.T).max(1)], axis=1).astype(np.float32)


def as_stored(values: npt.NDArray[np.floating]) -> Vectors:
    """The values as they are after saving and loading, so that a policy decides the same before and after."""
    return np.ascontiguousarray(values.astype(np.float16).astype(np.float32))


def mark_of(text: str) -> int:
    """A mark of a question's text, equal for texts that differ in spaces and case only."""
    return int.from_bytes(hashlib.sha1(" ".join(text.split()).casefold().encode()).digest()[:8], "big")


def marks_of(texts: Sequence[str]) -> npt.NDArray[np.uint64]:
    return np.array(sorted({mark_of(text) for text in texts}), dtype=np.uint64)


def _archive(folder: Path) -> None:
    if not (folder / "policy.json").is_file():
        return
    versions = _versions(folder)
    number = int(versions[-1].name) + 1 if versions else 1
    into = folder / "versions" / f"{number:04d}"
    into.mkdir(parents=True)
    for name in FILES:
        if (folder / name).exists():
            shutil.copy2(folder / name, into / name)


def _versions(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "versions").glob("[0-9]*") if path.is_dir())
