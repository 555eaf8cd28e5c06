"""The page of `real.py`: what must be shown, the fronts at equal cost, the seeds, and plans to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Claim(msgspec.Struct, frozen=True):
    """A difference in points, with its bounds."""

    name: str
    must: float | None
    goal: float | None
    value: float
    low: float
    high: float
    above_zero: bool = False
    """The lower bound must be above 0 too."""
    at_most: bool = False
    by_seed: tuple[float, ...] = ()

    @property
    def met(self) -> str:
        if self.must is None:
            return "reported"
        if self.above_zero and self.low <= 0:
            return "no"
        if not self._reaches(self.must):
            return "no"
        return "goal" if self.goal is not None and self._reaches(self.goal) else "must"

    def _reaches(self, bound: float) -> bool:
        return self.value <= bound if self.at_most else self.value >= bound


NOT_HERE = {
    "the 1.5B prompted under a grammar, and the tuned one": "they need live plans of the 1.5B model",
    "written subtasks swapped for fixed role instructions": "phase 2, with live workers",
    "MBPP": "its replies are programs without an answer that can be compared, so no set of samples has a value",
    "MoA with six proposals and self-reflection over several turns": "only one review, repair or judge was recorded",
}
"""Lines of the table that recorded answers cannot fill, and why."""


def page(found: Mapping[str, Any], *, rehearsal: bool) -> str:
    """The page as Markdown."""
    questions: Mapping[str, int] = found["questions"]
    seeds: Mapping[str, Any] = found["seeds"]
    parts = ["# The conductor on real questions", ""]
    if rehearsal:
        parts += ["**A rehearsal: stand-ins wrote these plans, and no figure here is a result.**", ""]
    parts += [
        f"SmolLM2-135M plans over Qwen2.5-Coder-1.5B in roles, on recorded answers to {sum(questions.values()):,} test",
        f"questions ({', '.join(f'{kind} {count}' for kind, count in questions.items())}). Sets count alike.",
        "Accuracy in per cent at equal total cost, the",
        f"conductor's prompt and plan included; {len(seeds)} seeds, their mean. Made by `benchmarks/real.py`.",
        "",
        "## What it must show",
        "",
        *_rows(
            ("against", "must", "goal", "reached", "95% interval", "met", "by seed"), map(_claim_row, found["claims"])
        ),
        "",
        "## Accuracy at equal cost",
        "",
        *_front(found["at"]),
    ]
    for kind, methods in found["by_set"].items():
        parts += ["", f"### {kind}", "", *_front(methods)]
    parts += ["", "## Seeds", ""]
    parts += _rows(
        ("seed", "utility: training", "development", "test", "gap in points", "greedy plans valid"),
        (
            (
                name,
                *(f"{facts[split]['utility']:.3f}" if split in facts else "-" for split in ("train", "dev", "test")),
                f"{facts['gap']:+.1f}" if "gap" in facts else "-",
                f"{100 * min(facts['test'][key] for key in facts['test'] if key.endswith('/valid')):.1f}%",
            )
            for name, facts in seeds.items()
        ),
    )
    parts += ["", "## Workers asked, by difficulty", ""]
    prices = list(next(iter(found["steps"].values())))
    parts += _rows(
        ("questions", *(f"{price}: planned, asked" for price in prices)),
        (
            (band, *("-" if row[p]["asks"] is None else f"{row[p]['asks']:.1f}, {row[p]['calls']:.1f}" for p in prices))
            for band, row in found["steps"].items()
        ),
    )
    parts += [
        "",
        "## Plans to look at",
        "",
        "Of the first seed at the price `low`, against the best fixed order: three that gained most, then",
        "three that lost most.",
    ]
    for one in found["plans"]:
        text = " ".join(one["question"].split())
        parts += [
            "",
            f"- {text}",
            f"  `{one['plan']}`: right {one['right']:.2f}, {one['cost']:.0f} units, {one['gain']:+.2f}",
        ]
    parts += ["", "## Not here", ""]
    parts += [f"- {name}: {why}." for name, why in NOT_HERE.items()]
    if found["missing"]:
        parts.append(f"- Runs that were not made: {', '.join(found['missing'])}.")
    if not found["second_steps"]:
        parts.append("- `mini`, self-reflection, repair and judge: they need `--table`.")
    return "\n".join(parts) + "\n"


def _claim_row(claim: Claim) -> tuple[str, ...]:
    def bound(value: float | None) -> str:
        return "" if value is None else f"{'at most ' if claim.at_most else ''}{value:+g}"

    must = bound(claim.must) + (", lower bound above 0" if claim.above_zero else "")
    return (
        claim.name,
        must,
        bound(claim.goal),
        f"{claim.value:+.1f}",
        f"{claim.low:+.1f} to {claim.high:+.1f}",
        claim.met,
        " / ".join(f"{value:+.1f}" for value in claim.by_seed),
    )


def _front(methods: Mapping[str, Mapping[str, float]]) -> list[str]:
    costs = list(next(iter(methods.values())))
    return _rows(("", *costs), ((name, *(f"{100 * at[cost]:.1f}" for cost in costs)) for name, at in methods.items()))


def _rows(head: Sequence[str], rows: Any) -> list[str]:
    return [f"| {' | '.join(one)} |" for one in (head, ["---"] * len(head), *rows)]
