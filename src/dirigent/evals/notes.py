"""Notes: what stands beside a report's tables, so that no figure is read for what it is not.

Sentences made of what the report itself holds, and empty where there is nothing to say; the table, the Markdown and the
page show the same ones. Knows no report, only the parts that a sentence is about.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dirigent.evals.sizing import EQUAL_WITHIN, Sizing

SHARED_CALLS = (
    "A greedy call that several planners make alike is made once, and counts for each of them with the seconds it took."
)


def times_note(recipe: Mapping[str, Any]) -> str:
    """How many questions ran at a time: times under load are not what one request takes. And whose times they are,
    where planners share calls."""
    at_a_time = recipe.get("concurrency")
    shared = f" {SHARED_CALLS}" if recipe.get("shared") else ""
    if at_a_time == 1:
        return f"Times are of runs one at a time.{shared}"
    how_many = (
        f"{at_a_time} questions at a time" if at_a_time else "several questions at a time (how many is not recorded)"
    )
    return (
        f"Times (p50, p95, mean) are of runs with {how_many}, which share the machine and its workers: "
        f"they are not the latency of one request.{shared}"
    )


def offered_note(recipe: Mapping[str, Any], planners: Collection[str], notes: Mapping[str, str]) -> str:
    """Why a planner's row is not a worker's: where each question comes with some of the workers, only a table of
    workers alone is over all of them. Nothing where every question is offered all."""
    if "pool_sizes" not in recipe:
        return ""
    low, high = recipe["pool_sizes"]
    said = [
        f"Here every worker is asked every question; a planner has only the {low} to {high} workers that come with it."
    ]
    if best := notes.get("best") if "best" in planners else None:
        said.append(
            f"So best ({best}) is {best} where offered and the next in the ranking elsewhere, "
            "and its row differs from that worker's here."
        )
    if "oracle" in planners:
        said.append("The row oracle is a choice among the workers offered, the line above a choice among all.")
    return " ".join(said)


def unpriced_note(names: Sequence[str]) -> str:
    """Whose price nobody knows, and what that leaves out."""
    if not names:
        return ""
    return (
        f"No price is known for {', '.join(names)}: the cost of whoever asked {'it' if len(names) == 1 else 'one'} is "
        "unknown, never taken for nothing, and left out of the Pareto front and of comparisons at equal cost."
    )


def planning_note(at_home: Collection[str]) -> str:
    """What a cost leaves out where the planner is a model of ours on this machine."""
    if not at_home:
        return ""
    one = len(at_home) == 1
    return (
        f"What {' and '.join(sorted(at_home))} {'takes' if one else 'take'} for planning is counted in tokens "
        f"(orchestration) and not in cost: {'it runs' if one else 'they run'} on this machine and "
        f"{'has' if one else 'have'} no price."
    )


def sizes_note(sizes: Mapping[str, Sizing]) -> str:
    """What was to cost as much as another planner, and what it really cost; or why it could not be made to."""
    said = [_sized_words(name, sizing) for name, sizing in sizes.items()]
    if any(sizing.ratio is not None for sizing in sizes.values()):
        said.append(
            "The number of samples follows from what was spent on these very questions, never from a grade. "
            f"Costs are called equal, and compared so, where they are within {EQUAL_WITHIN:.0%}."
        )
    return " ".join(said)


def _sized_words(name: str, sizing: Sizing) -> str:
    if sizing.ratio is None:
        return f"{name} was not sized by anybody's cost: {sizing.why_not}."
    said = f"{name} cost {sizing.ratio:.2f} x {sizing.measure}'s"
    if sizing.bound == "least":
        said += ", which cost less than one sample does: equal cost is impossible"
    elif sizing.bound == "most":
        said += ", with the most samples that a plan has room for: equal cost is impossible"
    return f"{said}."
