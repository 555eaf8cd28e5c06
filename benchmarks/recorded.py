"""Does combining models pay? Every planner that can run on recorded answers, on five sets, with an honest verdict.

    python benchmarks/recorded.py --data FOLDER [--out docs/results/recorded.json] [--limit N]
    python benchmarks/recorded.py                  the page again, from the figures that are there

Replays real models' recorded answers (no key, no cost) and writes the figures as JSON and, beside it, as a page.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dirigent.evals.commit import source_commit
from dirigent.evals.figures import Figures
from dirigent.evals.notes import unpriced_note
from dirigent.evals.recorded import DEFAULT, EACH, ESCALATE, NEED_ANSWERS, evaluate_recorded, load_recorded
from dirigent.evals.report import Report
from dirigent.evals.stats import Difference

SETS = (
    "recorded_zeroeval_gsm8k",
    "recorded_zeroeval_math_l5",
    "recorded_zeroeval_cruxeval_o",
    "recorded_mmlu_pro",
    "scores_llmrouter_train",
)


async def main(data: Path | None, out: Path, limit: int | None) -> None:
    if data is None:
        out.with_suffix(".md").write_text(page(read(out)), encoding="utf-8")
        return
    commit, date = await source_commit(), datetime.now(UTC).date().isoformat()
    reports: list[Report] = []
    for name in SETS:
        questions = load_recorded(data / f"{name}.jsonl.gz", limit=limit)
        planners = [EACH, *(p for p in DEFAULT if questions.has_answers or p not in NEED_ANSWERS)]
        report = await evaluate_recorded(questions, planners, commit=commit, date=date)
        print(f"{name}: {report.verdict}", flush=True)
        reports.append(report)
    write(reports, out)


def write(reports: Sequence[Report], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.encode({report.tasks["name"]: report for report in reports})
    out.write_bytes(msgspec.json.format(encoded, indent=1) + b"\n")
    out.with_suffix(".md").write_text(page(reports), encoding="utf-8")


def read(out: Path) -> list[Report]:
    """The reports of an earlier run."""
    reports = list(msgspec.json.decode(out.read_bytes(), type=dict[str, Report]).values())
    for report in reports:
        hindsight = report.chosen["hindsight"]
        hindsight["versus"] = msgspec.convert(hindsight["versus"], dict[str, Difference])
    return reports


def page(reports: Sequence[Report]) -> str:
    first = reports[0]
    parts = [INTRODUCTION.format(folds=first.recipe["folds"], seed=first.recipe["seed"]), summary(reports)]
    parts += [section(report) for report in reports]
    parts += [NOTES, prices(reports)]
    parts.append(f"Commit `{first.commit or 'unknown'}`, version {first.version}, {first.date}.")
    return "\n\n".join(parts) + "\n"


def summary(reports: Sequence[Report]) -> str:
    """One line a set: what the other tables come to."""
    names = [name for name in DEFAULT if name not in ("cheapest", "random")]
    rows = []
    for report in reports:
        hindsight = report.chosen["hindsight"]
        cells = [f"{report.planners[n].accuracy * 100:.1f}" if n in report.planners else "–" for n in names]
        rows.append([report.tasks["name"], *cells, f"{hindsight['worker']} {hindsight['accuracy'] * 100:.1f}"])
    return "## In short, accuracy in %\n\n" + table(["set", *names, "best in hindsight"], rows)


def section(report: Report) -> str:
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
        ]
    )


def prices(reports: Sequence[Report]) -> str:
    """What each model was taken to cost, and who says so."""
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
    """The harder comparison, with a correction for as many planners as were tried."""
    hindsight = report.chosen["hindsight"]
    tried = {n: d for n, d in hindsight["versus"].items() if n != "best" and not n.startswith("single:")}
    gained = {name: found.p for name, found in tried.items() if found.significant and found.mean > 0}
    firm = [name for name, p in gained.items() if p < 0.05 / len(tried)]
    return (
        f"Against the single worker that turned out best ({hindsight['worker']}), better at p < 0.05: "
        f"{', '.join(gained) or 'none'}; also after Bonferroni over the {len(tried)} planners tried: "
        f"{', '.join(firm) or 'none'}."
    )


def difference(found: Any) -> str:
    if found is None:
        return "–"
    return f"{found.mean * 100:+.1f} (p {found.p:.2g})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


INTRODUCTION = """\
# Recorded real models

Real models' recorded answers become workers, and every planner that needs no more than one answer of each is run on
them through the same executor as everything else. {folds}-fold (seed {seed}): what is chosen for a fold (the best
worker, a vote's members and weights, who escalates to whom, the router's neighbours) was fitted on the other folds.
Made by `python benchmarks/recorded.py --data FOLDER`.

Cost is an estimate: recorded answers carry estimated tokens (characters / 4), o1-mini's hidden reasoning is not in
them, so its real cost is far higher than it looks here; prices are those of the price tables, for open models a host's,
and four are assumed (see the end). `front`: nothing is more accurate at the same cost or less. What each planner does,
and where it differs from the paper it follows, is in [Baselines](../baselines.md)."""

NOTES = """\
## How to read it

- `best` is chosen on the other folds and is what one could have known. Where several workers are nearly as good the
  choice flips from fold to fold, and a worker that had its luck in the training folds has less of it left for the one
  tested: on GSM8K `best` ends below every worker it chooses between, and the draw shown (seed 1, as set beforehand) is
  the least favourable to it of the 20 tried: against its average of 96.1 the votes gain about 1 point, not 1.5. So the
  comparison with the worker that turned out best is given too; it errs the other way, since nobody knew that worker.
- What holds up against that worker, after correction: the routers on scores_llmrouter_train (kNN, and RouterDC in its
  second version, see below), and nothing else. What they save there rests on an assumed price, that of the best worker.
- Differences are paired bootstraps over questions, 2,000 resamples, so the smallest p is 0.001. The verdicts' stars are
  not corrected for several planners having been tried; the sentence behind each verdict is.
- With three workers, `vote` and `escalate` decide alike when the escalation's pair and best are the vote's three, and
  `weighted-vote` does when nobody else has weight: on MMLU-Pro these three rows are one rule, not three findings.
- `oracle` picks, with hindsight, the cheapest worker that was right: no router can do better, and part of it is luck.
- `ceiling` takes, with hindsight, the planner that did best on each kind of question: on a set of one kind, simply the
  one that did best. Chosen on the questions it is counted on, it flatters.
- Costs, `cheapest`, `escalate` and the front depend on prices. Those of open models are a host's, and hosts differ by
  several times; four are assumed. o1-mini looks cheap because its hidden reasoning was not recorded: on MATH and
  CRUXEval no cost here is to be trusted where it takes part.
- scores_llmrouter_train recorded scores between 0 and 1 without answers: nothing can be voted on, its cost is that of
  the input alone, and its interval treats a score as a share of right answers.
- Each model answered once, so self-consistency at equal cost cannot be measured here.
- `routerdc` is trained on hashed words, not on a language model, from a few hundred examples of a set whose questions
  are much alike; where one worker is best nearly everywhere there is little to learn but that. Its first version kept
  the last training step and came to 95.7, 72.3, 86.4, 65.4 and 66.1 on the five sets, never clearly above `best`.
  Keeping the step that routes a held-out fifth of the training folds best was added after that was seen; no question of
  a fold tested took part in it.
- `smoothie` takes the likeness of texts for quality, so it follows whoever writes most like the others: on MATH and
  CRUXEval mostly Mistral-Large-2 and gpt-4o and never o1-mini, on MMLU-Pro mostly Llama-3.1-70B and the small models,
  hardly ever gemini-1.5-pro, whose one-line answers are like nobody's. A sentence encoder, as in the paper, may see
  less of style and more of content; it was not tried.
- Settings (3 voters, 40 neighbours, 20 of Smoothie's, 5 folds) were fixed before the first run and not tuned. The
  graders were checked against the files' own scoring while they were written: GSM8K and MATH agree on every answer.
  MMLU-Pro differs on 11 of 11,200: "(C, H)" is no answer for us (4), a letter that follows "answer is:" with other
  spacing is one (7). CRUXEval differs on 50 of 5,590: a text without quotes keeps its outer spaces for us (37 more
  right), one with escapes spelt out or a whole assertion repeated is wrong (13 fewer); so its figures lie up to 0.9
  points above the files'.
- A first look at the same files, with other folds, gave: GSM8K best 95.9, vote of three 97.1, escalate 96.9 with the
  best worker asked in 18.5%; MATH level 5 best 89.6, weighted vote 90.2; CRUXEval 94.1 and 94.3; MMLU-Pro 69.0 and
  70.5; LLMRouter best 65.2, kNN 67.8. Ours agree to about half a point, but for CRUXEval, where
  three voters have 95.3 and a weighted vote 93.9 (it is not said which had 94.3, and graders differ as above). The
  share escalated does not: the only pair of workers that differs in 18.5% is claude-3-haiku and Llama-3.1-8B, the two
  weakest, while our rule asks the two most accurate of the cheaper ones, which differ far less often."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the recorded files; without it only the page is renewed")
    parser.add_argument("--out", type=Path, default=Path("docs/results/recorded.json"))
    parser.add_argument("--limit", type=int, default=None, help="questions of each set")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.data, arguments.out, arguments.limit))
