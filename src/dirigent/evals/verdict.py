"""Verdict: one sentence that says whether conducting paid, just as plainly when it did not.

Made of the rows alone. A row wins that is better than the best single worker's by a paired difference that counts; one
without such a difference, measured elsewhere or not compared, is not spoken of. Where runs are missing nobody is said
to have failed: what is left open may still be won.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dirigent.evals.metrics import Figures

BEST = "best"
"""The best single worker, with whom everybody is compared."""

OPEN = "open: some runs are missing"


def verdict(rows: Mapping[str, Figures], *, references: Sequence[str] = (), complete: bool = True) -> str:
    """One sentence: who beats the best single worker, at what cost, or that nobody does; the latter only where no
    run is missing."""
    best = rows.get(BEST)
    if best is None:
        return 'open: add "best" to the planners to compare with the best single worker'
    if not best.n:
        return "open: the best single worker was not asked before the evaluation was cut"
    tried = {name: row for name, row in rows.items() if name != BEST and name not in references and row.versus_best}
    if not tried:
        room = [f"{name} {row.versus_best.mean * 100:+.1f}" for name, row in rows.items() if row.versus_best]
        return f"open: no planner was tried; points over the best single worker: {', '.join(room) or 'none known'}"
    winners = [name for name, row in tried.items() if _wins(row)]
    losers = [name for name in tried if name not in winners]
    if not winners and not complete:
        return OPEN
    if not winners:
        return f"nothing beats the best single worker ({best.accuracy:.1%}): {_listed(tried)} {_verb(tried)} not"
    said = "; ".join(f"{name} beats the best single worker ({_how(tried[name], best)})" for name in winners)
    if not complete:
        return f"{said}; {OPEN}"
    return said + (f"; {_listed(losers)} {_verb(losers)} not" if losers else "")


def _wins(row: Figures) -> bool:
    return row.versus_best is not None and row.versus_best.significant and row.versus_best.mean > 0


def _how(row: Figures, best: Figures) -> str:
    difference = row.versus_best
    assert difference is not None  # a winner has been compared
    said = f"{difference.mean * 100:+.1f} points, paired p = {difference.p:.2g}"
    if row.cost_usd_per_question is None or best.cost_usd_per_question is None:
        said += ", at a cost that cannot be compared: a price is unknown"
    elif best.cost_usd_per_question:
        said += f", at {row.cost_usd_per_question / best.cost_usd_per_question:.1f}x its cost"
    if (equal := row.versus_equal_cost) is not None:
        beats = equal.significant and equal.mean > 0
        said += f", {equal.mean * 100:+.1f} against equal-cost self-consistency{'' if beats else ', which is no gain'}"
    return said


def _listed(names: Mapping[str, Figures] | Sequence[str]) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def _verb(names: Mapping[str, Figures] | Sequence[str]) -> str:
    return "does" if len(names) == 1 else "do"
