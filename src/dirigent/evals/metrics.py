"""Figures of a planner, computed from its outcomes alone. Every number of a report is computed here.

A question that was asked several times counts as one question with a mean. Two rows are figures and not planners: the
oracle, which this module computes from each worker's own answers, and outcomes that come in under a name of their own.

`Capacity` is the accuracy of a pool without plans: each worker alone, and the best choice of one for each question.
Complementarity is the oracle minus the best single worker: the most that choosing one worker a question could
add. It is computed on the questions that every worker answered, from outcomes of `single:NAME`.

Some figures are known only afterwards: the worker that turned out best, and the planners that no other beats for the
same money. A planner that beats the worker chosen beforehand may only have beaten an unlucky choice; these figures keep
a report honest about that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dirigent.evals.record import Outcome
from dirigent.evals.stats import Difference, mean, mean_or_none, paired_difference, percentile, share_interval, wilson

ORACLE = "oracle"


class Group(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures of some of the questions."""

    n: int
    accuracy: float
    interval: tuple[float, float]
    steps: float
    steps_histogram: dict[str, int] = {}
    """Valid plans by number of steps; given by kind only, like the workers asked."""
    asked: dict[str, int] = {}
    """Steps of the valid plans by worker, of all rounds."""


class Figures(msgspec.Struct, frozen=True):
    """One planner's row. Shares are between 0 and 1; tokens, calls, steps and seconds are a question's mean."""

    n: int
    """The number of questions."""
    accuracy: float
    interval: tuple[float, float]
    """The 95% interval, Wilson's."""
    valid: float
    """The share of drafts that were plans."""
    accuracy_given_valid: float
    steps: float
    """Of valid plans."""
    steps_over_minimal: float | None
    """Steps taken over steps needed, correct answers only. A lucky shortcut does not offset another plan's padding."""
    one_step_in_one: float | None
    """The share of questions with one needed step whose plan has one step."""
    parallel_fans: float | None
    """The share of right fan-out answers whose plan waits no longer than necessary."""
    calls: float
    tokens: float
    input_tokens: float
    output_tokens: float
    orchestration_tokens: float
    cost_usd: float | None
    """The cost of all questions, each asked once; None if a worker without a known price was asked."""
    cost_usd_per_question: float | None
    seconds_p50: float
    seconds_p95: float
    failed: int
    """Runs that a worker or a deadline failed; they count as wrong."""
    by_kind: dict[str, Group]
    by_depth: dict[str, Group]
    by_shape: dict[str, Group]
    by_combination: dict[str, Group]
    by_pair: dict[str, Group]
    marks: dict[str, float]
    """The share of drafts whose plan is right in this respect."""
    worker_shares: dict[str, float]
    steps_histogram: dict[str, int]
    versus_best: Difference | None = None
    """Paired, against the best single worker."""
    versus_equal_cost: Difference | None = None
    """Paired, against self-consistency of the best worker at equal cost."""
    worker_calls: float | msgspec.UnsetType = msgspec.UNSET
    """Calls of workers without those that wrote plans; unset in older reports."""
    planned_again: int | msgspec.UnsetType = msgspec.UNSET
    """Runs in which a later round made a plan of its own; absent if there were no such runs."""


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """One planner's figures."""
    n = len({outcome.task for outcome in outcomes})
    right, valid = mean([o.value for o in outcomes]), [o for o in outcomes if o.valid]
    cost_usd = mean_or_none([o.known_cost_usd for o in outcomes])
    seconds = [o.seconds for o in outcomes]
    known = [o for o in outcomes if o.correct and o.minimal_steps]
    needed = sum(o.minimal_steps for o in known)
    mark_names = dict.fromkeys(name for outcome in outcomes for name in outcome.marks)
    asked = _asked(valid)
    return Figures(
        n=n,
        accuracy=right,
        interval=_interval(outcomes),
        valid=_share(o.valid for o in outcomes),
        accuracy_given_valid=mean([o.value for o in valid]),
        steps=mean([o.steps for o in valid]),
        steps_over_minimal=sum(max(o.steps, o.minimal_steps) for o in known) / needed if known else None,
        one_step_in_one=_share_or_none(o.steps == 1 for o in outcomes if o.minimal_steps == 1),
        parallel_fans=_share_or_none(
            o.marks.get("parallel", False) for o in outcomes if o.correct and o.tags.get("shape") == "fan"
        ),
        calls=mean([o.calls for o in outcomes]),
        worker_calls=mean([o.calls - o.planning_calls for o in outcomes]),
        tokens=mean([o.tokens for o in outcomes]),
        input_tokens=mean([o.input_tokens for o in outcomes]),
        output_tokens=mean([o.output_tokens for o in outcomes]),
        orchestration_tokens=mean([o.orchestration_input_tokens + o.orchestration_output_tokens for o in outcomes]),
        cost_usd=None if cost_usd is None else cost_usd * n,
        cost_usd_per_question=cost_usd,
        seconds_p50=percentile(seconds, 0.5),
        seconds_p95=percentile(seconds, 0.95),
        failed=sum(o.failed for o in outcomes),
        by_kind=groups(outcomes, kind_of, group_of=_group_with_plans),
        by_depth=groups(outcomes, lambda o: str(o.depth)),
        by_shape=groups(outcomes, lambda o: o.tags.get("shape", "")),
        by_combination=groups(outcomes, lambda o: o.tags.get("combination", "") if o.depth > 1 else ""),
        by_pair=groups(outcomes, lambda o: o.tags.get("pair_kind", "")),
        marks={name: _share(o.marks.get(name, False) for o in outcomes) for name in mark_names},
        worker_shares={name: count / asked.total() for name, count in asked.most_common()},
        steps_histogram=_steps_histogram(valid),
        planned_again=sum(bool(o.asked_before) for o in outcomes) or msgspec.UNSET,
    )


def versus(outcomes: Sequence[Outcome], best: Sequence[Outcome], *, seed: int) -> Difference:
    """Paired over the questions that both were asked."""
    first, second, group = scores(outcomes), scores(best), pairs(outcomes)
    both = sorted(first.keys() & second.keys())
    return paired_difference(
        [first[task] for task in both],
        [second[task] for task in both],
        seed=seed,
        groups=[group[task] for task in both],
    )


def pairs(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Question -> the minimal pair that it belongs to, else its own name. The two of a pair are resampled together."""
    return {
        o.task: f"{o.task.rpartition('/')[0]} pair {o.tags['pair']}" if "pair" in o.tags else o.task for o in outcomes
    }


def _interval(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """The 95% interval of the accuracy."""
    found, group = scores(outcomes), pairs(outcomes)
    if len(set(group.values())) == len(found):
        return wilson(mean([o.value for o in outcomes]) * len(found), len(found))
    return share_interval(list(found.values()), [group[task] for task in found])


def scores(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Question -> the part of its answer that was right, the mean of its repeats."""
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        found[outcome.task].append(outcome.value)
    return {task: mean(values) for task, values in found.items()}


def oracle(alone: Iterable[Outcome]) -> list[Outcome]:
    """The best choice of one worker per question: the cheapest right worker, otherwise the cheapest worker. A worker of
    unknown cost comes after those of known cost."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in alone:
        found[outcome.task].append(outcome)
    chosen = [
        min(tried, key=lambda o: (-o.value, *cheap_first(o.known_cost_usd), o.planner)) for tried in found.values()
    ]
    return [msgspec.structs.replace(outcome, planner=ORACLE) for outcome in chosen]


def cheap_first(cost_usd: float | None) -> tuple[bool, float]:
    """A sort key by which an unknown cost comes last."""
    return cost_usd is None, cost_usd or 0.0


def groups(
    outcomes: Sequence[Outcome],
    name_of: Callable[[Outcome], str],
    *,
    group_of: Callable[[Sequence[Outcome]], Group] | None = None,
) -> dict[str, Group]:
    """The outcomes by name; outcomes without a name are left out."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        found[name_of(outcome)].append(outcome)
    return {name: (group_of or _group)(members) for name, members in sorted(found.items()) if name}


def kind_of(outcome: Outcome) -> str:
    """The kind of question: shape and depth if the task has them, otherwise the task's own kind."""
    shape = outcome.tags.get("shape", "")
    return f"{shape} {outcome.depth}" if shape else outcome.kind


def by_planner(outcomes: Iterable[Outcome]) -> Mapping[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        found[outcome.planner].append(outcome)
    return found


def _group(outcomes: Sequence[Outcome]) -> Group:
    n, right = len({o.task for o in outcomes}), mean([o.value for o in outcomes])
    return Group(n, right, _interval(outcomes), mean([o.steps for o in outcomes if o.valid]))


def _group_with_plans(outcomes: Sequence[Outcome]) -> Group:
    """Adds steps and workers, which a plot by kind shows."""
    valid = [o for o in outcomes if o.valid]
    return msgspec.structs.replace(
        _group(outcomes), steps_histogram=_steps_histogram(valid), asked=dict(_asked(valid).most_common())
    )


def _steps_histogram(valid: Sequence[Outcome]) -> dict[str, int]:
    return {str(steps): count for steps, count in sorted(Counter(o.steps for o in valid).items())}


def _asked(outcomes: Sequence[Outcome]) -> Counter[str]:
    """The shares of the steps of all rounds, including steps whose answers were not used."""
    asked = Counter(name for o in outcomes for name in o.asked_before)
    asked.update(step.worker for o in outcomes if o.plan for step in o.plan.steps)
    return asked


def _share(truths: Iterable[bool]) -> float:
    return mean([float(truth) for truth in truths])


def _share_or_none(truths: Iterable[bool]) -> float | None:
    found = list(truths)
    return _share(found) if found else None


# ---- each worker alone ---------------------------------------------------------------------------------------


SINGLE = "single:"
LEAST_SHARED = 0.9
"""The share of questions that all workers must have answered. Workers that were asked different ones have no order."""


class Alone(msgspec.Struct, frozen=True):
    """The figures of one worker that is asked every question alone."""

    n: int
    accuracy: float
    interval: tuple[float, float]
    cost_usd_per_question: float | None
    """None if its price is unknown."""
    tokens: float
    seconds: float
    """The mean of a question."""


class Capacity(msgspec.Struct, frozen=True):
    n: int
    """The number of questions that every worker answered."""
    workers: dict[str, Alone]
    """From best to worst."""
    best: str
    oracle: float
    oracle_interval: tuple[float, float]
    complementarity: float
    all_right: float
    """The share of the questions that every worker gets right; a choice changes nothing there."""


def capacity(outcomes: Sequence[Outcome]) -> Capacity | None:
    """Computed from the workers' own answers; None if fewer than two workers answered the same questions."""
    found = {name.removeprefix(SINGLE): of for name, of in by_planner(outcomes).items() if name.startswith(SINGLE)}
    if len(found) < 2:
        return None
    values = {name: scores(of) for name, of in found.items()}
    both = sorted(set.intersection(*(set(of) for of in values.values())))
    if not both or len(both) < LEAST_SHARED * len(set().union(*values.values())):
        return None
    alone = {name: _alone(of) for name, of in found.items()}
    ranked = sorted(
        alone,
        key=lambda name: (
            -mean([values[name][task] for task in both]),
            *cheap_first(alone[name].cost_usd_per_question),
        ),
    )
    oracle = mean([max(of[task] for of in values.values()) for task in both])
    return Capacity(
        n=len(both),
        workers={name: alone[name] for name in ranked},
        best=ranked[0],
        oracle=oracle,
        oracle_interval=wilson(oracle * len(both), len(both)),
        complementarity=oracle - mean([values[ranked[0]][task] for task in both]),
        all_right=mean([float(min(of[task] for of in values.values()) >= 1.0) for task in both]),
    )


def _alone(outcomes: Sequence[Outcome]) -> Alone:
    n, right = len({o.task for o in outcomes}), mean([o.value for o in outcomes])
    return Alone(
        n=n,
        accuracy=right,
        interval=wilson(right * n, n),
        cost_usd_per_question=mean_or_none([o.known_cost_usd for o in outcomes]),
        tokens=mean([o.tokens for o in outcomes]),
        seconds=mean([o.seconds for o in outcomes]),
    )


# ---- with hindsight ------------------------------------------------------------------------------------------


CEILING = "ceiling"


def pareto(rows: Mapping[str, Figures]) -> list[str]:
    """Returns the planners that no other beats at the same cost or less, the cheapest first. References, planners of
    unknown cost and planners that are never right are left out."""
    found: list[str] = []
    best = 0.0
    tried = [
        (row.cost_usd_per_question, -row.accuracy, name)
        for name, row in rows.items()
        if name not in (ORACLE, CEILING) and row.n and row.cost_usd_per_question is not None
    ]
    for _, _, name in sorted(tried, key=lambda found: found[:2]):
        if rows[name].accuracy > best:
            best = rows[name].accuracy
            found.append(name)
    return found


def in_hindsight(outcomes: Sequence[Outcome], planners: Sequence[str], *, seed: int) -> dict[str, Any]:
    """The comparison with the single worker that turned out best on these very questions.

    If several workers are nearly as good, the choice on other folds flips between them and loses by it. A planner that
    only beats the unlucky choice has not shown much.
    """
    found = by_planner(outcomes)
    winner = max(
        (name for name in found if name.startswith(SINGLE)), key=lambda name: mean([o.value for o in found[name]])
    )
    compared = [name for name in planners if name not in (ORACLE, CEILING, winner) and name in found]
    return {
        "worker": winner.removeprefix(SINGLE),
        "accuracy": mean([o.value for o in found[winner]]),
        "versus": {name: versus(found[name], found[winner], seed=seed) for name in compared},
    }


def ceiling(outcomes: Sequence[Outcome], *, leaving_out: Collection[str] = (ORACLE,)) -> list[Outcome]:
    """The best planner of each kind of question, of equals the cheaper: the accuracy that knowing the kind could reach.

    For recorded answers; the gym and live pools, where plans can be tried, have ceilings of their own. It is chosen on
    the very questions it is counted on, so it flatters, the more so with more planners and fewer questions of a kind.
    """
    found: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        if outcome.planner not in leaving_out:
            found[kind_of(outcome)][outcome.planner].append(outcome)

    def rank(outcomes: Sequence[Outcome]) -> tuple[float, bool, float]:
        """Right first, then cheap, by means: a planner that was asked fewer questions of the kind is no better."""
        return -mean([o.value for o in outcomes]), *cheap_first(mean_or_none([o.known_cost_usd for o in outcomes]))

    best = [min(tried.values(), key=rank) for tried in found.values()]
    return [msgspec.structs.replace(outcome, planner=CEILING) for chosen in best for outcome in chosen]
