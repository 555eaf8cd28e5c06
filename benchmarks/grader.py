"""Does the code grader tell right from wrong, and how fast?

    python benchmarks/grader.py --data FOLDER [--limit N] [--rounds 1] [--least 12] [--json]

FOLDER holds questions_humaneval.jsonl.gz and questions_mbpp.jsonl.gz. Every reference solution in them must pass; every
known-wrong one must fail: a stub that returns nothing, the reference with its result wrapped, another problem's
reference under this one's name. Prints one line a set, "N of N", and the programs graded each second; exits 1 if any N
falls short, or if they are fewer a second than `--least`.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from dirigent.sandbox import Sandbox, open_sandbox
from dirigent.tasks.code import CodeProblem, grade_code, problem_of

WRAP = "\n\ndef _wrapped(f):\n    return lambda *a, **k: ('wrong', f(*a, **k))\n{name} = _wrapped({name})\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="rows of each set")
    parser.add_argument(
        "--rounds", type=int, default=1, help="how often everything is graded; verdicts must not change"
    )
    parser.add_argument(
        "--least", type=float, default=12.0, help="the least programs a second (12); 0 accepts any rate"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    args = parser.parse_args()
    figures = asyncio.run(measure(args.data, limit=args.limit, rounds=args.rounds, quiet=args.json))
    print(json.dumps(figures))
    if slow := too_slow(figures["programs_per_s"], least=args.least):
        print(slow, file=sys.stderr)
    sys.exit(0 if figures["whole"] and not slow else 1)


def too_slow(programs_per_s: float, *, least: float) -> str:
    """The message if the rate falls short, or an empty string."""
    if programs_per_s >= least:
        return ""
    return f"too slow: {programs_per_s} programs a second, not {least:g}; on a busy machine give  --least 0"


async def measure(data: Path, *, limit: int | None, rounds: int, quiet: bool) -> dict[str, Any]:
    began = time.monotonic()
    figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "sets": {}}
    async with open_sandbox() as sandbox:
        figures |= {"sandbox": sandbox.stamp, "self_test_s": round(time.monotonic() - began, 2)}
        if not quiet:
            print(sandbox.stamp, flush=True)
        began, programs = time.monotonic(), 0
        for name in ("humaneval", "mbpp"):
            rows = read(data / f"questions_{name}.jsonl.gz")[:limit]
            for kind, jobs in attempts(rows).items():
                verdicts = [await grade_all(jobs, sandbox=sandbox) for _ in range(rounds)]
                wrong = [job[0] for i, job in enumerate(jobs) if {v[i] for v in verdicts} != {kind == "reference"}]
                programs += rounds * len(jobs)
                figures["sets"][f"{name} {kind}"] = {"of": len(jobs), "right": len(jobs) - len(wrong), "wrong": wrong}
                if not quiet:
                    print(
                        f"{name + ' ' + kind:<24}{len(jobs) - len(wrong)} of {len(jobs)}  {' '.join(wrong)}", flush=True
                    )
    figures["programs"] = programs
    figures["programs_per_s"] = round(programs / (time.monotonic() - began), 1)
    figures["whole"] = not any(part["wrong"] for part in figures["sets"].values())
    return figures


def read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def attempts(rows: list[dict[str, Any]]) -> dict[str, list[tuple[str, CodeProblem, str]]]:
    """Right and wrong programs: (row, problem, source)."""
    made: dict[str, list[tuple[str, CodeProblem, str]]] = {"reference": [], "stub": [], "wrapped": [], "swapped": []}
    for i, row in enumerate(rows):
        problem, whole = problem_of(row), solution(row)
        name, other = problem.names[0], rows[(i + 1) % len(rows)]
        swapped = f"{solution(other)}\n\n{name} = {problem_of(other).names[0]}\n"
        for kind, source in {
            "reference": whole,
            "stub": f"def {name}(*args, **kwargs):\n    return None\n",
            "wrapped": whole + WRAP.format(name=name),
            "swapped": swapped,
        }.items():
            made[kind].append((row["id"], problem, source))
    return made


def solution(row: dict[str, Any]) -> str:
    return (row["question"] if "entry_point" in row["meta"] else "") + row["answer"]


async def grade_all(jobs: list[tuple[str, CodeProblem, str]], *, sandbox: Sandbox) -> list[bool]:
    grades = await asyncio.gather(*(grade_code(problem, source, sandbox=sandbox) for _, problem, source in jobs))
    return [grade.correct for grade in grades]


if __name__ == "__main__":
    main()
