"""What can be said only afterwards: the worker that turned out best, and whom nothing beats for the same money.

A planner that beats the worker chosen beforehand may only have beaten an unlucky choice; these figures keep a report
honest about that. Computed from outcomes and rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dirigent.evals.figures import ORACLE, Figures, by_planner, versus
from dirigent.evals.outcome import Outcome
from dirigent.evals.stats import mean

SINGLE = "single:"


def pareto(rows: Mapping[str, Figures]) -> list[str]:
    """The planners that nothing beats on accuracy at the same cost or less, the cheapest first. No reference is one."""
    found: list[str] = []
    best = -1.0
    tried = {name: row for name, row in rows.items() if name != ORACLE and row.n}
    for name in sorted(tried, key=lambda n: (tried[n].cost_usd, -tried[n].accuracy)):
        if tried[name].accuracy > best:
            best = tried[name].accuracy
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
    compared = [name for name in planners if name not in (ORACLE, winner) and name in found]
    return {
        "worker": winner.removeprefix(SINGLE),
        "accuracy": mean([o.value for o in found[winner]]),
        "versus": {name: versus(found[name], found[winner], seed=seed) for name in compared},
    }
