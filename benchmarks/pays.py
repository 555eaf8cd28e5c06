"""What a learned policy saves or gains on recorded answers of real models.

    python benchmarks/pays.py --data FOLDER --work FOLDER [--sections roles-1,frontier]

Each section is computed once and kept in the work folder, with the gradings and every question's outcome; a run that
was cut goes on with the sections that are missing. Then the page, the figures and the outcomes are written.

Equal cost means: each method's front, its settings chosen on the training folds, interpolated at that cost, question by
question. Equality of answers never uses the right answer. Nothing here chooses anything by a test question. The page is
docs/results/pays.md, which `pays_page.py` writes.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dirigent.evals.prove import voted
from dirigent.learn.deals import DealtTable, Ints, Judged, deal, judged
from dirigent.learn.orders import replay
from dirigent.learn.policy import novelty
from dirigent.learn.policy_fit import (
    MARGIN,
    Z_ONE_SIDED,
    CrossFitted,
    Fit,
    PolicySettings,
    best_single,
    familiarity,
    folds_of,
    plain_plan,
    plain_vote,
    replayed,
    single_cost,
)
from dirigent.learn.selector import QUESTION, Floats
from dirigent.learn.table import Answer, Table
from dirigent.learn.table_import import import_files, read_prices
from dirigent.tasks.answer_forms import normal_form

sys.path.insert(0, str(Path(__file__).parent))
from pays_page import difference, write

RESULTS = Path(__file__).parent.parent / "docs" / "results"
COSTS = (176, 260, 460, 640, 900, 1160)
SEEDS = (1, 2, 3)
FAMILIES = ("gsm8k", "math", "bbh", "crux")
WITHOUT = "o1-mini-2024-09-12"
"""The tenth frontier model: so much better than the rest that nothing is left to combine."""
SHIFT_LABELS = 500
PLAIN_CALLS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7)
"""What the plain plans may cost that a family left out is compared with, in calls of the best single worker."""
CURVE = (25, 50, 100, 300, 1000)
AGREEMENT = (
    *("for it*", "best against it*", "lead", "share*", "answers", "workers for it", "alone among samples"),
    *("answers of its kind", "kinds", "against it in the question", "near it", "same words", "stated by others"),
    *("prior for it", "prior against it"),
)
PATTERNS = ("c", "t", "d", "ct", "tc", "cct", "ctt", "tct", "ctct", "tctc", "ttcc", "cctt", "ccct", "cccc", "tttt",
            "tctctc", "ctctct", "ctctctct", "tctctctc", "ccctttct", "dctct", "dct", "dctctctc")  # fmt: skip
"""Orders of the plain plans that ask until two or three answers agree."""

Section = dict[str, Any]
Curve = tuple[Floats, Floats]
"""Right answers and costs [settings, questions]."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of recorded answers, with its README")
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps gradings and finished sections")
    parser.add_argument("--sections", default="", help="only these, by commas; default: all that are missing")
    parser.add_argument("--out", type=Path, default=RESULTS / "pays.json")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    study = Study(options.data, options.work)
    wanted = options.sections.split(",") if options.sections else list(study.sections)
    for name in wanted:
        file = options.work / f"{name}.json"
        if file.is_file():
            continue
        began = time.monotonic()
        found = study.sections[name]()
        file.write_text(json.dumps(found | {"seconds": round(time.monotonic() - began)}))
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    write(options.work, options.out, list(study.sections), seeds=SEEDS, costs=COSTS, curve=CURVE)


class Study:
    """The sections by name, and the tables they share."""

    def __init__(self, data: Path, work: Path) -> None:
        self.data, self.work = data, work
        self._dealt: dict[str, DealtTable] = {}
        self.sections: dict[str, Callable[[], Section]] = {
            **{f"roles-{seed}": lambda seed=seed: self.roles(seed) for seed in SEEDS},
            "split": self.split,
            "frontier": lambda: self.recorded("frontier", without=(WITHOUT,)),
            "gsm8k": lambda: self.recorded("gsm8k"),
            "gsm8k-nine": lambda: self.recorded("gsm8k", without=(WITHOUT,)),
            "mmlu-pro": lambda: self.recorded("mmlu-pro"),
            "math-l5": lambda: self.recorded("math-l5"),
            "cruxeval": lambda: self.recorded("cruxeval"),
            "llmrouter": lambda: self.recorded("llmrouter"),
            "routerarena": lambda: self.recorded("routerarena"),
            "mbpp": self.mbpp,
            "curve-300": lambda: self.curve(300),
            "without-bbh": lambda: self.without("bbh"),
            "without-crux": lambda: self.without("crux"),
            "no-agreement": lambda: self.ablation(blind=AGREEMENT),
            "no-text": lambda: self.ablation(blind=(*QUESTION, "prior*"), coarse=1, fine=1),
            "plurality": lambda: self.ablation(plurality=True),
            "label-free": self.label_free,
            **{f"curve-{n}": lambda n=n: self.curve(n) for n in CURVE if n != 300},
            "shift-worker": self.shift_of_worker,
            "shift-gsm8k": lambda: self.shift_of_kind("gsm8k"),
            "shift-math": lambda: self.shift_of_kind("math"),
        }

    # ---- tables ----

    def table(self, name: str) -> Table:
        """The imported table; kept in the work folder."""
        folder = self.work / "tables" / name
        if not (folder / "table.json").is_file():
            files = {
                "roles": ["roles_qwen15b"],
                "frontier": ["recorded_zeroeval_gsm8k", "recorded_zeroeval_math_l5", "recorded_zeroeval_cruxeval_o"],
                "gsm8k": ["recorded_zeroeval_gsm8k"],
                "math-l5": ["recorded_zeroeval_math_l5"],
                "cruxeval": ["recorded_zeroeval_cruxeval_o"],
                "mmlu-pro": ["recorded_mmlu_pro"],
                "llmrouter": ["scores_llmrouter_train"],
                "routerarena": ["recorded_routerarena"],
            }[name]
            questions = [*sorted(self.data.glob("questions_*")), *sorted(self.data.glob("recorded_*crux*"))]
            found = asyncio.run(
                import_files(
                    [self.data / f"{file}.jsonl.gz" for file in files],
                    questions=questions if name == "roles" else (),
                    prices=read_prices(self.data / "prices_2024.json"),
                    cache=self.work / "gradings.json",
                )
            )
            found.save(folder)
        return Table.load(folder)

    def dealt(self, name: str, *, without: Sequence[str] = (), kind: str = "") -> DealtTable:
        key = f"{name} {without} {kind}"
        if key not in self._dealt:
            table = self.table(name)
            if kind:
                kept = {q.id for q in table.questions if q.kind == kind}
                answers = tuple(a for a in table.answers if a.question in kept)
                table = Table(table.workers, tuple(q for q in table.questions if q.id in kept), answers, table.unit)
            names = [w.name for w in table.workers if not w.reads and w.name not in without]
            if kind == "mbpp":
                names = ["direct", "think"]
            self._dealt[key] = deal(table, where=name, workers=names)
        return self._dealt[key]

    # ---- one model in roles ----

    def roles(self, seed: int) -> Section:
        table = self.dealt("roles")
        asked = np.array([part == "first" for part in table.parts])
        crossed = CrossFitted(table, folds_of(table.texts, 5, seed), PolicySettings(seed=seed), _say)
        learned = crossed.outcomes(asked)
        crossed.settings = PolicySettings(seed=seed, coarse=1, fine=1)
        one = crossed.outcomes(asked)
        fixed, votes = _fixed_fronts(table, crossed.folds, asked)
        chooses = _selector_against_plurality(table, crossed, asked)
        ids = [id for id, one_ in zip(table.ids, asked, strict=True) if one_]
        curves = {
            "learned": (learned.right[:, asked], learned.cost[:, asked]),
            "one order": (one.right[:, asked], one.cost[:, asked]),
            "fixed": fixed,
            "vote": votes,
        }
        return {
            "ids": ids,
            "at": {name: {str(x): _at(curve, x).round(4).tolist() for x in COSTS} for name, curve in curves.items()},
            "front": {name: [curve[0].mean(1).tolist(), curve[1].mean(1).tolist()] for name, curve in curves.items()},
            "single": float(learned.single_right[asked].mean()),
            "single_cost": float(learned.single_cost[asked].mean()),
            "selector": chooses,
        }

    def split(self) -> Section:
        """Fitted on training questions, asked on test questions, as the data's README defines them."""
        table = self.dealt("roles")
        test = _tests(table)
        return self._held_out(table, np.flatnonzero(~test), np.flatnonzero(test), seed=1)

    def curve(self, count: int) -> Section:
        """Fitted on so many graded questions, asked on all others of the first part; two draws."""
        table = self.dealt("roles")
        found = []
        for seed in (1, 2):
            drawn = np.random.default_rng(seed).permutation(len(table))[:count]
            rest = np.array([i for i in range(len(table)) if table.parts[i] == "first" and i not in set(drawn)])
            found.append(self._held_out(table, np.sort(drawn), rest, seed=seed))
        return {"draws": found}

    def _held_out(self, table: DealtTable, train: Ints, test: Ints, *, seed: int) -> Section:
        own, other = table.some(train), table.some(test)
        crossed = CrossFitted(own, folds_of(own.texts, 5, seed), PolicySettings(seed=seed), _say)
        whole = crossed.whole()
        learned = _asked(other, whole)
        fixed = _chosen_fixed(own, other, PolicySettings().prices)
        best = best_single(own, np.arange(len(own)))
        votes = _votes(other, best)
        curves = {"learned": learned, "fixed": fixed, "vote": votes}
        groups = np.zeros(len(other), dtype=np.int64) + np.arange(len(other))
        return {
            "train": len(own),
            "test": len(other),
            "rows": {
                str(x): {
                    **{name: float(_at(curve, x).mean()) for name, curve in curves.items()},
                    "over fixed": difference(_at(learned, x) - _at(fixed, x), groups),
                    "over vote": difference(_at(learned, x) - _at(votes, x), groups),
                }
                for x in COSTS
            },
        }

    def without(self, family: str) -> Section:
        """A family that nothing was learned from: against the plain fixed plan, at that plan's cost."""
        table = self.dealt("roles")
        new = np.array([kind.startswith(family) for kind in table.kinds])
        first = np.array([part == "first" for part in table.parts])
        own, other = table.some(np.flatnonzero(~new)), table.some(np.flatnonzero(new & first))
        here, strange = self._served(own, other)
        plans = {plain_vote(own, calls * _mean_cost(own)): None for calls in PLAIN_CALLS}
        rows = []
        for plan in plans:
            plain_right, plain_cost = voted(other, plan)
            same_cost = _at(here, float(plain_cost.mean()))
            rows.append(
                {
                    "plan": [own.workers[w] for w in plan],
                    "cost": float(plain_cost.mean()),
                    "plain": float(plain_right.mean()),
                    "policy": float(same_cost.mean()),
                    "difference": difference(same_cost - plain_right, np.arange(len(other))),
                }
            )
        return {"questions": len(other), "novel": float(strange.mean()), "rows": rows}

    def shift_of_worker(self) -> Section:
        """The best role silently answers other questions than it was asked; then the policy is learned anew.

        Of the requests a tenth is explored: every call that the table holds is made, and its question is graded. After
        500 labels a worker that is right less often than expected, by three standard errors, is left out, and the
        policy is learned from the old answers of the others and the new answers.
        """
        before = self.dealt("roles")
        best = before.workers[best_single(before, np.arange(len(before)))]
        table = _only(self.table("roles"), before.ids, before.workers)
        broken = deal(_at_chance(table, best), where="roles", workers=before.workers)
        assert broken.ids == before.ids
        test, labelled, known = _split_for_shift(before)
        old = self._learned(before.some(known))
        expected = before.hashed[labelled].astype(np.float64) @ old.selector.words
        out = []
        for w, name in enumerate(before.workers):
            short = broken.single[labelled, w] - expected[:, w]
            if short.mean() < -3 * short.std() / len(short) ** 0.5:
                out.append(name)
        others = [name for name in before.workers if name not in out]
        narrow = deal(_only(table, before.ids, others), where="roles", workers=others)
        assert narrow.ids == before.ids
        now, train = broken.some(test), np.sort(np.concatenate([labelled, known]))
        # Were no worker left out, its new answers would be known for the labelled questions only.
        anew = narrow.some(train) if out else broken.some(labelled)
        rows = {
            "before the shift": _asked(before.some(test), old),
            "after it, the old policy": _asked(now, old),
            "after 500 labels": _asked(narrow.some(test) if out else now, self._learned(anew)),
            "learned anew from everything": _asked(now, self._learned(broken.some(train))),
        }
        shown = {name: _utilities(curve, _mean_cost(before)) for name, curve in rows.items()}
        return {"worker": best, "left out": out, "questions": len(test), "rows": shown}

    def shift_of_kind(self, family: str) -> Section:
        """Questions of a new kind come; 500 of them are explored and graded, and the policy is learned anew."""
        table = self.dealt("roles")
        new = np.array([kind.startswith(family) for kind in table.kinds])
        test, labelled, known = _split_for_shift(table, new)
        whole = np.flatnonzero(~_tests(table))
        now = table.some(test)
        rows = {}
        for name, questions in (
            ("after it, the old policy", known),
            ("after 500 labels", np.concatenate([known, labelled])),
            ("learned anew from everything", whole),
        ):
            own = table.some(np.sort(questions))
            rows[name] = self._served(own, now)[0]
        shown = {name: _utilities(curve, _mean_cost(table)) for name, curve in rows.items()}
        return {"questions": len(test), "rows": shown}

    def _learned(self, table: DealtTable) -> Fit:
        return CrossFitted(table, folds_of(table.texts, 5, 1), PolicySettings(), _say).whole()

    def _served(self, own: DealtTable, other: DealtTable) -> tuple[Curve, np.ndarray[Any, Any]]:
        """What a policy of its own questions makes of others, and which it finds novel: these get the plain plan."""
        crossed = CrossFitted(own, folds_of(own.texts, 5, 1), PolicySettings(), _say)
        fit = crossed.whole()
        points = [float(one.cost.mean()) for one in replayed(own, crossed.judged_but(-1), fit)]
        familiar, above = familiarity(own, fit.centres, PolicySettings())
        strange = (novelty(other.hashed, familiar, fit.centres) > np.array(above)).any(1)
        right, cost = _asked(other, fit)
        for p, point in enumerate(points):
            plain_right, plain_cost = voted(other, plain_plan(own, point))
            right[p] = np.where(strange, plain_right, right[p])
            cost[p] = np.where(strange, plain_cost, cost[p])
        return (right, cost), strange

    def mbpp(self) -> Section:
        table = self.dealt("roles", kind="mbpp")
        crossed = CrossFitted(table, folds_of(table.texts, 5, 1), PolicySettings(), _say)
        found = crossed.outcomes()
        return {
            "at 320": float(_at((found.right, found.cost), 320).mean()),
            "interval": difference(_at((found.right, found.cost), 320), np.arange(len(table))),
            "front": [found.right.mean(1).tolist(), found.cost.mean(1).tolist()],
            "questions": len(table),
        }

    def ablation(self, **changes: Any) -> Section:
        table = self.dealt("roles")
        asked = np.array([part == "first" for part in table.parts])
        settings = msgspec.structs.replace(PolicySettings(), **changes)
        found = CrossFitted(table, folds_of(table.texts, 5, 1), settings, _say).outcomes(asked)
        curve = (found.right[:, asked], found.cost[:, asked])
        return {"at": {str(x): float(_at(curve, x).mean()) for x in COSTS}}

    def label_free(self) -> Section:
        """Learned from agreement in place of grades: an answer is as right as the share of samples that give it."""
        table = self.dealt("roles")
        guessed = deal(_by_agreement(self.table("roles")), where="roles", workers=table.workers)
        assert guessed.ids == table.ids
        asked = np.array([part == "first" for part in table.parts])
        folds = folds_of(table.texts, 5, 1)
        crossed = CrossFitted(guessed, folds, PolicySettings(), _say)
        curve = (
            np.zeros((len(PolicySettings().prices), len(table))),
            np.zeros((len(PolicySettings().prices), len(table))),
        )
        for fold in range(5):
            own = np.flatnonzero(folds == fold)
            fit = crossed.fit_but(fold)
            curve[0][:, own], curve[1][:, own] = _asked(table.some(own), fit)
        part = (curve[0][:, asked], curve[1][:, asked])
        return {"at": {str(x): float(_at(part, x).mean()) for x in COSTS}}

    # ---- recorded models ----

    def recorded(self, name: str, *, without: Sequence[str] = ()) -> Section:
        table = self.dealt(name, without=without)
        folds = folds_of(table.texts, 5, 1)
        found = CrossFitted(table, folds, PolicySettings(), _say).outcomes()
        share = found.cost / found.single_cost.mean()
        diff = found.right - found.single_right
        points = {
            "same": _operating(diff, share, folds, _supported),
            "level": _operating(diff, share, folds, lambda d, c: _cheapest(d, c, 0.0)),
            "+1": _operating(diff, share, folds, lambda d, c: _cheapest(d, c, 0.01)),
            "+2": _operating(diff, share, folds, lambda d, c: _cheapest(d, c, 0.02)),
            "most": _operating(diff, share, folds, lambda d, c: int(d.mean(1).argmax())),
        }
        return {
            "questions": len(table),
            "workers": len(table.workers),
            "best single": float(found.single_right.mean()),
            "single cost": float(found.single_cost.mean()),
            "oracle": float(table.single.max(1).mean()),
            "points": points,
            "front": [diff.mean(1).tolist(), share.mean(1).tolist()],
            "ids": list(table.ids),
            "right": found.right.round(3).tolist(),
        }


def is_test(id: str, kind: str) -> bool:
    """As the data's README defines the test of everything learned from the roles table."""
    if kind in ("gsm8k_test", "math500"):
        return True
    return not kind.endswith("_train") and int(hashlib.sha1(id.encode()).hexdigest(), 16) % 6 in (0, 3, 5)


# ---- fronts -------------------------------------------------------------------------------------------------


def _at(curve: Curve, cost: float) -> Floats:
    """Each question's outcome at this mean cost: a mix of the two settings whose costs lie around it."""
    right, costs = curve
    mean = costs.mean(1)
    order = np.argsort(mean, kind="stable")
    mean, right = mean[order], right[order]
    if cost <= mean[0]:
        return np.asarray(right[0] * (cost / mean[0]))  # so little pays for a part of the questions only
    if cost >= mean[-1]:
        return np.asarray(right[-1])
    above = int(np.searchsorted(mean, cost))
    share = (cost - mean[above - 1]) / (mean[above] - mean[above - 1])
    return np.asarray((1 - share) * right[above - 1] + share * right[above])


def _asked(table: DealtTable, fit: Fit) -> Curve:
    found = replayed(table, judged(table, fit.selector), fit)
    return np.stack([one.right for one in found]), np.stack([one.cost for one in found])


def _utilities(curve: Curve, unit: float) -> list[float]:
    """The share of right answers less the price of the cost, for each price."""
    prices = np.array(PolicySettings().prices)
    return (curve[0].mean(1) - prices / unit * curve[1].mean(1)).tolist()  # type: ignore[no-any-return]


def _fixed_plans(table: DealtTable) -> list[Curve]:
    """Every plain plan's outcome: votes of any calls, and orders that stop when two or three answers agree."""
    plans: list[tuple[Floats, Floats]] = []
    for state in table.states[1:].tolist():
        order = tuple(w for w, count in enumerate(state) for _ in range(count))
        plans.append(voted(table, order))
    letters = {name[0]: w for w, name in enumerate(table.workers)}
    everyone = np.zeros(len(table), dtype=np.int64)
    by_count = Judged(table.most.astype(np.float32), table.vote_ties.astype(np.float32))
    for pattern in PATTERNS:
        if not set(pattern) <= set(letters):
            continue
        order = tuple(letters[letter] for letter in pattern)
        if any(order.count(w) > table.samples[w] for w in order):
            continue
        for agree in (2, 3):
            worth = replay(table, by_count, [order], everyone, [float(agree)])
            plans.append((worth.right, worth.cost))
    return [(np.asarray(right), np.asarray(cost)) for right, cost in plans]


def _chosen_fixed(train: DealtTable, test: DealtTable, prices: Sequence[float]) -> Curve:
    """The plain plan that is best on the training questions, for each price."""
    seen, new = _fixed_plans(train), _fixed_plans(test)
    unit = _mean_cost(train)
    right, cost = [], []
    for price in prices:
        best = max(range(len(seen)), key=lambda p: seen[p][0].mean() - price / unit * seen[p][1].mean())
        right.append(new[best][0])
        cost.append(new[best][1])
    return np.stack(right), np.stack(cost)


def _fixed_fronts(table: DealtTable, folds: Ints, asked: np.ndarray[Any, Any]) -> tuple[Curve, Curve]:
    prices = PolicySettings().prices
    fixed = (np.zeros((len(prices), len(table))), np.zeros((len(prices), len(table))))
    votes: Curve | None = None
    for fold in np.unique(folds):
        own, rest = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        fixed[0][:, own], fixed[1][:, own] = _chosen_fixed(table.some(rest), table.some(own), prices)
        found = _votes(table.some(own), best_single(table, rest))
        votes = votes or (np.zeros((len(found[0]), len(table))), np.zeros((len(found[0]), len(table))))
        votes[0][:, own], votes[1][:, own] = found
    assert votes is not None
    return (fixed[0][:, asked], fixed[1][:, asked]), (votes[0][:, asked], votes[1][:, asked])


def _votes(table: DealtTable, best: int) -> Curve:
    """Votes of one to all samples of the best worker."""
    found = [voted(table, (best,) * count) for count in range(1, table.samples[best] + 1)]
    return np.stack([right for right, _ in found]), np.stack([cost for _, cost in found])


def _selector_against_plurality(table: DealtTable, crossed: CrossFitted, asked: np.ndarray[Any, Any]) -> Section:
    """All answers of three thinks and three programs: the selector's pick against the most common answer."""
    state = next(s for s, one in enumerate(table.states.tolist()) if one == [0, 3, 3])
    pick = np.zeros(len(table))
    for fold in crossed.numbers:
        own = np.flatnonzero(crossed.folds == fold)
        pick[own] = crossed.judged_fold(fold).right[:, :, state].mean(1)
    plural = table.vote_ties[:, :, state].mean(1)
    return {
        "plurality": float(table.vote[:, :, state].mean(1)[asked].mean()),
        "ties to programs": float(plural[asked].mean()),
        "selector": float(pick[asked].mean()),
        "difference": (pick - plural)[asked].round(4).tolist(),
    }


def _tests(table: DealtTable) -> np.ndarray[Any, Any]:
    return np.array([is_test(id, kind) for id, kind in zip(table.ids, table.kinds, strict=True)])


def _split_for_shift(table: DealtTable, new: np.ndarray[Any, Any] | None = None) -> tuple[Ints, Ints, Ints]:
    """Test questions, 500 to be labelled after the shift, and those known before; of a new kind none was known."""
    test = _tests(table)
    coming = ~test if new is None else ~test & new
    labelled = np.sort(np.random.default_rng(1).permutation(np.flatnonzero(coming))[:SHIFT_LABELS])
    known = ~test if new is None else ~test & ~new
    known[labelled] = False
    return np.flatnonzero(test if new is None else test & new), labelled, np.flatnonzero(known)


def _only(table: Table, ids: Sequence[str], workers: Sequence[str]) -> Table:
    kept = set(ids)
    return msgspec.structs.replace(
        table,
        questions=tuple(q for q in table.questions if q.id in kept),
        answers=tuple(a for a in table.answers if a.question in kept and a.worker in workers),
    )


def _at_chance(table: Table, worker: str) -> Table:
    """The table with this worker's answers to each question replaced by those that it gave to another one."""
    own = {(a.question, a.k): a for a in table.answers if a.worker == worker}
    ids = [question.id for question in table.questions]
    other = dict(zip(ids, np.random.default_rng(1).permutation(ids).tolist(), strict=True))
    forms: dict[str, dict[str, tuple[int, float]]] = {id: {} for id in ids}
    for a in table.answers:
        if a.worker != worker and a.same >= 0:
            forms[a.question][normal_form(a.final, grader="math")] = (a.same, a.right or 0.0)

    def moved(answer: Answer) -> Answer:
        given = own.get((other[answer.question], answer.k))
        if answer.worker != worker or given is None:
            return answer
        known, form = forms[answer.question], normal_form(given.final, grader="math")
        if given.same < 0 or not given.final:
            same, right = -1, 0.0
        else:
            same, right = known.setdefault(form, (1000 + len(known), 0.0))
        change = {"text": given.text, "final": given.final, "ended": given.ended, "failed": given.failed}
        return msgspec.structs.replace(answer, same=same, right=right, **change)

    return msgspec.structs.replace(table, answers=tuple(map(moved, table.answers)))


def _by_agreement(table: Table) -> Table:
    """The table with every grade replaced by the share of the question's samples that give the same answer."""
    shares: dict[tuple[str, int], int] = {}
    totals: dict[str, int] = {}
    for answer in table.answers:
        if answer.same >= 0:
            shares[answer.question, answer.same] = shares.get((answer.question, answer.same), 0) + 1
        totals[answer.question] = totals.get(answer.question, 0) + 1

    def guessed(answer: Answer) -> Answer:
        right = shares[answer.question, answer.same] / totals[answer.question] if answer.same >= 0 else 0.0
        return msgspec.structs.replace(answer, right=right, estimated=True)

    return msgspec.structs.replace(table, answers=tuple(map(guessed, table.answers)))


def _mean_cost(table: DealtTable) -> float:
    return float(single_cost(table, best_single(table, np.arange(len(table)))).mean())


def _supported(diff: Floats, share: Floats) -> int | None:
    """The cheapest setting that loses less than a point, one-sided 95%, as `dirigent learn` wants; None: one call."""
    bound = diff.mean(1) - Z_ONE_SIDED * diff.std(1, ddof=1) / diff.shape[1] ** 0.5
    enough = [p for p in range(len(diff)) if bound[p] > -MARGIN and share[p] < 1]
    return min(enough, key=lambda p: share[p]) if enough else None


def _cheapest(diff: Floats, share: Floats, least: float) -> int:
    """The cheapest setting that gains so much; else the one that gains most."""
    mean = diff.mean(1)
    enough = [p for p in range(len(diff)) if mean[p] >= least]
    return min(enough, key=lambda p: share[p]) if enough else int(mean.argmax())


def _operating(diff: Floats, share: Floats, folds: Ints, choose: Callable[[Floats, Floats], int | None]) -> Section:
    """Each fold's questions at the price that the other folds' outcomes choose; None is the best single worker."""
    gained, cost = np.zeros(diff.shape[1]), np.ones(diff.shape[1])
    for fold in np.unique(folds):
        own, rest = folds == fold, folds != fold
        p = choose(diff[:, rest], share[:, rest].mean(1))
        if p is not None:
            gained[own], cost[own] = diff[p, own], share[p, own]
    return {"gain": difference(gained, np.arange(len(gained))), "cost": float(cost.mean())}


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    main()
