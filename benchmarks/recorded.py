"""Does combining models pay? Every planner that can run on recorded answers, on five sets, with an honest verdict.

    python benchmarks/recorded.py --data FOLDER [--out docs/results/recorded.json] [--limit N]
    python benchmarks/recorded.py                  the pages again, from the existing figures

Replays real models' recorded answers (no key, no cost) and writes the figures as JSON. Beside it come a page over all
sets in Markdown and, of each set, the page with plots that `dirigent eval` makes. Pages are made from the JSON alone,
so no page can show the parts that it leaves out (see `in_short`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from dirigent.errors import ConfigError
from dirigent.evals.evaluate import evaluate
from dirigent.evals.metrics import Figures
from dirigent.evals.page import as_html
from dirigent.evals.planners import EACH, default_planners
from dirigent.evals.record import source_commit
from dirigent.evals.recorded import ESCALATE, RecordedField, load_recorded, usable_planners
from dirigent.evals.report import Report
from dirigent.evals.stats import Difference
from dirigent.evals.tables import unpriced_note

SETS = (
    "recorded_zeroeval_gsm8k",
    "recorded_zeroeval_math_l5",
    "recorded_zeroeval_cruxeval_o",
    "recorded_mmlu_pro",
    "scores_llmrouter_train",
)

METHODS = tuple(
    name for name in default_planners("recorded") if name not in ("best", "cheapest", "random", "oracle", "ceiling")
)
"""Planners whose plans are worth an example."""

DIGITS = 7
"""The digits of a figure in the JSON, more than any page shows."""

NOTHING: Mapping[str, Any] = {
    field.name: None if type(None) in get_args(field.type) else {}
    for field in msgspec.structs.fields(Figures)
    if type(None) in get_args(field.type) or get_origin(field.type) is dict
}
"""The values of a row's fields that the JSON leaves out."""

GROUPS = tuple(name for name in NOTHING if name.startswith("by_"))

COSTS = "estimated: tokens are characters / 4, hidden reasoning is not in them; prices as recorded.md lists them"


async def main(data: Path | None, out: Path, limit: int | None) -> None:
    if data is not None:
        files = [data / f"{name}.jsonl.gz" for name in SETS]
        if missing := [file.name for file in files if not file.exists()]:
            raise ConfigError(f"{data} lacks {', '.join(missing)}; --data names the folder with all {len(SETS)} sets")
        commit, date = await source_commit(), datetime.now(UTC).date().isoformat()
        write([await measured(file, limit, commit=commit, date=date) for file in files], out)
    write_pages(read(out), out)


async def measured(file: Path, limit: int | None, *, commit: str, date: str) -> Report:
    questions = load_recorded(file, limit=limit)
    planners = [EACH, *usable_planners(questions)]
    report = await evaluate(RecordedField(questions), planners, commit=commit, date=date)
    print(f"{questions.name}: {report.verdict}", flush=True)
    return msgspec.structs.replace(
        report,
        recipe={**report.recipe, "limit": limit or "all", "costs": COSTS, "recipe": "benchmarks/recorded.py"},
        examples=tuple(example for example in report.examples if example.planner in METHODS),
    )


def write(reports: Sequence[Report], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    shortened = {report.tasks["name"]: in_short(report) for report in reports}
    out.write_text(in_lines(shortened, depth=3) + "\n", encoding="utf-8")


def in_short(report: Report) -> dict[str, Any]:
    """The report as JSON without parts that no page reads: digits beyond the seventh, empty fields, and repetitions:
    groups that hold all questions of a row and, if each task has rows, figures by task."""
    found = msgspec.to_builtins(report)
    by_task = ("by_kind",) if report.by_task else ()
    for rows in (found["planners"], *found["by_task"].values()):
        for name, row in rows.items():
            repeated = (*by_task, *(group for group in GROUPS if len(row[group]) == 1))
            rows[name] = {
                field: value
                for field, value in row.items()
                if field not in repeated and (field not in NOTHING or value != NOTHING[field])
            }
    if report.by_task:
        found["capacity"] = {name: of for name, of in found["capacity"].items() if name == "all"}
    return rounded(found)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(of) for name, of in value.items()}
    return [rounded(of) for of in value] if isinstance(value, (list, tuple)) else value


def in_lines(value: Any, *, depth: int) -> str:
    """JSON with a line for each entry down to this depth and deeper entries in one line: short, and easy to diff."""
    if not depth or not isinstance(value, dict) or not value:
        return msgspec.json.encode(value).decode()
    entries = (f"{json.dumps(name)}: {in_lines(of, depth=depth - 1)}" for name, of in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"


def read(out: Path) -> list[Report]:
    """The reports of an earlier run."""
    try:
        found = msgspec.json.decode(out.read_bytes(), type=dict[str, dict[str, Any]])
        return [_whole(report) for report in found.values()]
    except (OSError, msgspec.DecodeError, LookupError) as error:
        raise ConfigError(f"{out} has no figures to make pages of ({error}); make them with  --data FOLDER") from None


def _whole(report: dict[str, Any]) -> Report:
    for rows in (report["planners"], *report["by_task"].values()):
        rows |= {name: {**NOTHING, **row} for name, row in rows.items()}
    hindsight = report["chosen"]["hindsight"]
    hindsight["versus"] = msgspec.convert(hindsight["versus"], dict[str, Difference])
    return msgspec.convert(report, Report)


def write_pages(reports: Sequence[Report], out: Path) -> None:
    out.with_suffix(".md").write_text(page(reports, stem=out.stem), encoding="utf-8")
    for report in reports:
        out.with_name(page_name(report, stem=out.stem)).write_text(as_html(report), encoding="utf-8")


def page_name(report: Report, *, stem: str) -> str:
    """The file of a set's own page."""
    name = report.tasks["name"].removeprefix("recorded_").removeprefix("scores_")
    return f"{stem}-{name.replace('_', '-')}.html"


def page(reports: Sequence[Report], *, stem: str = "recorded") -> str:
    """The Markdown over all sets."""
    first = reports[0]
    parts = [INTRODUCTION.format(folds=first.recipe["folds"], seed=first.recipe["seed"]), summary(reports)]
    parts += [section(report, stem=stem) for report in reports]
    parts += [NOTES, prices(reports), provenance(first)]
    return "\n\n".join(parts) + "\n"


def summary(reports: Sequence[Report]) -> str:
    """One line for each set, which sums up the other tables."""
    names = [name for name in default_planners("recorded") if name not in ("cheapest", "random")]
    rows = []
    for report in reports:
        hindsight = report.chosen["hindsight"]
        cells = [f"{report.planners[n].accuracy * 100:.1f}" if n in report.planners else "–" for n in names]
        rows.append([report.tasks["name"], *cells, f"{hindsight['worker']} {hindsight['accuracy'] * 100:.1f}"])
    return "## In short, accuracy in %\n\n" + table(["set", *names, "best in hindsight"], rows)


def section(report: Report, *, stem: str) -> str:
    hindsight = report.chosen["hindsight"]
    rows = [cells(report, name, row) for name, row in report.planners.items()]
    header = [
        "planner",
        "accuracy (95%)",
        "vs best",
        f"vs {hindsight['worker']} (best in hindsight)",
        "calls",
        "$ per 1,000",
        "front",
    ]
    draws = report.chosen["best_by_draw"]
    chosen = [
        f"Best single worker by fold: {', '.join(dict.fromkeys(report.chosen['best']))}. Over {len(draws)} draws of "
        f"the folds `best` comes to {min(draws) * 100:.1f} to {max(draws) * 100:.1f}, "
        f"{sum(draws) / len(draws) * 100:.1f} on average."
    ]
    if ESCALATE in report.planners:
        pairs = "; ".join(dict.fromkeys(" + ".join(pair) or "none cheaper" for pair in report.chosen[ESCALATE]))
        chosen.append(
            f"Escalate by fold: {pairs}; the best worker was asked in {report.chosen['escalated'] * 100:.1f}% of the "
            "questions (all of them where fewer than two workers are cheaper)."
        )
    return "\n\n".join(
        [
            f"## {report.tasks['name']}: {report.tasks['n']:,} questions, {report.tasks['pool']}",
            table(header, rows),
            " ".join(chosen),
            *filter(None, [unpriced_note(report.unpriced)]),
            f"**Verdict:** {report.verdict}. {against_hindsight(report)}",
            f"[The page of this set]({page_name(report, stem=stem)}) has plots and examples with their plans.",
        ]
    )


def prices(reports: Sequence[Report]) -> str:
    """The assumed price of each model, and its source."""
    rows: dict[str, list[str]] = {}
    for report in reports:
        for model, source in report.chosen["prices"].items():
            price = report.prices[model]
            rates = ["unknown"] * 2 if price is None else [f"{price.input:g}", f"{price.output:g}"]
            rows[model] = [model, *rates, source]
    header = ["model", "$ per million read", "written", "source"]
    return "## Prices\n\n" + table(header, [rows[model] for model in sorted(rows, key=str.lower)])


def cells(report: Report, name: str, row: Figures) -> list[str]:
    low, high = (100 * bound for bound in row.interval)
    return [
        name,
        f"{row.accuracy * 100:.1f} [{low:.1f}–{high:.1f}]",
        difference(row.versus_best),
        difference(report.chosen["hindsight"]["versus"].get(name)),
        f"{row.calls:.2f}",
        "unknown" if row.cost_usd_per_question is None else f"{row.cost_usd_per_question * 1000:.3g}",
        "●" if name in report.chosen["pareto"] else "",
    ]


def against_hindsight(report: Report) -> str:
    """The harder comparison, corrected for the number of planners tried."""
    hindsight = report.chosen["hindsight"]
    tried = {n: d for n, d in hindsight["versus"].items() if n != "best" and not n.startswith("single:")}
    gained = {name: found.p for name, found in tried.items() if found.significant and found.mean > 0}
    firm = [name for name, p in gained.items() if p < 0.05 / len(tried)]
    return (
        f"Against the single worker that turned out best ({hindsight['worker']}), better at p < 0.05: "
        f"{', '.join(gained) or 'no planner'}; also after Bonferroni over the {len(tried)} planners tried: "
        f"{', '.join(firm) or 'no planner'}."
    )


def difference(found: Any) -> str:
    if found is None:
        return "–"
    return f"{found.mean * 100:+.1f} (p {found.p:.2g})"


def provenance(report: Report) -> str:
    """The origin of the figures, in a line."""
    at_a_time = report.recipe.get("concurrency")
    replayed = f", replayed {at_a_time} questions at a time" if at_a_time else ""
    return f"Commit `{report.commit or 'unknown'}`, version {report.version}, {report.date}{replayed}."


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


INTRODUCTION = """\
# Recorded real models

Real models' recorded answers become workers. Every planner that needs no more than one answer of each runs on them
through the same executor as all other runs. {folds}-fold (seed {seed}): every choice for a fold (the best worker, a
vote's members and weights, the workers of an escalation, the router's neighbours) was fitted on the other folds.
Made by `python benchmarks/recorded.py --data FOLDER`.

Cost is an estimate: recorded answers carry estimated tokens (characters / 4), o1-mini's hidden reasoning is not in
them, so its real cost is far higher than it looks here; prices are those of the price tables, for open models a host's,
and four are assumed (see the end). `front`: no planner is more accurate at the same cost or less.
[Baselines](../baselines.md) describes each planner and its differences from its paper."""

NOTES = """\
## How to read it

- `best` is chosen on the other folds, with the knowledge that a user would have. If several workers are nearly as good,
the choice flips from fold to fold, and a worker that was lucky in the training folds is less lucky in the tested one:
on GSM8K `best` ends below every worker it chooses between, and the draw shown (seed 1, as set beforehand) is
  the least favourable to it of the 20 tried: against its average of 96.1 the votes gain about 1 point, not 1.5. So the
  table has the comparison with the worker that turned out best too; it errs the other way, because that worker was
  unknown beforehand. - Against that worker, after correction, only the routers on scores_llmrouter_train win (kNN, and
  RouterDC in its second version, see below). Their saving there rests on an assumed price, that of the best worker.
- Differences are paired bootstraps over questions, 2,000 resamples, so the smallest p is 0.001; where answers are right
  or wrong, none is below that of an exact sign test. The verdicts' stars are not corrected for several planners having
  been tried; the sentence behind each verdict is.
- With three workers, `vote` and `escalate` decide alike when the escalation's pair and best are the vote's three, and
  `weighted-vote` does when no other worker has weight: on MMLU-Pro these three rows are one rule, not three findings.
- `oracle` picks, with hindsight, the cheapest worker that was right: no router can do better, and part of it is luck.
- `ceiling` takes, with hindsight, the planner that did best on each kind of question: on a set of one kind, simply the
  one that did best. Chosen on the questions it is counted on, it flatters.
- Costs, `cheapest`, `escalate` and the front depend on prices. Those of open models are a host's, and hosts differ by
  several times; four are assumed. o1-mini looks cheap because its hidden reasoning was not recorded: on MATH and
  CRUXEval no cost here is to be trusted where it takes part.
- scores_llmrouter_train recorded scores between 0 and 1 without answers: no vote is possible, its cost is that of
  the input alone, and its interval treats a score as a share of right answers.
- Each model answered once, so self-consistency at equal cost cannot be measured here.
- `routerdc` is trained on hashed words, not on a language model, from a few hundred examples of a set whose questions
  are much alike; where one worker is best nearly everywhere there is little to learn but that. Its first version kept
  the last training step and came to 95.7, 72.3, 86.4, 65.4 and 66.1 on the five sets, never clearly above `best`.
  Keeping the step that routes a held-out fifth of the training folds best was added after that was seen; no question of
  a fold tested took part in it.
- `smoothie` takes the likeness of texts for quality, so it follows the worker that writes most like the others: on MATH
and
  CRUXEval seldom o1-mini, which is best there, on MMLU-Pro mostly Llama-3.1-70B and the small models. A sentence
  encoder, as in the paper, may see less of style and more of content; it was not tried.
- Settings (3 voters, 40 neighbours, 5 folds) were fixed before the first run and not tuned. Smoothie's neighbours were
  20 then and are 1 since its authors' scripts were read, after results had been seen (96.2, 52.8, 76.7, 52.7 before).
  The graders were checked against the files' own scoring while they were written: GSM8K and MATH agree on every answer.
  MMLU-Pro differs on 11 of 11,200: "(C, H)" is no answer for us (4), a letter that follows "answer is:" with other
  spacing is one (7). CRUXEval differs on 50 of 5,590: a text without quotes keeps its outer spaces for us (37 more
  right), one with escapes spelt out or a whole assertion repeated is wrong (13 fewer); so its figures lie up to 0.9
  points above the files'.
- A first look at the same files, with other folds, gave: GSM8K best 95.9, vote of three 97.1, escalate 96.9 with the
  best worker asked in 18.5%; MATH level 5 best 89.6, weighted vote 90.2; CRUXEval 94.1 and 94.3; MMLU-Pro 69.0 and
  70.5; LLMRouter best 65.2, kNN 67.8. Ours agree to about half a point, except for CRUXEval, where
  three voters have 95.3 and a weighted vote 93.9 (it is not said which had 94.3, and graders differ as above). The
  share escalated does not: the only pair of workers that differs in 18.5% is claude-3-haiku and Llama-3.1-8B, the two
  weakest, while our rule asks the two most accurate of the cheaper ones, which differ far less often."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the recorded files; without it only pages are renewed")
    parser.add_argument("--out", type=Path, default=Path("docs/results/recorded.json"))
    parser.add_argument("--limit", type=int, default=None, help="questions of each set")
    arguments = parser.parse_args()
    try:
        asyncio.run(main(arguments.data, arguments.out, arguments.limit))
    except ConfigError as error:
        raise SystemExit(f"error: {error}") from None
