"""The page of `pays.py`: the claims with what must be reached, and the figures of every section."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dirigent.evals.prove import paired_interval
from dirigent.evals.record import source_commit
from dirigent.learn.deals import Ints
from dirigent.learn.policy_fit import PRICES
from dirigent.learn.selector import Floats

Section = dict[str, Any]

POINTS = ("same", "level", "+1", "most")
COSTS = (176, 260, 460, 640, 900, 1160)

SHIFTS = {
    "shift-worker": "a worker silently at chance",
    "shift-gsm8k": "GSM8K comes as a new kind",
    "shift-math": "MATH comes as a new kind",
}
SHOWN_PRICES = (0.0, 0.03, 0.06, 0.11, 0.22)

MUST_FIXED, GOAL_FIXED = (5, 5, 6, 4, 4, 3), (7, 8, 8, 6, 5.5, 4.5)


class Claim(msgspec.Struct, frozen=True):
    """A figure to reach, and the figure reached, in points unless it says otherwise."""

    name: str
    must: float
    goal: float | None
    value: float
    low: float | None = None
    high: float | None = None
    at_most: bool = False
    above_zero: bool = False
    """The lower bound must be above 0 too."""

    @property
    def met(self) -> str:
        if self.above_zero and (self.low is None or self.low <= 0):
            return "no"
        reached = self.value <= self.must if self.at_most else self.value >= self.must
        if not reached:
            return "no"
        better = self.goal is not None and (self.value <= self.goal if self.at_most else self.value >= self.goal)
        return "goal" if better else "must"


def write(
    work: Path, out: Path, names: Sequence[str], *, seeds: Sequence[int], costs: Sequence[int], curve: Sequence[int]
) -> None:
    """The page, the figures as JSON and every question's outcome, from the sections that are there."""
    found = {
        name: json.loads((work / f"{name}.json").read_text()) for name in names if (work / f"{name}.json").is_file()
    }
    claims = _claims(found, seeds)
    figures = {
        name: {k: v for k, v in one.items() if k not in ("ids", "right", "at", "seconds")}
        for name, one in found.items()
    }
    for name, one in found.items():
        if name.startswith("roles-"):
            figures[name]["at"] = {m: {x: float(np.mean(v)) for x, v in row.items()} for m, row in one["at"].items()}
            figures[name]["selector"] = {k: v for k, v in one["selector"].items() if k != "difference"}
        elif "at" in one:
            figures[name]["at"] = one["at"]
    missing = [name for name in names if name not in found]
    text = {"commit": asyncio.run(source_commit()), "claims": claims, "missing": missing, "sections": figures}
    out.write_bytes(msgspec.json.format(msgspec.json.encode(text), indent=1) + b"\n")
    out.with_suffix(".md").write_text(_page(claims, found, missing, seeds, curve), encoding="utf-8")
    kept = {name: {k: one[k] for k in ("ids", "at", "right") if k in one} for name, one in found.items()}
    with gzip.GzipFile("", "wb", 9, out.with_suffix(".outcomes.json.gz").open("wb"), mtime=0) as packed:
        packed.write(json.dumps({name: one for name, one in kept.items() if "ids" in one}).encode())


def _claims(found: dict[str, Section], numbers: Sequence[int]) -> list[Claim]:
    claims: list[Claim] = []
    seeds = [found[f"roles-{seed}"] for seed in numbers if f"roles-{seed}" in found]
    if seeds:
        claims += _roles_claims(seeds)
    if "split" in found:
        for x, row in found["split"]["rows"].items():
            claims.append(
                _claim(f"train to test splits: over the best fixed plan at {x}", 0, None, row["over fixed"], True)
            )
    if "curve-300" in found:
        draws = [draw["rows"]["460"]["over fixed"] for draw in found["curve-300"]["draws"]]
        mean = [float(np.mean([draw[i] for draw in draws])) for i in range(3)]
        claims.append(_claim("300 graded questions: over fixed plans chosen from the same 300, at 460", 4, None, mean))
    for family in ("bbh", "crux"):
        if section := found.get(f"without-{family}"):
            worst = min(row["difference"][0] for row in section["rows"])
            claims.append(
                Claim(
                    f"{family} left out: points under the plain fixed plan, at its cost (worst)",
                    2,
                    1,
                    -100 * worst,
                    at_most=True,
                )
            )
    for name in SHIFTS:
        if name in found:
            shown = f"{SHIFTS[name]}: per cent of the lost utility restored by 500 labels"
            claims.append(Claim(shown, 90, None, 100 * _restored(found[name]["rows"])))
    if "mbpp" in found:
        claims.append(_claim("MBPP apart: per cent right at 320", 72, None, found["mbpp"]["interval"]))
    claims += _recorded_claims(found)
    return claims


def _roles_claims(seeds: Sequence[Section]) -> list[Claim]:
    def over(other: str, x: int) -> list[float]:
        diffs = [np.array(s["at"]["learned"][str(x)]) - np.array(s["at"][other][str(x)]) for s in seeds]
        mean = np.mean(diffs, axis=0)
        return difference(mean, np.arange(len(mean)))

    claims = []
    for x, must, goal in zip(COSTS, MUST_FIXED, GOAL_FIXED, strict=True):
        claims.append(_claim(f"roles: over the best role or mix of fixed plans at {x}", must, goal, over("fixed", x)))
    claims.append(
        _claim("roles: over one fixed order with the same selector and stop at 176", 4, 6, over("one order", 176))
    )
    for x in (460, 640, 900):
        name = f"roles: over one fixed order with the same selector and stop at {x}"
        claims.append(_claim(name, 1, 2, over("one order", x), True))
    for x in (460, 640):
        claims.append(_claim(f"roles: over the equal-cost vote of the best role at {x}", 8, None, over("vote", x)))
    picks = np.mean([s["selector"]["difference"] for s in seeds], axis=0)
    claims.append(
        _claim("roles: selector over plurality with ties to programs", 2, 3.3, difference(picks, np.arange(len(picks))))
    )
    return claims


def _recorded_claims(found: dict[str, Section]) -> list[Claim]:
    claims = []
    for name, shown, must, goal in (
        ("frontier", "nine models on GSM8K, MATH-L5 and CRUX", 0.52, 0.42),
        ("gsm8k", "ten models on GSM8K", 0.30, 0.20),
    ):
        if name in found:
            point = found[name]["points"]["same"]
            claims.append(Claim(f"{shown}: `same` at this share of the cost", must, goal, point["cost"], at_most=True))
            claims.append(_claim(f"{shown}: points gained at `same`", -1, None, point["gain"]))
    if "frontier" in found:
        diffs, shares = found["frontier"]["front"]
        claims.append(Claim("nine models: points gained at 1.4x cost", 1.2, 2, 100 * _interpolated(diffs, shares, 1.4)))
    if "mmlu-pro" in found:
        diffs, shares = found["mmlu-pro"]["front"]
        claims.append(Claim("MMLU-Pro: points gained at 1.4x cost", 1, None, 100 * _interpolated(diffs, shares, 1.4)))
    for name, shown in (("math-l5", "MATH-L5"), ("cruxeval", "CRUX")):
        if name in found:
            high = found[name]["points"]["same"]["gain"][2]
            claims.append(Claim(f"{shown} alone: upper bound of points lost to the best single", 0, None, 100 * high))
    if "llmrouter" in found:
        section = found["llmrouter"]
        reached = 100 * (section["best single"] + section["points"]["most"]["gain"][0])
        claims.append(Claim("LLMRouter, one worker a question: per cent", 68.5, 70, reached))
    return claims


def _restored(rows: dict[str, list[float]]) -> float:
    """What 500 labels bring back of what the old policy loses against learning anew, over all prices."""
    old, new, most = (
        float(np.sum(rows[name]))
        for name in ("after it, the old policy", "after 500 labels", "learned anew from everything")
    )
    return (new - old) / (most - old)


def _claim(name: str, must: float, goal: float | None, found: Sequence[float], above_zero: bool = False) -> Claim:
    value, low, high = (100 * one for one in found)
    return Claim(name, must, goal, value, low, high, above_zero=above_zero)


def _interpolated(values: Sequence[float], places: Sequence[float], at: float) -> float:
    order = np.argsort(places)
    return float(np.interp(at, np.array(places)[order], np.array(values)[order]))


def _page(
    claims: Sequence[Claim],
    found: dict[str, Section],
    missing: Sequence[str],
    numbers: Sequence[int],
    curve: Sequence[int],
) -> str:
    lines = [
        "# Does a learned policy pay?",
        "",
        "Recorded answers of real models, replayed: `make pays DATA=FOLDER` makes this page. Policies are fitted, and",
        "their settings chosen, on training folds and asked on the others; costs are interpolated question by question",
        "between two settings of a method. Intervals are 95%, paired by question. Equality of answers never uses the",
        "right answer. The plain fixed plans are every vote of recorded calls (ties to programs) and 23 orders that",
        "stop when two or three answers agree; for each price the best on the training folds. Operating points of",
        "recorded models are chosen by the outcomes of the other folds: `same` is the cheapest that loses less than a",
        "point (one-sided 95%), or else one call of the best single worker; `level` is the cheapest that is right as",
        "often as that worker.",
        "",
        "<!-- pays-claims -->",
        "| what | must | goal | reached | 95% | met |",
        "|---|---|---|---|---|---|",
    ]
    for c in claims:
        interval = "" if c.low is None or c.high is None else f"{c.low:+.1f} to {c.high:+.1f}"
        goal = "" if c.goal is None else f"{c.goal:g}"
        lines.append(
            f"| {c.name} | {'<= ' if c.at_most else ''}{c.must:g} | {goal} | {c.value:.2f} | {interval} | {c.met} |"
        )
    lines += ["<!-- /pays-claims -->", "", *_roles_tables(found, numbers, curve), *_other_tables(found)]
    if missing:
        lines += ["", f"Not computed in this run: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _roles_tables(found: dict[str, Section], numbers: Sequence[int], curve: Sequence[int]) -> list[str]:
    seeds = [found[f"roles-{seed}"] for seed in numbers if f"roles-{seed}" in found]
    if not seeds:
        return []
    header = "| per cent right at equal cost | " + " | ".join(map(str, COSTS)) + " |"
    lines = [
        f"## One 1.5B model in roles, {len(seeds)} fold seed(s), 2,040 questions",
        "",
        "<!-- pays-roles -->",
        header,
    ]
    lines.append("|---" * (len(COSTS) + 1) + "|")
    for method in seeds[0]["at"]:
        values = [100 * np.mean([np.mean(s["at"][method][str(x)]) for s in seeds]) for x in COSTS]
        lines.append(f"| {method} | " + " | ".join(f"{v:.1f}" for v in values) + " |")
    for name, shown in (
        ("no-agreement", "learned, the selector sees no agreement"),
        ("no-text", "learned, without the question's text"),
        ("plurality", "learned, plurality in place of the selector"),
        ("label-free", "learned from agreement, without labels"),
    ):
        if name in found:
            lines.append(f"| {shown} | " + " | ".join(f"{100 * found[name]['at'][str(x)]:.1f}" for x in COSTS) + " |")
    for count in curve:
        if section := found.get(f"curve-{count}"):
            for method in ("learned", "fixed"):
                values = [np.mean([100 * draw["rows"][str(x)][method] for draw in section["draws"]]) for x in COSTS]
                lines.append(
                    f"| {method}, from {count} graded questions | " + " | ".join(f"{v:.1f}" for v in values) + " |"
                )
    if "split" in found:
        rows = found["split"]["rows"]
        for method in ("learned", "fixed", "vote"):
            values = " | ".join(f"{100 * rows[str(x)][method]:.1f}" for x in COSTS)
            lines.append(f"| {method}, from train splits on {found['split']['test']} test questions | {values} |")
    return [*lines, "<!-- /pays-roles -->", ""]


def _other_tables(found: dict[str, Section]) -> list[str]:
    lines = [
        "## Recorded models",
        "",
        "<!-- pays-recorded -->",
        "| set | questions | best single | oracle | " + " | ".join(f"{point}: gain, cost" for point in POINTS) + " |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, section in found.items():
        if "points" not in section:
            continue
        cells = []
        for point in POINTS:
            gain, cost = section["points"][point]["gain"], section["points"][point]["cost"]
            cells.append(f"{100 * gain[0]:+.1f} [{100 * gain[1]:+.1f} to {100 * gain[2]:+.1f}], {cost:.2f}x")
        shares = f"{100 * section['best single']:.1f} | {100 * section['oracle']:.1f}"
        lines.append(f"| {name} | {section['questions']:,} | {shares} | {' | '.join(cells)} |")
    lines += ["<!-- /pays-recorded -->", ""]
    for family in ("bbh", "crux"):
        if section := found.get(f"without-{family}"):
            lines += [
                f"## {family} left out of calibration",
                "",
                f"{section['questions']} questions, {100 * section['novel']:.0f}% of them found novel.",
                "",
                f"<!-- pays-without-{family} -->",
                "| plain plan | its cost | right | policy at that cost | difference |",
                "|---|---|---|---|---|",
            ]
            for row in {tuple(row["plan"]): row for row in section["rows"]}.values():
                gain = row["difference"]
                shares = f"{row['cost']:.0f} | {100 * row['plain']:.1f} | {100 * row['policy']:.1f}"
                interval = f"{100 * gain[0]:+.1f} [{100 * gain[1]:+.1f} to {100 * gain[2]:+.1f}]"
                lines.append(f"| {', '.join(row['plan'])} | {shares} | {interval} |")
            lines += [f"<!-- /pays-without-{family} -->", ""]
    for name, shown in SHIFTS.items():
        if section := found.get(name):
            lines += _shift_table(name, shown, section)
    return lines


def _shift_table(name: str, shown: str, section: Section) -> list[str]:
    places = [PRICES.index(price) for price in SHOWN_PRICES]
    about = f"{section['questions']} test questions; 500 others were explored and graded after the shift."
    if "worker" in section:
        out = ", ".join(section["left out"]) or "none"
        about += f" The worker is `{section['worker']}`; found and left out: {out}."
    lines = [
        f"## After a shift: {shown}",
        "",
        about + " Utility: the share of right answers less the price of the cost,",
        "where the price is of one call of the best single worker. An explored request makes every call that the table",
        "holds; explored once in ten requests, 500 labels take 5,000 requests.",
        "",
        f"<!-- pays-{name} -->",
        "| utility at price | " + " | ".join(f"{price:g}" for price in SHOWN_PRICES) + " |",
        "|---" * (len(SHOWN_PRICES) + 1) + "|",
    ]
    for row, values in section["rows"].items():
        lines.append(f"| {row} | " + " | ".join(f"{100 * values[place]:.1f}" for place in places) + " |")
    return [*lines, f"<!-- /pays-{name} -->", ""]


def difference(diff: Floats, groups: Ints) -> list[float]:
    """The mean difference and its 95% interval."""
    low, high = paired_interval(diff, groups)
    return [float(diff.mean()), low, high]
