"""Ask the embedded pool twenty everyday questions, by its plan and by one plain call, for a person to score.

    python benchmarks/everyday.py --out docs/results/everyday.json

The questions were written before any answer was seen; the pool's rule was written with those of
`everyday_questions.jsonl`, which are others. Every question is asked once each way; the file keeps answers, seconds,
tokens, and how busy the machine was. `right` is left null: a person fills it in, and `--page` writes the page
docs/results/everyday.md from it. `--keep-plain` asks the plan alone, and keeps the plain answers of the file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from dirigent.config.discovery import Machine, toml_of
from dirigent.config.file import parse_config
from dirigent.config.runtime import Runtime, open_runtime
from dirigent.messages import Message, Request

QUESTIONS = {
    "What is the capital of Portugal?": "Lisbon",
    "How many days are there between 14 February and 1 June 2025?": "107",
    "A jacket costs 80 euros and is reduced by 35 percent. What does it cost now?": "52 euros",
    'Translate into German: "Where is the train station?"': "Wo ist der Bahnhof?",
    "What does the abbreviation GDP stand for?": "gross domestic product",
    "Sort these names alphabetically: Maria, Anton, Zoe, Ben, Clara": "Anton, Ben, Clara, Maria, Zoe",
    "If I work 7.5 hours a day, how many hours do I work in 4 weeks of 5 days?": "150",
    "Write one polite sentence that declines an invitation to dinner on Friday.": "(any that does so)",
    "Who painted the Mona Lisa?": "Leonardo da Vinci",
    "What weekday was 1 January 2000?": "Saturday",
    "How many minutes are there in a week?": "10,080",
    "Which planet is closest to the sun?": "Mercury",
    "I bought 3 notebooks at 2.40 euros each and 2 pens at 1.15 euros each. How much did I pay?": "9.50 euros",
    'What is the opposite of "generous"?': "stingy (or a like word)",
    "Convert 68 degrees Fahrenheit to Celsius.": "20",
    'How many vowels are there in the word "encyclopedia"?': "5 (without the y)",
    "Name the three primary colours.": "red, yellow (or green) and blue",
    "A recipe for 4 people needs 300 g of flour. How much flour do I need for 6 people?": "450 g",
    "In which year did the Second World War end?": "1945",
    'Fix the grammar: "He don\'t has no time."': "He doesn't have any time. (or: He has no time.)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/everyday.json"))
    parser.add_argument("--page", action="store_true", help="write the page from a scored file; ask nothing")
    parser.add_argument("--keep-plain", action="store_true", help="keep the plain answers that the file has")
    args = parser.parse_args()
    if args.page:
        args.out.with_suffix(".md").write_text(page(json.loads(args.out.read_text())))
        return
    kept = json.loads(args.out.read_text())["rows"] if args.keep_plain else []
    asyncio.run(asked(args.out, plain={row["question"]: row["plain"] for row in kept}))


async def asked(out: Path, *, plain: dict[str, Any]) -> None:
    async with open_runtime(parse_config(toml_of(Machine()))) as runtime:
        await runtime.pool["plain"].ask(Request((Message("user", "Hello"),), max_output_tokens=1))
        rows: list[dict[str, Any]] = []
        for question, right in QUESTIONS.items():
            rows.append({"question": question, "wanted": right} | await one(runtime, question, plain.get(question)))
            keep(out, rows)
            print(rows[-1], flush=True)


def keep(out: Path, rows: list[dict[str, Any]]) -> None:
    out.write_text(json.dumps({"date": time.strftime("%Y-%m-%d"), "rows": rows}, indent=1, ensure_ascii=False) + "\n")


async def one(runtime: Runtime, question: str, plain: dict[str, Any] | None) -> dict[str, Any]:
    trace = await runtime.conductor().run(question)
    if plain is None:
        began = time.monotonic()
        reply = await runtime.pool["plain"].ask(Request((Message("user", question),)))
        plain = {
            "answer": reply.text,
            "seconds": round(time.monotonic() - began, 1),
            "tokens": reply.usage.output_tokens,
            "right": None,
        }
    return {
        "load": round(os.getloadavg()[0], 1),
        "plan": {
            "workers": [step.worker for step in trace.steps],
            "answer": trace.answer,
            "seconds": round(trace.seconds, 1),
            "tokens": trace.usage.output_tokens,
            "right": None,
        },
        "plain": plain,
    }


def page(found: dict[str, Any]) -> str:
    """Returns the page. A row without a score is an error: the page counts only answers that a person read."""
    rows = found["rows"]
    lines = [
        "# Twenty everyday questions to the embedded pool",
        "",
        f"*Written by `benchmarks/everyday.py` from `everyday.json`, asked on {found['date']}; scored by hand.*",
        "",
        "Each question is asked once by the pool's plan and once in one plain call to its model.",
        "",
        "| | right | median seconds | all seconds | median tokens written | all tokens |",
        "|---|---|---|---|---|---|",
    ]
    for way in ("plan", "plain"):
        scores = [bool(row[way]["right"]) if row[way]["right"] is not None else _unscored(row) for row in rows]
        seconds, tokens = ([row[way][what] for row in rows] for what in ("seconds", "tokens"))
        spent = f"{statistics.median(seconds):.1f} | {sum(seconds):.0f}"
        wrote = f"{statistics.median(tokens):g} | {sum(tokens)}"
        lines.append(f"| {way} | {sum(scores)} of {len(rows)} | {spent} | {wrote} |")
    loads = [row["load"] for row in rows]
    lines += [
        "",
        f"The machine has {os.cpu_count()} cores; its load was {min(loads)} to {max(loads)} meanwhile, the pool's own "
        "work included.",
        "",
        *found.get("notes", []),
        "",
        "| question | wanted | by | the plan's answer | | one plain call | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        plan, plain = row["plan"], row["plain"]
        cells = [row["question"], row["wanted"], " → ".join(plan["workers"]), _short(plan["answer"]), _mark(plan)]
        lines.append("| " + " | ".join([*cells, _short(plain["answer"]), _mark(plain)]) + " |")
    return "\n".join(lines) + "\n"


def _unscored(row: dict[str, Any]) -> bool:
    raise SystemExit(f"not scored yet: {row['question']}")


def _mark(found: dict[str, Any]) -> str:
    return "right" if found["right"] else "wrong"


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= 160 else f"{line[:60]} … {line[-96:]}"


if __name__ == "__main__":
    main()
