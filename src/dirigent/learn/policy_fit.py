"""Fit a policy to a table, and measure it on questions that it did not learn from.

The table's questions are dealt into folds. For each fold a policy is fitted on the others: a selector, and for each
price of cost the orders and thresholds of its clusters, chosen by replay on the others' answers, where every question
is judged by a selector that never saw it. What that policy is worth on the fold's own questions is exact, because the
table holds every worker's answer. These outcomes are the front; the policy that is kept is fitted on all questions.

Clusters come in three grains: all questions, a few clusters by what is expected of each worker, and many by words as
well. A cluster gets an order of its own only if the order found on one half of its questions gains on the other half.

A policy is switched on only at a point that the evidence supports. Two thirds of the questions choose the point
called `same`; the other third, which chose nothing, must confirm it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from dirigent.errors import ConfigError
from dirigent.learn.deals import DealtTable, Ints, Judged, deal, fit_selector, judged
from dirigent.learn.orders import NEVER, Found, Order, Replayed, Searchable, best_order, clusters, replay, searchable
from dirigent.learn.policy import (
    PRIOR_SCALE,
    FixedPlan,
    Kind,
    Point,
    Policy,
    Vectors,
    as_stored,
    cluster_points,
    mark_of,
    marks_of,
    novelty,
)
from dirigent.learn.selector import Floats, Selector, SelectorSettings, cross_fitted_ridge
from dirigent.learn.table import Table

PRICES = (
    *(0.0, 0.005, 0.012, 0.02, 0.03, 0.037, 0.045, 0.052, 0.06, 0.07, 0.08),
    *(0.095, 0.11, 0.13, 0.15, 0.18, 0.22, 0.28, 0.35, 0.5, 0.7),
)
"""Right answers that one call of the best single worker must be worth."""
THRESHOLDS = (
    *(0.1, 0.15, 0.2, 0.27, 0.34, 0.41, 0.48, 0.55, 0.62, 0.69, 0.76, 0.83, 0.88, 0.92, 0.95, 0.97, 0.985),
    NEVER,
)
FEWEST_LABELS = 25
MARGIN = 0.01
"""`same` may be at most so much worse than the best single worker."""
Z_ONE_SIDED = 1.644854
Z_TWO_SIDED = 1.959964
FAMILIAR_SHARE = 0.95
"""Of the questions a policy was fitted on, so many are below each limit of novelty."""
VOTES = (2, 3, 5)
"""Calls of the fixed plans that are compared with the policy."""
HEDGE = 1.7
"""A plain plan for a question of an unknown kind may cost so many times what the point costs."""
MOST_LABELS = 100_000
"""A need for more labels than this is reported as none being enough."""


class PolicySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folds: int = 5
    coarse: int = 4
    fine: int = 24
    per_coarse: int = 40
    """Questions for each coarse cluster; fewer questions have fewer clusters."""
    per_fine: int = 60
    familiar: int = 128
    most_calls: int = 10
    standard_errors: float = 0.0
    """By how many a cluster's own order must gain over that of the clusters above it."""
    prices: tuple[float, ...] = PRICES
    selector: SelectorSettings = SelectorSettings(subsets=20, trees=240, rows=8_000, learning_rate=0.08, columns=0.3)
    few: int = 1_000
    """With fewer questions than this the selector's trees have at most `few_depth` levels."""
    few_depth: int = 3
    blind: tuple[str, ...] = ()
    """Features that selectors may not see; for ablations."""
    plurality: bool = False
    """Take the most common answer and its share in place of a selector's choice; for ablations."""
    seed: int = 1


class Outcomes(msgspec.Struct, frozen=True, eq=False):
    """What each price's policy was worth on questions that it did not learn from [prices, questions]."""

    right: Floats
    cost: Floats
    calls: Floats
    single_right: Floats
    """[questions]: of the worker that was best on the other folds."""
    single_cost: Floats


class Fitted(msgspec.Struct, frozen=True, eq=False):
    policy: Policy
    selector: Selector | None
    outcomes: Outcomes | None
    table: DealtTable | None


class Fit(msgspec.Struct, frozen=True, eq=False):
    """Clusters with what to do in each, at every price: fitted on some questions, usable on any."""

    selector: Selector
    centres: Vectors
    kinds: tuple[tuple[tuple[Order, ...], tuple[float, ...]], ...]
    """For each price the orders and thresholds of the clusters."""


def fit_policy(
    table: Table,
    *,
    where: str,
    settings: PolicySettings | None = None,
    version: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """The policy of a table, switched on at `same` if the evidence supports it.

    Raises ConfigError if nothing can be learned: one worker with one answer a question, all answers right, or none.
    """
    settings = settings or PolicySettings()
    labelled = {a.question for a in table.answers if a.right is not None and not a.estimated}
    if not any(answer.right is not None for answer in table.answers):
        raise ConfigError(f"{where} has no graded answer; give its questions answers, and calibrate again")
    dealt = deal(table, where=where, seed=settings.seed)
    _check(dealt, where)
    labels = sum(id in labelled for id in dealt.ids)
    best = int(best_single(dealt, np.arange(len(dealt))))
    fingerprints = {worker.name: worker.fingerprint for worker in table.workers if worker.name in dealt.workers}
    policy = Policy(
        version=version,
        unit=table.unit,
        workers=dealt.workers,
        fingerprints=fingerprints,
        baseline=dealt.workers[best],
        baseline_accuracy=float(dealt.single[:, best].mean()),
        baseline_cost=float(single_cost(dealt, best).mean()),
        questions=len(dealt),
        labels=labels,
        points=(),
        named={},
        why="",
        more_labels=None,
        active="off",
        novel_above=(1.0, 1.0),
        left_out=dealt.left_out,
        fixed=fixed_plans(dealt, best),
    )
    if len(dealt) < FEWEST_LABELS:
        why = f"{len(dealt)} questions are too few to learn from; {FEWEST_LABELS} are the fewest"
        short = FEWEST_LABELS - len(dealt)
        return Fitted(msgspec.structs.replace(policy, why=why, more_labels=short), None, None, None)
    folds = folds_of(dealt.texts, settings.folds, settings.seed)
    crossed = CrossFitted(dealt, folds, settings, say)
    outcomes = crossed.outcomes()
    whole = crossed.whole()
    policy = _with_points(policy, dealt, whole, crossed.judged_but(-1), outcomes, settings)
    truly = np.array([id in labelled for id in dealt.ids])
    return Fitted(_chosen(policy, outcomes, dealt.texts, truly), whole.selector, outcomes, dealt)


def folds_of(texts: Sequence[str], folds: int, seed: int) -> Ints:
    """The fold of each question; equal texts share one."""
    plain = [" ".join(text.split()) for text in texts]
    drawn = sorted(set(plain), key=lambda text: _number("fold", seed, text))
    rank = {text: place for place, text in enumerate(drawn)}
    return np.array([rank[text] % folds for text in plain], dtype=np.int64)


class CrossFitted:
    """Selectors and fits for every fold, each fitted without it.

    To choose an order for the questions outside fold f, each of their folds g is judged by a selector that saw neither
    f nor g. That selector serves both f and g, so there are about half as many fits as pairs.
    """

    def __init__(
        self, table: DealtTable, folds: Ints, settings: PolicySettings, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.table, self.folds, self.settings, self.say = table, folds, settings, say
        self.numbers = sorted({int(fold) for fold in folds if fold >= 0})
        self._selectors: dict[tuple[int, int], Selector] = {}
        self._judged: dict[tuple[int, int], Judged] = {}

    def selector(self, *without: int) -> Selector:
        """The selector fitted on all questions but those of these folds."""
        first, last = min(without), max(without)
        if (first, last) not in self._selectors:
            rest = np.flatnonzero((self.folds >= 0) & ~np.isin(self.folds, without))
            settings = self.settings.selector
            if (self.folds >= 0).sum() < self.settings.few:
                settings = msgspec.structs.replace(settings, depth=min(settings.depth, self.settings.few_depth))
            self._selectors[first, last] = fit_selector(
                self.table, rest, seed=self.settings.seed, settings=settings, blind=self.settings.blind
            )
            self.say(f"fitted selector {len(self._selectors)}")
        return self._selectors[first, last]

    def judged_but(self, fold: int) -> Judged:
        """Every question outside the fold, judged by a selector that saw neither it nor the fold."""
        shape = self.table.place.shape[:3]
        confidence, right = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
        for other in self.numbers:
            if other != fold:
                own = np.flatnonzero(self.folds == other)
                found = self._judged_fold(other, fold)
                confidence[own], right[own] = found.confidence, found.right
        return Judged(confidence, right)

    def judged_fold(self, fold: int) -> Judged:
        """The fold's questions, judged by the selector of all the others."""
        return self._judged_fold(fold, -1)

    def _judged_fold(self, fold: int, but: int) -> Judged:
        if (fold, but) not in self._judged:
            some = self.table.some(np.flatnonzero(self.folds == fold))
            if self.settings.plurality:
                found = by_plurality(some)
            else:
                found = judged(some, self.selector(fold) if but < 0 else self.selector(fold, but))
            self._judged[fold, but] = found
        return self._judged[fold, but]

    def fit_but(self, fold: int) -> Fit:
        """Clusters, orders and thresholds fitted without the fold."""
        rest = np.flatnonzero((self.folds >= 0) & (self.folds != fold))
        return fit_kinds(self.table, rest, self.judged_but(fold), self.selector(fold), self.settings)

    def whole(self) -> Fit:
        return self.fit_but(-1)

    def outcomes(self, asked: npt.NDArray[np.bool_] | None = None) -> Outcomes:
        """Each price's policies on the questions of every fold; `asked` marks those to be asked, default all."""
        shape = (len(self.settings.prices), len(self.table))
        right, cost, calls = (np.full(shape, np.nan) for _ in range(3))
        single_right, paid = np.full((2, len(self.table)), np.nan)
        for fold in self.numbers:
            own = np.flatnonzero(self.folds == fold)
            rest = np.flatnonzero((self.folds >= 0) & (self.folds != fold))
            best = best_single(self.table, rest)
            single_right[own] = self.table.single[own, best]
            paid[own] = single_cost(self.table, best)[own]
            fit = self.fit_but(fold)
            for p, found in enumerate(replayed(self.table.some(own), self.judged_fold(fold), fit)):
                right[p, own], cost[p, own], calls[p, own] = found.right, found.cost, found.calls
            self.say(f"asked fold {fold + 1} of {len(self.numbers)}")
        if asked is not None:
            for values in (right, cost, calls):
                values[:, ~asked] = np.nan
            single_right[~asked] = paid[~asked] = np.nan
        return Outcomes(right, cost, calls, single_right, paid)


def replayed(table: DealtTable, seen: Judged, fit: Fit) -> list[Replayed]:
    """What the fit is worth on each question of the table, for every price."""
    group = _kinds_of(table, fit.selector, fit.centres)
    return [replay(table, seen, orders, group, thresholds) for orders, thresholds in fit.kinds]


def fit_kinds(
    table: DealtTable,
    questions: Ints,
    seen: Judged,
    selector: Selector,
    settings: PolicySettings,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Fit:
    """For every price the orders and thresholds of the clusters, chosen by replay on these questions."""
    hashed = table.hashed[questions].astype(np.float64)
    # In-sample, the ridge would be too sure.
    prior = cross_fitted_ridge(hashed, table.targets[questions], np.random.default_rng(settings.seed))[0]
    coarse = clusters(
        prior.astype(np.float32), _count(len(questions), settings.coarse, settings.per_coarse), seed=settings.seed
    )
    points = cluster_points(table.hashed[questions], prior.astype(np.float32))
    fine = clusters(points, _count(len(questions), settings.fine, settings.per_fine), seed=settings.seed)
    fine_of = _nearest(points, fine)
    parent = _nearest(fine[:, -prior.shape[1] :] / np.float32(PRIOR_SCALE), coarse)
    own = table.some(questions)
    seen_own = Judged(seen.confidence[questions], seen.right[questions])
    unit = single_cost(table, best_single(table, questions))[questions].mean()
    half = np.array([_number("half", text) % 2 for text in own.texts])
    root = _Level(own, seen_own, np.zeros(len(own), dtype=np.int64), thresholds, half)
    grains = [(parent[fine_of], parent, len(coarse)), (fine_of, np.arange(len(fine)), len(fine))]
    levels = [(_Level(own, seen_own, group, thresholds, half), of) for group, of, count in grains if count > 1]
    found = []
    for price in settings.prices:
        everywhere = root.search(price / unit, settings.most_calls)[0]
        chosen = [everywhere] * len(fine)
        for level, place_of in levels:
            own_kinds = level.search(price / unit, settings.most_calls)
            orders, until = zip(*chosen, strict=True)
            worth = replay(own, seen_own, orders, fine_of, until)
            gains = level.crossed(price / unit) - (worth.right - price / unit * worth.cost)
            for place, kind in own_kinds.items():
                gain = gains[level.group == place]
                if gain.mean() > settings.standard_errors * gain.std() / len(gain) ** 0.5:
                    chosen = [kind if place_of[c] == place else old for c, old in enumerate(chosen)]
        orders, until = zip(*chosen, strict=True)
        found.append((orders, until))
    return Fit(selector, as_stored(fine), tuple(found))


class _Level:
    """One grain of clusters. Prices are searched in rising order, so the thresholds to try move down with them.

    Each cluster's kind is found three times: on all its questions, and on either half of them, so that `crossed` can
    measure it on the other half. An order that was chosen among thousands looks better than it is where it was chosen.
    """

    def __init__(self, table: DealtTable, seen: Judged, group: Ints, thresholds: Sequence[float], half: Ints) -> None:
        self.group, self.thresholds, self.half = group, thresholds, half
        self._table, self._seen = table, seen
        self._parts: dict[tuple[int, int], Searchable] = {}
        for place in np.unique(group).tolist():
            for side in (-1, 0, 1):
                own = np.flatnonzero((group == place) & (half != side))
                if len(own):
                    self._parts[place, side] = searchable(table, seen, own, np.ones(len(own)))
        self._window = {part: range(len(thresholds)) for part in self._parts}
        self._halves: dict[tuple[int, int], tuple[Order, float]] = {}

    def search(self, price: float, most_calls: int) -> dict[int, tuple[Order, float]]:
        """The order and threshold of each cluster at this price; also of its halves, for `crossed`."""
        kinds = {}
        for (place, side), part in self._parts.items():
            best, at = Found((0,), -np.inf), len(self.thresholds) - 1
            for number in self._window[place, side]:
                found = best_order(part, price=price, threshold=self.thresholds[number], most_calls=most_calls)
                if found.utility > best.utility:
                    best, at = found, number
            self._window[place, side] = range(max(0, at - 3), min(len(self.thresholds), at + 2))
            if side < 0:
                kinds[place] = (best.order, self.thresholds[at])
            else:
                self._halves[place, side] = (best.order, self.thresholds[at])
        return kinds

    def crossed(self, price: float) -> Floats:
        """The utility of every question at its cluster's kind, found on the half that it is not in."""
        utility = np.zeros(len(self._table))
        for (place, side), (order, until) in self._halves.items():
            own = np.flatnonzero((self.group == place) & (self.half == side))
            if len(own):
                seen = Judged(self._seen.confidence[own], self._seen.right[own])
                worth = replay(self._table.priced(own), seen, [order], np.zeros(len(own), dtype=np.int64), [until])
                utility[own] = worth.right - price * worth.cost
        return utility


def by_plurality(table: DealtTable) -> Judged:
    """The most common answer, ties to programs, with its share of the calls as confidence."""
    calls = np.maximum(table.states.sum(1), 1)
    share = np.where(table.most > 1, table.most / (calls + 1.0), 0.05)
    return Judged(share.astype(np.float32), table.vote_ties.astype(np.float32))


# ---- the policy's points, and which of them the evidence supports -------------------------------------------


def _with_points(
    policy: Policy, table: DealtTable, whole: Fit, seen: Judged, outcomes: Outcomes, settings: PolicySettings
) -> Policy:
    everything = np.arange(len(table))
    at_once = fit_kinds(table, everything, seen, whole.selector, settings, thresholds=(NEVER,))
    # The kinds a served question falls into are formed with the final ridge, as here.
    group = _kinds_of(table, whole.selector, whole.centres)
    points = []
    for p, price in enumerate(settings.prices):
        diff = outcomes.right[p] - outcomes.single_right
        half = Z_TWO_SIDED * float(diff.std()) / len(diff) ** 0.5
        cost = float(outcomes.cost[p].mean())
        both = [
            _kinds(table, seen, group, *fit.kinds[p], overall=(float(outcomes.right[p].mean()), cost))
            for fit in (whole, at_once)
        ]
        points.append(
            Point(
                price=price,
                kinds=both[0],
                at_once=both[1],
                plain=plain_plan(table, cost),
                accuracy=float(outcomes.right[p].mean()),
                cost=cost,
                calls=float(outcomes.calls[p].mean()),
                diff=float(diff.mean()),
                low=float(diff.mean()) - half,
                high=float(diff.mean()) + half,
            )
        )
    familiar, above = familiarity(table, whole.centres, settings)
    return msgspec.structs.replace(
        policy,
        points=tuple(points),
        novel_above=above,
        centres=whole.centres,
        familiar=familiar,
        seen=marks_of(table.texts),
        words=whole.selector.words,
    )


def familiarity(table: DealtTable, centres: Vectors, settings: PolicySettings) -> tuple[Vectors, tuple[float, float]]:
    """The directions of the table's words, and the measures of `novelty` that few questions of its kind exceed."""
    words = table.hashed[:, :-1]
    half_of = np.array([_number("half", text) % 2 for text in table.texts])
    count = max(1, min(settings.familiar, len(table) // 8))
    measured = np.concatenate(
        [
            novelty(table.hashed[half_of == side], _directions(words[half_of != side], count), centres)
            for side in (0, 1)
            if (half_of == side).any() and (half_of != side).any()
        ]
    )
    above = np.quantile(measured, FAMILIAR_SHARE, axis=0)
    return _directions(words, count), (float(above[0]) + 0.002, float(above[1]) + 0.002)


def _kinds(
    table: DealtTable,
    seen: Judged,
    group: Ints,
    orders: tuple[Order, ...],
    until: tuple[float, ...],
    *,
    overall: tuple[float, float],
) -> tuple[Kind, ...]:
    worth = replay(table, seen, orders, group, until)
    found = []
    for place, (order, threshold) in enumerate(zip(orders, until, strict=True)):
        own = group == place
        right, cost = (float(worth.right[own].mean()), float(worth.cost[own].mean())) if own.any() else overall
        found.append(Kind(order, threshold, round(right, 4), cost))
    return tuple(found)


def plain_plan(table: DealtTable, cost: float) -> Order:
    """The plain vote for questions of an unknown kind, at a point of such a cost.

    Which worker is good at them is unknown, so the plan may cost somewhat more than the point, and several calls go to
    several workers: a worker that is good at every known kind may be useless for another.
    """
    best = float(single_cost(table, best_single(table, np.arange(len(table)))).mean())
    alone = (table.states.sum(1) > 1) & ((table.states > 0).sum(1) < 2)
    return _vote_within(table, max(HEDGE * cost, best), ~alone)


def plain_vote(table: DealtTable, most_cost: float) -> Order:
    """The calls of the best plain vote that costs no more; ties go to programs."""
    return _vote_within(table, most_cost, np.ones(len(table.states), dtype=np.bool_))


def _vote_within(table: DealtTable, most_cost: float, among: npt.NDArray[np.bool_]) -> Order:
    calls = table.cost.mean((0, 1))
    cost = np.array(
        [sum(float(calls[w, :count].sum()) for w, count in enumerate(state)) for state in table.states.tolist()]
    )
    right = table.vote_ties.mean((0, 1))
    allowed = (cost <= most_cost * 1.001) & (table.states.sum(1) > 0) & among
    if not allowed.any():
        return (int(calls[:, 0].argmin()),)
    best = int(np.where(allowed, right, -1).argmax())
    return tuple(w for w, count in enumerate(table.states[best].tolist()) for _ in range(count))


def fixed_plans(table: DealtTable, best: int) -> tuple[FixedPlan, ...]:
    """Votes of every worker with itself, and of the best workers with each other, as far as the table has them.

    The best workers are those of this table, so these figures flatter the panels a little.
    """
    ranked = np.argsort(-table.single.mean(0), kind="stable").tolist()
    orders = {f"{table.workers[w]} ×{count}": (w,) * count for w in ranked for count in VOTES if count > 2}
    orders |= {f"vote of the best {count}": tuple(ranked[:count]) for count in VOTES if count <= len(ranked)}
    texts = np.unique([mark_of(text) for text in table.texts], return_inverse=True)[1]
    found = []
    for name, order in orders.items():
        if not reachable(table, order):
            continue
        right, cost = voted(table, order)
        diff = right - table.single[:, best]
        low, high = paired_interval(diff, texts)
        plan = FixedPlan(name, float(right.mean()), float(cost.mean()), len(order), float(diff.mean()), low, high)
        found.append(plan)
    return tuple(found)


def voted(table: DealtTable, order: Sequence[int]) -> tuple[Floats, Floats]:
    """Right answers and cost of a vote over these calls, all asked at once; ties go to programs."""
    state, cost = 0, np.zeros(len(table))
    asked = [0] * len(table.workers)
    for worker in order:
        cost += table.cost[:, :, worker, asked[worker]].mean(1)
        asked[worker] += 1
        state = int(table.after[state, worker])
        if state < 0:
            raise ConfigError(f"a vote of {len(order)} calls was not recorded")
    if len(order) == 1:
        return table.single[:, order[0]], cost
    return table.vote_ties[:, :, state].mean(1), cost


def reachable(table: DealtTable, order: Sequence[int]) -> bool:
    """Whether the table has an answer for every one of these calls."""
    state = 0
    for worker in order:
        state = int(table.after[state, worker])
        if state < 0:
            return False
    return True


def paired_interval(diff: Floats, clusters: Ints) -> tuple[float, float]:
    """The 95% interval of a mean difference, with the questions of one cluster counted together."""
    sums = np.bincount(clusters, diff - diff.mean())
    half = Z_TWO_SIDED * float(np.sqrt((sums**2).sum())) / len(diff)
    return float(diff.mean()) - half, float(diff.mean()) + half


def _chosen(policy: Policy, outcomes: Outcomes, texts: Sequence[str], labelled: npt.NDArray[np.bool_]) -> Policy:
    """The policy with its named points, switched on at `same` if the slice that chose nothing confirms it."""
    diff = outcomes.right - outcomes.single_right
    name = policy.baseline
    if policy.labels < FEWEST_LABELS:
        return msgspec.structs.replace(
            policy,
            why=f"only {policy.labels} questions are graded by a label, and {FEWEST_LABELS} are the fewest: agreement "
            "alone proves nothing, since answers of one model err together",
            more_labels=FEWEST_LABELS - policy.labels,
        )
    chooses = labelled & np.array([_number("choose", text) % 3 != 0 for text in texts])
    confirms = labelled & ~chooses
    if chooses.sum() < 10 or confirms.sum() < 8:
        return msgspec.structs.replace(
            policy,
            why=f"{policy.labels} labelled questions are too few to choose and confirm",
            more_labels=FEWEST_LABELS,
        )
    points = policy.points
    spread = diff[:, chooses].std(1, ddof=1)
    mean = diff[:, chooses].mean(1)
    # The confirming slice is smaller, so a point is only tried if a slice of its size could confirm it.
    bound = mean - Z_ONE_SIDED * spread / confirms.sum() ** 0.5
    costs = outcomes.cost[:, chooses].mean(1)
    single_cost = float(outcomes.single_cost[chooses].mean())
    cheaper = [p for p in range(len(points)) if costs[p] < single_cost]
    supported = [p for p in cheaper if bound[p] > -MARGIN]
    named: dict[str, int] = {}
    best = int(outcomes.right[:, chooses].mean(1).argmax())
    gained = diff[best, confirms]
    if gained.mean() - Z_ONE_SIDED * gained.std(ddof=1) / len(gained) ** 0.5 > 0:
        named["best"] = best
    if supported:
        same = min(supported, key=lambda p: float(costs[p]))
        left = diff[same, confirms]
        low = float(left.mean() - Z_ONE_SIDED * left.std(ddof=1) / len(left) ** 0.5)
        if low > -MARGIN:
            named["same"] = same
            share = points[same].cost / policy.baseline_cost
            why = (
                f"at {share:.2f} of {name}'s cost; {len(left)} questions that chose nothing say at least "
                f"{100 * low:+.1f} points of accuracy (one-sided 95%)"
            )
            return msgspec.structs.replace(policy, named=named, why=why, active="same")
    tried = [p for p in cheaper if mean[p] > -MARGIN]
    if not tried:
        why = f"no cheaper order came within 1 point of {name}: one call stays one call"
        return msgspec.structs.replace(policy, named=named, why=why)
    best_try = max(tried, key=lambda p: float(bound[p]))
    together = diff[best_try, labelled]
    half = Z_TWO_SIDED * together.std(ddof=1) / len(together) ** 0.5
    needed = 3 * (Z_ONE_SIDED * together.std(ddof=1) / (MARGIN + max(0.0, float(together.mean())))) ** 2
    more = int(np.ceil(max(needed - policy.labels, 10) / 10) * 10)
    why = (
        f"{policy.labels} questions cannot show that anything is within 1 point of {name} "
        f"(interval {100 * (together.mean() - half):+.1f} to {100 * (together.mean() + half):+.1f})"
    )
    return msgspec.structs.replace(policy, named=named, why=why, more_labels=more if more <= MOST_LABELS else None)


def _check(table: DealtTable, where: str) -> None:
    if len(table.workers) == 1 and table.samples[0] == 1:
        raise ConfigError(
            f"{where} has one worker, {table.workers[0]}, with one answer a question: there is nothing to choose. "
            "Add a worker, or calibrate with --samples 2"
        )
    for what, share in (("wrong", 0.0), ("right", 1.0)):
        if (table.single == share).all():
            raise ConfigError(
                f"in {where} every answer is {what}, so nothing tells the workers apart; check the grader, or ask "
                f"{'easier' if what == 'wrong' else 'harder'} questions"
            )


def best_single(table: DealtTable, questions: Ints) -> int:
    """The worker that is right most often alone; the cheapest of equals."""
    right = table.single[questions].mean(0)
    cost = table.cost[questions][:, :, :, 0].mean((0, 1))
    return min(range(len(right)), key=lambda w: (-round(float(right[w]), 9), float(cost[w])))


def single_cost(table: DealtTable, worker: int) -> Floats:
    return np.asarray(table.cost[:, :, worker, 0].mean(1))


def _kinds_of(table: DealtTable, selector: Selector, centres: Vectors) -> Ints:
    prior = (table.hashed.astype(np.float64) @ selector.words).astype(np.float32)
    return _nearest(cluster_points(table.hashed, prior), centres)


def _nearest(points: Vectors, centres: Vectors) -> Ints:
    squares = (centres**2).sum(1) - 2 * points @ centres.T
    return np.asarray(squares.argmin(1), dtype=np.int64)


def _directions(words: Vectors, count: int) -> Vectors:
    """The directions in which most of the words' vectors lie."""
    rows = words.astype(np.float64)
    if len(rows) < rows.shape[1]:
        scale, turned = np.linalg.eigh(rows @ rows.T)
        kept = [place for place in range(len(rows))[::-1][:count] if scale[place] > 1e-6 * scale[-1]]
        found = turned[:, kept].T @ rows / np.sqrt(scale[kept, None])
    else:
        found = np.linalg.eigh(rows.T @ rows)[1][:, ::-1][:, :count].T
    return as_stored(found)


def _count(questions: int, most: int, each: int) -> int:
    return max(1, min(most, questions // each))


def _number(*parts: object) -> int:
    return int(hashlib.sha1(" ".join(map(str, parts)).encode()).hexdigest()[:12], 16)
