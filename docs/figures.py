"""Fill the figures of README.md and of these pages from docs/results: no measured figure is typed by hand.

A figure is between two comments. The first names its format and its place in a results file:

    right in <!-- = % gym/planners/conductor/accuracy -->88.8%<!-- = -->

The place is the file without `.json`, then keys. In a list, a key is an index or the `name` (or `row`) of an element.
A file that ends in `.jsonl` is a list of its lines. Tables are between marks with a name, and functions here write
them. `docs/generate.py` calls `with_figures` for every page.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from dirigent.evals.front import Mark, svg_front

FIGURE = re.compile(r"<!-- = (\S+) (.+?) -->.*?<!-- = -->", re.DOTALL)
BLOCK = re.compile(r"<!-- (\S+) -->\n(.*?)<!-- /\1 -->", re.DOTALL)

FORMATS: dict[str, Callable[[Any], str]] = {
    "%": lambda share: f"{100 * share:.1f}%",
    "%0": lambda share: f"{100 * share:.0f}%",
    "100": lambda share: f"{100 * share:.1f}",
    "100_0": lambda share: f"{100 * share:.0f}",
    "points": lambda share: f"{100 * share:+.1f}".replace("-", "−"),
    "+": lambda number: f"{number:+.1f}".replace("-", "−"),
    "minus": lambda share: f"{abs(100 * share):.1f}",
    ",": lambda count: f"{count:,.0f}",
    ".1": lambda number: f"{number:.1f}",
    ".2": lambda number: f"{number:.2f}",
    ".3": lambda number: f"{number:.3f}",
    "ms": lambda seconds: f"{1000 * seconds:.0f} ms",
    "text": str,
    "commit": lambda commit: f"`{commit[:7]}`",
}
"""How a value is written. A value with a lower and an upper bound is written as both, with a dash between them."""


class UnknownFigure(Exception):
    """A page names a place that no results file has."""


def with_figures(text: str, results: Path, *, page: str = "") -> str:
    """Returns the page with every figure and table from docs/results written anew."""

    def figure(found: re.Match[str]) -> str:
        format_, place = found[1], found[2]
        try:
            written = _written(format_, value_at(results, place))
        except UnknownFigure as error:
            raise UnknownFigure(f"{page}: {error}") from None
        return f"<!-- = {format_} {place} -->{written}<!-- = -->"

    def table(found: re.Match[str]) -> str:
        make = TABLES.get(found[1])
        return found[0] if make is None else f"<!-- {found[1]} -->\n{make(results)}\n<!-- /{found[1]} -->"

    return FIGURE.sub(figure, BLOCK.sub(table, text))


def value_at(results: Path, place: str) -> Any:
    """Returns the value at a place such as `must/table/share of the ceiling/value`."""
    file, *keys = place.split("/")
    value = _read(results / (file if file.endswith(".jsonl") else f"{file}.json"))
    for key in keys:
        value = _member(value, key, place)
    return value


def _member(value: Any, key: str, place: str) -> Any:
    if isinstance(value, Mapping) and key in value:
        return value[key]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if key.isdecimal() and int(key) < len(value):
            return value[int(key)]
        for element in value:
            if isinstance(element, Mapping) and key in (element.get("name"), element.get("row")):
                return element
    raise UnknownFigure(f"docs/results has nothing at {place}: {key!r} is missing")


def _written(format_: str, value: Any) -> str:
    if format_ not in FORMATS:
        raise UnknownFigure(f"no format is called {format_!r}; there are {', '.join(FORMATS)}")
    if isinstance(value, list):
        return "–".join(FORMATS[format_](bound) for bound in value)
    return FORMATS[format_](value)


@functools.cache
def _read(file: Path) -> Any:
    if not file.exists():
        raise UnknownFigure(f"there is no {file.name} in docs/results")
    text = file.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)


# Tables.

GYM_ROWS = {
    "best": "the best worker alone",
    "ask-all": "`ask-all`: every worker once on the whole question",
    "knn": "`knn`: the worker that did best on similar questions",
    "oracle": "the right choice of one worker, with hindsight",
    "warm-start": "the conductor before RL",
    "conductor": "**the conductor**",
    "spans": "`spans`: no training, every worker on every span",
    "right": "each question's own plan",
}


def gym_first_page(results: Path) -> str:
    """The gym's planners over the trained specialists and over exact ones, with the calls of an answer."""
    local, exact = (_read(results / f"{name}.json")["planners"] for name in ("gym-local", "gym"))
    rows = [
        "| planner | right, specialists | right, tables | worker calls a question | right per call |",
        "|---|---|---|---|---|",
    ]
    for planner, about in GYM_ROWS.items():
        here, there = local.get(planner), exact.get(planner)
        if here is None and there is None:
            continue
        counted = next((row for row in (here, there) if row and row.get("worker_calls")), None)
        calls = counted["worker_calls"] if counted else (here or there)["steps"]
        per_call = (here or there)["accuracy"] / calls
        rows.append(f"| {about} | {_share(here)} | {_share(there)} | {calls:,.1f} | {100 * per_call:.1f} |")
        if planner == "ask-all":
            rows.append(f"| one adapter, from question to answer | – | {100 * direct_accuracy(results):.1f} | – | – |")
    return "\n".join(rows)


def direct_accuracy(results: Path) -> float:
    """Accuracy of the adapter trained from question to answer: the accuracy of its rival (seed 1's, the highest) minus
    the measured difference."""
    table = _read(results / "claims.json")["table"]
    rival = _member(table, "right answers", "claims")["spread"][1]
    return float(rival - _member(table, "(a) conductor over one adapter, question to answer", "claims")["value"])


def _share(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    low, high = row["interval"]
    return f"{100 * row['accuracy']:.1f} ({100 * low:.1f}–{100 * high:.1f})"


RECORDED = {
    "recorded_zeroeval_gsm8k": "GSM8K",
    "recorded_zeroeval_math_l5": "MATH level 5",
    "recorded_mmlu_pro": "MMLU-Pro",
}
RECORDED_COLUMNS = {
    "best": "best worker alone",
    "vote": "vote of three",
    "knn": "kNN router",
    "oracle": "right worker each time",
}


def recorded_first_page(results: Path) -> str:
    """Accuracy of a few planners over recorded answers of real models."""
    sets = _read(results / "recorded.json")
    rows = [
        f"| right, % | {' | '.join(RECORDED_COLUMNS.values())} |",
        f"|---{'|---' * len(RECORDED_COLUMNS)}|",
    ]
    for name, title in RECORDED.items():
        planners = sets[name]["planners"]
        models = sum(planner.startswith("single:") for planner in planners)
        cells = [f"{100 * planners[planner]['accuracy']:.1f}" for planner in RECORDED_COLUMNS]
        rows.append(f"| {title}: {models} models, {planners['best']['n']:,} questions | {' | '.join(cells)} |")
    return "\n".join(rows)


def torture_rows(results: Path) -> str:
    """The counts of the torture suite, a line for each row."""
    rows = ["| row | done of wanted | figures | took |", "|---|---|---|---|"]
    for row in _read(results / "torture.jsonl"):
        figures = row["figures"] if isinstance(row["figures"], str) else _figures(row["figures"])
        rows.append(f"| {row['row']} | {row['done']:,} of {row['wanted']:,} | {figures} | {row['seconds']:.0f} s |")
    return "\n".join(rows)


def _figures(figures: Mapping[str, Any]) -> str:
    shown = {
        name: f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        for name, value in figures.items()
    }
    return "; ".join(f"{name} {value}" for name, value in shown.items())


def overhead_rows(results: Path) -> str:
    """CPU and latency of the server against a bare proxy and against others', by requests at a time."""
    found = _read(results / "overhead.json")
    levels = list(found["worker_ratio"])
    versions = found["versions"]
    peers = {"litellm": "LiteLLM's proxy", "switchyard": "Switchyard"}
    lines: list[tuple[str, list[str]]] = [
        ("bare aiohttp proxy, CPU a request", [f"{found['bare_cpu_ms'][n]:.2f} ms" for n in levels]),
        ("`worker/NAME`, CPU a request", [f"{found['worker_cpu_ms'][n]:.2f} ms" for n in levels]),
        ("`worker/NAME`, multiple of the bare proxy", [f"{found['worker_ratio'][n]:.1f}x" for n in levels]),
        ("a plan of one step, multiple of the bare proxy", [f"{found['plan_ratio'][n]:.1f}x" for n in levels]),
        *(
            (
                f"{about} {versions[name]}, multiple of `worker/NAME`",
                [f"{found['peer_ratio'][name][n]:.1f}x" for n in levels],
            )
            for name, about in peers.items()
            if name in found["peer_ratio"]
        ),
    ]
    head = ["| requests at a time | " + " | ".join(levels) + " |", "|---" * (len(levels) + 1) + "|"]
    return "\n".join([*head, *(f"| {about} | {' | '.join(cells)} |" for about, cells in lines)])


def demo(results: Path) -> str:
    """What `dirigent demo` printed, as it was printed."""
    printed = (results / "demo.txt").read_text(encoding="utf-8").strip()
    return f"```text\n$ make demo\n{printed}\n```"


def everyday_development(results: Path) -> str:
    """The development questions of the embedded pool: who was right how often, on which half of them."""
    rows = json.loads((results / "everyday-development.json").read_bytes())["rows"]
    prose = {"facts", "words", "writing"}
    lines = ["| | right, a value or a list is asked for | right, other questions |", "|---|---|---|"]
    for worker in ("calculator", "programmer", "plain"):
        cells = []
        for is_prose in (False, True):
            marks = [row[worker]["right"] for row in rows if worker in row and (row["kind"] in prose) == is_prose]
            cells.append(f"{sum(marks)} of {len(marks)}" if marks else "–")
        lines.append(f"| `{worker}` | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def everyday_twenty(results: Path) -> str:
    """The twenty everyday questions, by the plan and in one plain call."""
    rows = json.loads((results / "everyday.json").read_bytes())["rows"]
    lines = ["| | right | median tokens written | all tokens |", "|---|---|---|---|"]
    for way in ("plan", "plain"):
        right, tokens = ([row[way][name] for row in rows] for name in ("right", "tokens"))
        lines.append(f"| {way} | {sum(right)} of {len(rows)} | {median(tokens):g} | {sum(tokens):,} |")
    return "\n".join(lines)


def embedded_front(results: Path) -> str:
    """The front of one small model in roles, as an SVG: means over the fold seeds of `pays.json`."""
    sections = json.loads((results / "pays.json").read_bytes())["sections"]
    seeds = [found for name, found in sections.items() if re.fullmatch(r"roles-\d+", name)]

    def marks(method: str) -> list[Mark]:
        fronts = [found["front"][method] for found in seeds]
        shares, costs = ([fmean(values) for values in zip(*part, strict=True)] for part in zip(*fronts, strict=True))
        return [Mark(method, cost, share) for cost, share in zip(costs, shares, strict=True) if cost >= CHEAPEST]

    best = Mark("the best role, one call", fmean(s["single_cost"] for s in seeds), fmean(s["single"] for s in seeds))
    return svg_front(
        marks("learned"),
        [best],
        title="One model of 1.5 billion parameters in roles: learned policy (dots) and fixed plans",
        unit="output tokens",
        rivals={"fixed plans": marks("fixed"), "votes": marks("vote")},
    )


CHEAPEST = 75.0
"""Cheaper fixed plans guess: they are left out of the picture."""


TABLES: dict[str, Callable[[Path], str]] = {
    "demo": demo,
    "everyday-development": everyday_development,
    "everyday-twenty": everyday_twenty,
    "gym-first-page": gym_first_page,
    "overhead-rows": overhead_rows,
    "recorded-first-page": recorded_first_page,
    "torture-rows": torture_rows,
}
