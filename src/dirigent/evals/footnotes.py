"""Footnotes: the sentences under a report's tables, so that no figure is read for what it is not.

Each is made of what the report holds, and empty if there is nothing to say; the terminal, the Markdown and the page
show the same ones. `Weights` and `Earlier` say where the row of a trained planner comes from: its weights have a card
that says what their figures may claim, and the row itself may be of an earlier report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dirigent.evals.equal_cost import EQUAL_COST, EQUAL_WITHIN, Sizing, equal
from dirigent.evals.metrics import Figures
from dirigent.planners import find_planner, parse_name
from dirigent.planners.spec import kinds_of


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Whose figures they are: a trained adapter, as its card says."""

    recipe: str
    commit: str
    """Of this repository, when it was trained."""
    sha256: str
    claims: str = ""
    """What its figures may claim, said so that its name can stand before it."""


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """When a row was measured that is not of this evaluation."""

    commit: str
    date: str


NOT_AGAIN = (
    "{names} {was} not asked again: times are of that run, and paired differences, which need the outcomes of each "
    "question, are left empty."
)


def origins_note(planners: Collection[str], weights: Mapping[str, Weights], earlier: Mapping[str, Earlier]) -> str:
    """What must stand under a table with these planners; nothing where no card claims anything and all were asked."""
    kinds = kinds_of(planners)
    then = [name for name in kinds if name in earlier]
    now = [name for name in kinds if name not in earlier]
    claims = {name: weights[name].claims.rstrip(". ") for name in (*then, *now) if name in weights}
    parts = [_measured(name, earlier[name], claims.get(name, "")) for name in then]
    for number, name in enumerate(now):
        if claimed := claims.get(name):
            said_before = claimed in (claims.get(other) for other in now[:number])
            parts.append(f"`{name}` {'likewise' if said_before else claimed}")
    if not parts:
        return ""
    said = "; ".join(parts) + "."
    names = " and ".join(f"`{name}`" for name in then)
    return f"{said} {NOT_AGAIN.format(names=names, was='was' if len(then) == 1 else 'were')}" if then else said


def _measured(name: str, when: Earlier, claimed: str) -> str:
    said = f"`{name}` was measured at commit `{when.commit[:7] or 'unknown'}`, on {when.date or 'an unknown day'}"
    return f"{said}: it {claimed}" if claimed else said


SHARED_CALLS = (
    "A greedy call that several planners make alike is made once, and counts for each of them with the seconds it took."
)

ONLY_EQUAL = 'A dash under "vs equal cost": only rows that cost as much as the vote are compared with it.'

SAME_ROW = ("n", "accuracy", "valid", "steps", "steps_histogram", "worker_shares", "by_kind")
"""What is alike in two rows whose plans and answers are."""


def times_note(recipe: Mapping[str, Any]) -> str:
    """How many questions ran at a time: times under load are not what one request takes. And whose times they are,
    where planners share calls."""
    at_a_time = recipe.get("concurrency")
    if is_replay(recipe):
        many = f", {at_a_time} questions at a time" if at_a_time else ""
        return f"Times (p50, p95, mean) are of the replay{many}: they say nothing of the models."
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


def is_replay(recipe: Mapping[str, Any]) -> bool:
    """Whether answers came from a file: only there are questions dealt into folds."""
    return "folds" in recipe


def replay_note(recipe: Mapping[str, Any]) -> str:
    """What recorded answers cannot tell."""
    if not is_replay(recipe):
        return ""
    return (
        "Answers are recorded ones. Tokens that the file does not count are estimated, four characters each, and costs "
        "with them. Each model answered once, so nothing is compared with self-consistency at equal cost."
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


def left_out_note(tasks: Mapping[str, Any], planners: Collection[str]) -> str:
    """Which planners cannot work on these questions by construction, and why; those in the table are not named."""
    cannot: Mapping[str, str] = tasks.get("cannot", {})
    reasons: dict[str, list[str]] = {}
    for name, why in cannot.items():
        if name not in kinds_of(planners):
            reasons.setdefault(why, []).append(name)
    if not reasons:
        return ""
    said = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
    return f"Not in the table, because they cannot work on these questions: {said}."


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


def standing_note(rows: Mapping[str, Figures]) -> str:
    """Whose later rounds changed nothing: a row in two rounds that is the row in one, but for what asking took."""
    return " ".join(_standing_words(name) for name, row in rows.items() if _let_stand(row, rows.get(_in_one(name))))


def _in_one(name: str) -> str:
    """The planner in one round, of one whose number counts rounds; else nobody."""
    parsed = parse_name(name)
    spec = find_planner(parsed.kind)
    trained = spec is not None and spec.planned_by == "trained worker"
    return parsed.kind if trained and (parsed.number or 1) > 1 else ""


def _let_stand(row: Figures, one: Figures | None) -> bool:
    """Who was asked counts all rounds, so it tells of a plan that was made again even where nobody counted those."""
    if one is None or not row.n or row.planned_again:
        return False
    return all(getattr(row, field) == getattr(one, field) for field in SAME_ROW)


def _standing_words(name: str) -> str:
    which = "second round" if name.endswith(":2") else "later rounds"
    return (
        f"{name}'s {which} left every answer standing: no question was planned again, and its row differs from "
        f"{_in_one(name)}'s only by what asking again took."
    )


def sizes_note(sizes: Mapping[str, Sizing]) -> str:
    """What was to cost as much as another planner, and what it really cost; or why it could not be made to."""
    said = [words for name, sizing in sizes.items() for words in _sized_words(name, sizing)]
    if any(one.ratio is not None for sizing in sizes.values() for one in (sizing, *_by_task(sizing).values())):
        said.append(
            "The number of samples follows from what was spent on these very questions, never from a grade. "
            f"Costs are called equal, and compared so, where they are within {EQUAL_WITHIN:.0%}."
        )
    return " ".join(said)


def _sized_words(name: str, sizing: Sizing) -> Iterator[str]:
    """Of all tasks together, then of those that went otherwise: where cost did not come out equal, or nothing could be
    sized. Where that is so of some tasks only, nothing can be said of all."""
    by_task = _by_task(sizing)
    mixed = sizing.ratio is None and any(one.ratio is not None for one in by_task.values())
    if not mixed:
        yield _words(name, sizing)
    for task, one in by_task.items():
        if mixed or (sizing.ratio is not None and not equal(one.cost_usd, one.target_usd)):
            yield f"On {task}, {_words(name, one)}"


def _words(name: str, sizing: Sizing) -> str:
    if sizing.ratio is None:
        return f"{name} was not sized by anybody's cost: {sizing.why_not}."
    said = f"{name} cost {sizing.ratio:.2f} x {sizing.measure}'s"
    if sizing.bound == "least":
        said += ", which cost less than one sample does: equal cost is impossible"
    elif sizing.bound == "most":
        said += ", with the most samples that a plan has room for: equal cost is impossible"
    return f"{said}."


def _by_task(sizing: Sizing) -> Mapping[str, Sizing]:
    return {} if isinstance(sizing.by_task, msgspec.UnsetType) else sizing.by_task


def equal_cost_note(tables: Iterable[Mapping[str, Figures]], sizes: Mapping[str, Sizing]) -> str:
    """Why some rows are not compared with the vote; nothing where no vote was to cost as much, or all rows are."""
    if EQUAL_COST not in sizes:
        return ""
    compared = [row.versus_equal_cost for rows in tables for name, row in rows.items() if name != EQUAL_COST and row.n]
    return ONLY_EQUAL if None in compared else ""
