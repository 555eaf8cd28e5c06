"""What can be said only afterwards: the worker that turned out best, and whom nothing beats for the same money.

A planner that beats the worker chosen beforehand may only have beaten an unlucky choice; these figures keep a report
honest about that. Computed from outcomes and rows alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dirigent.evals.metrics import ORACLE, Figures, by_planner, cheap_first, kind_of, versus
from dirigent.evals.outcome import Outcome
from dirigent.evals.single_workers import SINGLE
from dirigent.evals.stats import mean, mean_or_none

CEILING = "ceiling"


def pareto(rows: Mapping[str, Figures]) -> list[str]:
    """The planners that nothing beats on accuracy at the same cost or less, the cheapest first. No reference is one,
    nobody whose cost is unknown, and nobody who is never right."""
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
    """Against the single worker that turned out best on these very questions.

    Where several are nearly as good, the one chosen on other folds flips between them and pays for it; nobody knew
    beforehand which one would win, but a planner that only beats the unlucky choice has not shown much.
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
    """The best planner of each kind of question, the cheaper where two tie: what knowing the kind could come to.

    For recorded answers; the gym and live pools, where plans can be tried, have ceilings of their own. Chosen on the
    very questions it is counted on, it flatters, the more so the more planners and the fewer questions of a kind.
    """
    found: dict[str, dict[str, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        if outcome.planner not in leaving_out:
            found[kind_of(outcome)][outcome.planner].append(outcome)
    best = [min(tried.values(), key=_right_then_cheap) for tried in found.values()]
    return [msgspec.structs.replace(outcome, planner=CEILING) for chosen in best for outcome in chosen]


def _right_then_cheap(outcomes: Sequence[Outcome]) -> tuple[float, bool, float]:
    """A planner that was asked fewer questions of the kind is not the better for it: the mean decides."""
    return -mean([o.value for o in outcomes]), *cheap_first(mean_or_none([o.known_cost_usd for o in outcomes]))
