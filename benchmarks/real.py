"""What the trained conductor is worth on real questions, against every rival, from stored outcomes.

    python benchmarks/real.py --values FOLDER --runs FOLDER [--table FOLDER] [--out docs/results/real.json]

`--values` is what `dirigent.learn.values` wrote. `--runs` holds a folder a run, as `dirigent.learn.run` writes it with
`--outcomes dev,train,test`: `seed-1`, `seed-2`, `seed-3`; and if they were run `warm-start` (`--steps 0`), `imitation`,
`format`, `shuffled`, `without-bbh`, `without-crux`, `without-thinker`, and `follow-up-1` (the policy first). `--table`
is the imported table of roles with second steps; it adds the learned policy (`mini`), self-reflection, repair and a
judge.

Rivals choose their settings on training questions alone, with the selector that training questions see out of fold.
Equal cost means: each method's front over its settings, interpolated at that mean cost, the conductor's prompts and
plans included. Sets count alike. Intervals are 95%, by 1,000 draws of questions within sets, the same draws for every
method, and the interpolation is made anew in each draw. `real_page.py` writes the page.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.evals.record import source_commit
from dirigent.learn.deals import deal, judged
from dirigent.learn.policy_fit import CrossFitted, PolicySettings, folds_of, replayed
from dirigent.learn.saved_conductor import SavedConductor
from dirigent.learn.selector import Floats, hashed_words
from dirigent.learn.table import Answer, Table
from dirigent.learn.table_orders import PRICES as RIVAL_PRICES
from dirigent.learn.table_orders import Grouping, best_plan, searched, utilities, weighted
from dirigent.learn.table_plans import PRICES, PlanValues, RecordedQuestions, TablePlan, front, read_plan, whole_pool
from dirigent.planners.examples import Example
from dirigent.planners.routerdc import fit_routerdc

sys.path.insert(0, str(Path(__file__).parent))
from real_page import Claim, page

RESULTS = Path(__file__).parent.parent / "docs" / "results"
COSTS = (176, 260, 460, 900)
SEEDS = ("seed-1", "seed-2", "seed-3")
DRAWS = 1000
NEIGHBOURS = 40
CLUSTERS = 12

Ints = npt.NDArray[np.int64]


class Curve(msgspec.Struct, frozen=True, eq=False):
    """A method at each of its settings, on the test questions [settings, questions]. NaN: not recorded."""

    right: Floats
    cost: Floats


class Run(msgspec.Struct, frozen=True, eq=False):
    """A trained conductor's outcomes on the test questions."""

    curve: Curve
    cached: Curve
    """The same, where the prompt's part before the question costs nothing."""
    plans: list[list[TablePlan | None]]
    rows: list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "real.json")
    options = parser.parse_args(arguments)
    runs = sorted(folder for folder in options.runs.iterdir() if (folder / "conductor.json").is_file())
    recipes = {folder.name: SavedConductor.load(folder).recipe for folder in runs}
    if options.out.resolve().is_relative_to(RESULTS.resolve()):
        if stand_ins := [name for name, recipe in recipes.items() if recipe == "rehearsal"]:
            raise ConfigError(f"{', '.join(stand_ins)} are rehearsals; write their page elsewhere with --out")
        if missing := [seed for seed in SEEDS if seed not in recipes]:
            raise ConfigError(
                f"{options.runs} lacks {', '.join(missing)}; fewer seeds are no result: use another --out"
            )
    study = Study(options.values, options.runs, options.table)
    found = study.figures() | {"commit": asyncio.run(source_commit()), "recipes": recipes}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    options.out.with_suffix(".md").write_text(page(found, rehearsal="rehearsal" in recipes.values()), encoding="utf-8")
    file = options.out.with_suffix(".outcomes.jsonl.gz")
    with file.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        for name in recipes:
            for row in study.runs[name].rows if name in study.runs else ():
                packed.write(msgspec.json.encode({"run": name, **row}) + b"\n")
    print(f"written to {options.out.with_suffix('.md')}")


class Study:
    """Test questions, the runs' outcomes on them, and every rival's."""

    def __init__(self, values: Path, runs: Path, table: Path | None) -> None:
        self.recorded = RecordedQuestions.load(values, device="cpu")
        self.worth = PlanValues(self.recorded)
        self.folder = runs
        self.test, self.train = self.recorded.places("test"), self.recorded.places("train")
        if not self.test or not self.train:
            raise ConfigError(
                f"{values} has {len(self.test)} test and {len(self.train)} training questions; both count"
            )
        self.kinds = [
            kind for kind in self.recorded.pool.kinds if any(self.recorded.families[q] == kind for q in self.test)
        ]
        self.kind_of = np.array([self.kinds.index(self.recorded.families[q]) for q in self.test])
        self.draws = drawn(self.kind_of, DRAWS)
        whole = [folder for folder in sorted(runs.iterdir()) if (folder / "test.jsonl.gz").is_file()]
        second = [folder for folder in whole if SavedConductor.load(folder).environment == "policy-first"]
        self.runs = {folder.name: self._run(folder / "test.jsonl.gz") for folder in whole if folder not in second}
        self.follow_ups = {folder.name: self._follow_up(folder / "test.jsonl.gz") for folder in second}
        self.seeds = [name for name in SEEDS if name in self.runs]
        if not self.seeds:
            raise ConfigError(
                f"{runs} has no folder {SEEDS[0]} with test.jsonl.gz (learn.run --outcomes dev,train,test)"
            )
        train_kinds = [self.recorded.families[q] for q in self.train]
        # Sets count alike on training questions too, as they do in the figures.
        self.weights = np.array([1 / train_kinds.count(kind) for kind in train_kinds])
        self.search = searched(self.recorded, self.train, self.weights)
        self.by_task = [
            weighted(self.search, self.weights * np.array([kind == own for kind in train_kinds])) for own in self.kinds
        ]
        self.rivals = self._rivals()
        self.second_steps: dict[str, Curve] = {}
        if table is not None:
            self._from_table(Table.load(table), str(table))

    # ---- figures ----

    def figures(self) -> dict[str, Any]:
        methods = {
            "conductor": [self.runs[name].curve for name in self.seeds],
            "conductor, prefix cached": [self.runs[name].cached for name in self.seeds],
            **{name: [self.runs[name].curve] for name in ("warm-start", "imitation") if name in self.runs},
            **{f"policy first, then {name}": [curve] for name, (curve, _) in self.follow_ups.items()},
            **{name: [curve] for name, curve in self.rivals.items()},
        }
        at = {
            name: {str(cost): float(np.mean([reached(c, self.draws[:1], cost)[0] for c in curves])) for cost in COSTS}
            for name, curves in methods.items()
        }
        by_set = {}
        for place, kind in enumerate(self.kinds):
            one = np.where(self.kind_of == place, 1.0, 0.0)[None] / (self.kind_of == place).sum()
            by_set[kind] = {
                name: {str(cost): float(np.mean([reached(c, one, cost)[0] for c in curves])) for cost in COSTS}
                for name, curves in methods.items()
            }
        return {
            "questions": {kind: int((self.kind_of == place).sum()) for place, kind in enumerate(self.kinds)},
            "seeds": {name: self._seed(name) for name in self.seeds},
            "at": at,
            "by_set": by_set,
            "claims": self._claims(),
            "steps": self._steps(),
            "plans": self._examples(),
            "missing": [name for name in EXPECTED if name not in self.runs and name not in self.follow_ups],
            "second_steps": sorted(self.second_steps),
        }

    def _claims(self) -> list[Claim]:
        ours = [self.runs[name].curve for name in self.seeds]
        single = self.rivals["best single role"]
        claims = [
            self._against(
                "best single role at its own cost",
                ours,
                single,
                _own_cost(single, self.draws[0]),
                must=5,
                goal=7,
                above_zero=True,
            )
        ]
        claims += [
            self._against("vote of the best role", ours, self.rivals["vote of the best role"], cost, must=6, goal=8)
            for cost in (260, 460)
        ]
        for name, must, goal, above in (
            ("one order, select and stop", 1, 2, True),
            ("told the task, select and stop", -1, 1, False),
            ("12 clusters of words, select and stop", None, None, False),
            ("kNN over plans", 0, None, False),
            ("RouterDC over plans", 0, None, False),
            ("mini", None, None, False),
        ):
            if name in self.rivals:
                claims += [
                    self._against(name, ours, self.rivals[name], cost, must=must, goal=goal, above_zero=above)
                    for cost in COSTS
                ]
        if "warm-start" in self.runs:
            claims += [
                self._against("warm start", ours, self.runs["warm-start"].curve, cost, must=6, goal=None)
                for cost in COSTS
            ]
        for name, curve in self.second_steps.items():
            claims.append(self._against(name, ours, curve, None, must=0, goal=None))
        for name, (curve, alone) in self.follow_ups.items():
            claims += [
                self._against(
                    f"{name}: policy first, then the conductor, against the policy alone",
                    [curve],
                    alone,
                    cost,
                    must=0,
                    goal=1 if cost == 900 else None,
                )
                for cost in COSTS
            ]
        for name in self.seeds:
            claims.append(self._shuffled(name))
        for name in ("format", "shuffled"):
            if name in self.runs and "warm-start" in self.runs:
                gain = [
                    reached(self.runs[name].curve, self.draws, c)
                    - reached(self.runs["warm-start"].curve, self.draws, c)
                    for c in COSTS
                ]
                claims.append(
                    _claim(
                        f"control {name}: gain over the warm start, mean of the four costs",
                        np.mean(gain, axis=0),
                        must=1,
                        goal=None,
                        at_most=True,
                    )
                )
        for kind in ("bbh", "crux"):
            if f"without-{kind}" in self.runs and kind in self.kinds:
                claims.append(self._left_out(kind))
        claims += self._worker_left_out("thinker")
        return claims

    def _against(
        self,
        name: str,
        ours: Sequence[Curve],
        rival: Curve,
        cost: float | None,
        *,
        must: float | None,
        goal: float | None,
        above_zero: bool = False,
    ) -> Claim:
        """The conductor's seeds less a rival at equal cost, on the questions that the rival was recorded on.

        Without a cost: at the rival's own.
        """
        known = ~np.isnan(rival.right).any(0)
        draws = drawn(self.kind_of, DRAWS, among=known) if not known.all() else self.draws
        ours, rival = [_some(curve, known) for curve in ours], _some(rival, known)
        draws = draws[:, known]
        cost = _own_cost(rival, draws[0]) if cost is None else cost
        theirs = reached(rival, draws, cost)
        each = [reached(curve, draws, cost) - theirs for curve in ours]
        found = _claim(f"{name}, at {cost:.0f}", np.mean(each, axis=0), must=must, goal=goal, above_zero=above_zero)
        return msgspec.structs.replace(found, by_seed=tuple(100 * float(one[0]) for one in each))

    def _shuffled(self, name: str) -> Claim:
        """What a seed loses if its plans change places among the questions of one task, over all ways to do so.

        The mean over the costs. A plan that is dealt out keeps the cost of having been written.
        """
        run = self.runs[name]
        tasks = np.array([task_of(self.recorded.ids[q], self.recorded.families[q]) for q in self.test])
        right, cost = run.curve.right.copy(), run.curve.cost.copy()
        for s, plans in enumerate(run.plans):
            own_cost = np.array([row["own_cost"] for row in self._rows_at(run, s)])
            for task in np.unique(tasks):
                places = np.flatnonzero(tasks == task)
                if len(places) < 2:
                    continue
                total_right, total_cost = np.zeros(len(places)), np.zeros(len(places))
                counts: dict[TablePlan | None, int] = {}
                for place in places:
                    counts[plans[place]] = counts.get(plans[place], 0) + 1
                for plan, count in counts.items():
                    found = self._planned([plan] * len(places), [self.test[place] for place in places])
                    total_right += count * found[0]
                    total_cost += count * found[1]
                # Every other question's plan is as likely as any; its own is not among them.
                others = len(places) - 1
                right[s, places] = (total_right - run.curve.right[s, places]) / others
                cost[s, places] = (
                    own_cost[places] + (total_cost - (run.curve.cost[s, places] - own_cost[places])) / others
                )
        lost = [reached(run.curve, self.draws, c) - reached(Curve(right, cost), self.draws, c) for c in COSTS]
        return _claim(
            f"plans shuffled within a task: points lost, {name}, mean of the four costs",
            np.mean(lost, axis=0),
            must=2,
            goal=None,
        )

    def _left_out(self, kind: str) -> Claim:
        """A family never trained on, against the plain fixed plan at that plan's own cost, on that family alone.

        The plain plan is a vote of the best role, or several roles once each: chosen without the family.
        """
        place = self.kinds.index(kind)
        others = [q for q in self.train if self.recorded.families[q] != kind]
        names = [worker.name for worker in self.recorded.pool.workers]
        menu = [
            TablePlan((n,) * k, "vote" if k > 1 else "last")
            for n in names
            for k in range(1, next(w.samples for w in self.recorded.pool.workers if w.name == n) + 1)
        ]
        menu += [TablePlan((a, b, a), "vote") for a in names for b in names if a != b]
        worth = [float(self._planned([plan] * len(others), others)[0].mean()) for plan in menu]
        costs = [float(self._planned([plan] * len(others), others)[1].mean()) for plan in menu]
        plan = max(range(len(menu)), key=lambda i: worth[i] - 0.2 * costs[i] / 1000)
        right, cost = self._planned([menu[plan]] * len(self.test), self.test)
        one = drawn(np.where(self.kind_of == place, 0, -1), DRAWS)
        plain = Curve(right[None], cost[None])
        at = _own_cost(plain, one[0])
        difference = reached(self.runs[f"without-{kind}"].curve, one, at) - reached(plain, one, at)
        return _claim(
            f"{kind} never trained on, against {' '.join(menu[plan].asks)} at {at:.0f}", difference, must=-2, goal=-1
        )

    def _worker_left_out(self, worker: str) -> list[Claim]:
        """A run that never met a worker: with that worker's card alone, and both without the worker."""
        claims = []
        ours = [self.runs[name].curve for name in self.seeds]
        if (name := f"without-{worker}") in self.runs:
            new = [
                reached(self.runs[name].curve, self.draws, c)
                - np.mean([reached(curve, self.draws, c) for curve in ours], axis=0)
                for c in COSTS
            ]
            claims.append(
                _claim(
                    f"{worker} known by its card only, against having trained with it, mean of the four costs",
                    np.mean(new, axis=0),
                    must=-2,
                    goal=None,
                )
            )
            files = {one: self.folder / one / f"test-without-{worker}.jsonl.gz" for one in (*self.seeds, name)}
            if all(file.is_file() for file in files.values()):
                curves = {one: self._run(file).curve for one, file in files.items()}
                lost = [
                    np.mean([reached(curves[s], self.draws, c) for s in self.seeds], axis=0)
                    - reached(curves[name], self.draws, c)
                    for c in COSTS
                ]
                claims.append(
                    _claim(
                        f"{worker} taken away, against having trained without it, mean of the four costs",
                        np.mean(lost, axis=0),
                        must=-2,
                        goal=None,
                    )
                )
        return claims

    def _seed(self, name: str) -> dict[str, Any]:
        facts: dict[str, Any] = {"test": front(self.runs[name].rows)}
        for split in ("dev", "train"):
            file = self.folder / name / f"{split}.jsonl.gz"
            if file.is_file():
                facts[split] = front(_rows(file))
        if "dev" in facts and "train" in facts:
            facts["gap"] = 100 * (facts["train"]["utility"] - facts["dev"]["utility"])
        return facts

    def _steps(self) -> dict[str, Any]:
        """Workers asked by difficulty: how many of a question's recorded samples are right."""
        share = self.recorded.single[self.test].mean(1).numpy()
        bands = {
            "easy: 8 of 10 right or more": share >= 0.8,
            "between": (share < 0.8) & (share > 0.2),
            "hard: 2 of 10 right or fewer": share <= 0.2,
        }
        rows = [self._rows_at(self.runs[name], s) for name in self.seeds for s in range(len(PRICES))]
        return {
            name: {
                price: {
                    fact: float(
                        np.mean(
                            [
                                r.get(fact, 0.0)
                                for i, own in enumerate(rows)
                                if i % len(PRICES) == s
                                for r, b in zip(own, band, strict=True)
                                if b
                            ]
                        )
                    )
                    if band.any()
                    else None
                    for fact in ("asks", "calls")
                }
                for s, price in enumerate(PRICES)
            }
            for name, band in bands.items()
        }

    def _examples(self) -> list[dict[str, Any]]:
        """Plans to look at: of the first seed at the price `low`, those that gained and lost most against one order."""
        price = list(PRICES).index("low")
        order = best_plan(self.search, PRICES["low"])
        right, cost = self._planned([order] * len(self.test), self.test)
        rows = self._rows_at(self.runs[self.seeds[0]], price)
        gain = np.array([r["right"] - PRICES["low"] * r["cost"] / 1000 for r in rows]) - (
            right - PRICES["low"] * cost / 1000
        )
        chosen = [*np.argsort(-gain)[:3], *np.argsort(gain)[:3]]
        return [
            {
                "question": self.recorded.texts[self.test[i]][:300],
                "plan": rows[i]["plan"],
                "right": rows[i]["right"],
                "cost": rows[i]["cost"],
                "gain": float(gain[i]),
            }
            for i in map(int, chosen)
        ]

    # ---- outcomes ----

    def _run(self, file: Path) -> Run:
        ordered = self._ordered(file)
        pool = whole_pool(self.recorded.pool)
        right, cost = self._grid(ordered, "right"), self._grid(ordered, "cost")
        plans = [read_plan(row["plan"], pool) if row["valid"] else None for row in ordered]
        count = len(self.test)
        return Run(
            Curve(right, cost),
            Curve(right, cost - self._grid(ordered, "saved_by_prefix")),
            [plans[i : i + count] for i in range(0, len(plans), count)],
            ordered,
        )

    def _follow_up(self, file: Path) -> tuple[Curve, Curve]:
        """Policy and conductor together, and the policy alone on the same deals."""
        rows = self._ordered(file)
        together, alone = ((self._grid(rows, f"{who}right"), self._grid(rows, f"{who}cost")) for who in ("", "alone_"))
        return Curve(*together), Curve(*alone)

    def _ordered(self, file: Path) -> list[dict[str, Any]]:
        """The file's rows by price, then in the order of the test questions."""
        by_place = {(row["id"], row["price"]): row for row in _rows(file)}
        ids = [self.recorded.ids[q] for q in self.test]
        if missing := [id for id in ids if any((id, price) not in by_place for price in PRICES)]:
            raise ConfigError(f"{file} lacks {len(missing)} test questions, such as {missing[0]!r}; write it anew")
        return [by_place[id, price] for price in PRICES for id in ids]

    def _grid(self, rows: Sequence[dict[str, Any]], fact: str) -> Floats:
        return np.array([row[fact] for row in rows], dtype=np.float64).reshape(len(PRICES), -1)

    def _rows_at(self, run: Run, setting: int) -> list[dict[str, Any]]:
        return run.rows[setting * len(self.test) : (setting + 1) * len(self.test)]

    def _planned(self, plans: Sequence[TablePlan | None], questions: Sequence[int]) -> tuple[Floats, Floats]:
        """Returns the right answers and the cost of each plan on its question. A text that is no plan has 0 of both."""
        good = [i for i, plan in enumerate(plans) if plan is not None]
        right, cost = np.zeros((2, len(plans)))
        for at in range(0, len(good), 4000):
            part = good[at : at + 4000]
            kept = [plan for i in part if (plan := plans[i]) is not None]
            found = self.worth.of([questions[i] for i in part], kept)
            right[part], cost[part] = found[0].numpy(), found[1].numpy()
        return right, cost

    # ---- rivals ----

    def _rivals(self) -> dict[str, Curve]:
        recorded, names = self.recorded, [worker.name for worker in self.recorded.pool.workers]
        single = np.array([[recorded.single[q, recorded.pool.bits(n)].mean() for n in names] for q in self.train])
        best = recorded.pool.workers[int((self.weights[:, None] * single).sum(0).argmax())]
        rivals = {
            "best single role": self._fixed([TablePlan((best.name,))]),
            "vote of the best role": self._fixed(
                [TablePlan((best.name,) * k, "vote" if k > 1 else "last") for k in range(1, best.samples + 1)]
            ),
        }
        orders = [best_plan(self.search, price) for price in RIVAL_PRICES]
        rivals["one order, select and stop"] = self._fixed(orders)
        told = [[best_plan(own, price) for own in self.by_task] for price in RIVAL_PRICES]
        rivals["told the task, select and stop"] = self._grouped(told, self.kind_of)
        count = min(CLUSTERS, max(1, len(self.train) // 60))
        groups = Grouping.fitted([recorded.texts[q] for q in self.train], count)
        mine, theirs = (groups.of([recorded.texts[q] for q in some]) for some in (self.train, self.test))
        by_group = [
            weighted(self.search, self.weights * (mine == g)) if (mine == g).any() else self.search
            for g in range(count)
        ]
        rivals["12 clusters of words, select and stop"] = self._grouped(
            [[best_plan(own, price) for own in by_group] for price in RIVAL_PRICES], theirs
        )
        menu = list(dict.fromkeys([*(TablePlan((n,)) for n in names), *orders, *(p for row in told for p in row)]))
        rivals |= self._routers(menu)
        right = np.array([[float(recorded.single[q, recorded.pool.bits(n)].mean()) for n in names] for q in self.test])
        cost = np.array([[float(recorded.cost[q, recorded.pool.bits(n)].mean()) for n in names] for q in self.test])
        known = [(right - price / 1000 * cost).argmax(1) for price in RIVAL_PRICES]
        each = np.arange(len(self.test))
        rivals["hindsight: the right role, one call"] = Curve(
            np.stack([right[each, k] for k in known]), np.stack([cost[each, k] for k in known])
        )
        return rivals

    def _routers(self, menu: Sequence[TablePlan]) -> dict[str, Curve]:
        """kNN and RouterDC choose among whole plans, so they may use the selector and stop early as well."""
        texts = [self.recorded.texts[q] for q in self.train], [self.recorded.texts[q] for q in self.test]
        words = [np.stack([hashed_words(text)[:-1] for text in some]) for some in texts]
        near = np.argsort(-(words[1] @ words[0].T), axis=1)[:, :NEIGHBOURS]
        knn, router = [], []
        for price in PRICES.values():
            worth = np.stack([utilities(self.search, plan, price) for plan in menu], axis=1)
            expected = worth[near].mean(1) + 5 / NEIGHBOURS * np.average(worth, axis=0, weights=self.weights)
            knn.append([menu[i] for i in expected.argmax(1)])
            names = [str(i) for i in range(len(menu))]
            floor, spread = worth.min(), max(float(np.ptp(worth)), 1e-9)
            fitted = fit_routerdc(
                [
                    Example(text, dict(zip(names, ((row - floor) / spread).tolist(), strict=True)))
                    for text, row in zip(texts[0], worth, strict=True)
                ]
            )
            router.append([menu[int(fitted.choose(text))] for text in texts[1]])
        return {"kNN over plans": self._each(knn), "RouterDC over plans": self._each(router)}

    def _from_table(self, table: Table, where: str) -> None:
        """Rivals that need more than sets of samples: the learned policy, and recorded second steps."""
        places = {self.recorded.ids[q]: i for i, q in enumerate(self.test)}
        sources = [worker.source for worker in self.recorded.pool.workers]
        dealt = deal(table, where=where, workers=sources)
        trained = {self.recorded.ids[q] for q in self.train}
        own = dealt.some(np.array([i for i, id in enumerate(dealt.ids) if id in trained]))
        other = dealt.some(np.array([i for i, id in enumerate(dealt.ids) if id in places]))
        fit = CrossFitted(
            own, folds_of(own.texts, 5, 1), PolicySettings(), lambda text: print(f"  {text}", flush=True)
        ).whole()
        order = np.array([places[id] for id in other.ids])
        found = replayed(other, judged(other, fit.selector), fit)
        right, cost = np.full((2, len(found), len(self.test)), np.nan)
        for p, one in enumerate(found):
            right[p, order], cost[p, order] = one.right, one.cost
        self.rivals["mini"] = Curve(right, cost)
        self.second_steps = second_steps(table, [self.recorded.ids[q] for q in self.test])

    def _fixed(self, plans: Sequence[TablePlan]) -> Curve:
        return self._each([[plan] * len(self.test) for plan in plans])

    def _grouped(self, plans: Sequence[Sequence[TablePlan]], group: Ints) -> Curve:
        return self._each([[row[g] for g in group] for row in plans])

    def _each(self, plans: Sequence[Sequence[TablePlan]]) -> Curve:
        found = [self._planned(row, self.test) for row in plans]
        return Curve(np.stack([right for right, _ in found]), np.stack([cost for _, cost in found]))


EXPECTED = (
    *SEEDS,
    "warm-start",
    "imitation",
    "format",
    "shuffled",
    "without-bbh",
    "without-crux",
    "without-thinker",
    "follow-up-1",
)


# ---- arithmetic ---------------------------------------------------------------------------------------------


def drawn(groups: Ints, count: int, *, among: npt.NDArray[np.bool_] | None = None, seed: int = 1) -> Floats:
    """Weights [draws, questions]: the first row is the sample itself, the others draw as many questions of each group.

    Every group weighs the same; a question of group -1, or not `among` those that count, weighs nothing.
    """
    rng = np.random.default_rng(seed)
    found = np.zeros((count + 1, len(groups)))
    kept = (groups >= 0) & (True if among is None else among)
    present = np.unique(groups[kept])
    for group in present:
        own = np.flatnonzero(kept & (groups == group))
        found[0, own] = 1 / len(own) / len(present)
        found[1:, own] = (
            rng.multinomial(len(own), np.full(len(own), 1 / len(own)), size=count) / len(own) / len(present)
        )
    return found


def reached(curve: Curve, draws: Floats, cost: float) -> Floats:
    """Accuracy at this mean cost in every draw: a mix of the two settings whose costs lie around it.

    Less than the cheapest setting pays for a part of the questions only; more than the dearest buys nothing more.
    """
    rights, costs = draws @ curve.right.T, draws @ curve.cost.T
    found = np.empty(len(draws))
    for i, (right, paid) in enumerate(zip(rights, costs, strict=True)):
        order = np.argsort(paid, kind="stable")
        if cost <= paid[order[0]]:
            found[i] = right[order[0]] * cost / paid[order[0]]
        else:
            found[i] = np.interp(cost, paid[order], right[order])
    return found


def second_steps(table: Table, ids: Sequence[str]) -> dict[str, Curve]:
    """Fixed plans with a recorded second step: NaN for questions that lack one.

    `review` reads a think, `repair` a program that failed, `judge` a think and a program that disagree.
    """
    first: dict[tuple[str, str, int], Answer] = {}
    second: dict[tuple[str, str, int], Answer] = {}
    for answer in table.answers:
        if answer.read:
            second[answer.question, answer.worker, answer.read[0][1]] = answer
        else:
            first[answer.question, answer.worker, answer.k] = answer
    names = (
        "self-reflection: think, then review",
        "program, repaired if it fails",
        "MoA of two: think, program, judge",
    )
    worth: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in names}
    for id in ids:
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for k in (0, 1):
            think, code = first.get((id, "think", k)), first.get((id, "code", k))
            review, judge, repair = (second.get((id, name, k)) for name in ("review", "judge", "repair"))
            if think is None or code is None or review is None:
                continue
            rows[names[0]].append((review.right or 0.0, think.cost + review.cost))
            fixed = repair if repair is not None else code
            rows[names[1]].append((fixed.right or 0.0, code.cost + (repair.cost if repair is not None else 0.0)))
            last = judge if judge is not None else (code if code.same >= 0 else think)
            paid = think.cost + code.cost + (judge.cost if judge is not None else 0.0)
            rows[names[2]].append((last.right or 0.0, paid))
        for name in names:
            worth[name].append(rows[name])
    return {
        name: Curve(
            *(np.array([[np.mean([one[i] for one in own]) if own else np.nan for own in rows]]) for i in (0, 1))
        )
        for name, rows in worth.items()
        if any(rows)
    }


def task_of(id: str, kind: str) -> str:
    """The task of a question: of BBH one of its five, else its set."""
    return id.rsplit("-", 1)[0] if kind == "bbh" else kind


def _claim(
    name: str,
    difference: Floats,
    *,
    must: float | None,
    goal: float | None,
    above_zero: bool = False,
    at_most: bool = False,
) -> Claim:
    low, high = np.percentile(difference[1:], (2.5, 97.5))
    return Claim(name, must, goal, 100 * float(difference[0]), 100 * float(low), 100 * float(high), above_zero, at_most)


def _some(curve: Curve, kept: npt.NDArray[np.bool_]) -> Curve:
    return Curve(curve.right[:, kept], curve.cost[:, kept])


def _own_cost(curve: Curve, weights: Floats) -> float:
    """The mean cost of a method with one setting."""
    return float(weights @ curve.cost[0])


def _rows(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rb") as lines:
        return [msgspec.json.decode(line) for line in lines]


if __name__ == "__main__":
    main()
