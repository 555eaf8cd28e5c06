"""The gym's second source against the real library: do the recorded and translated questions still agree with it?

    python gym/benchmarks/reasoning.py [--questions 500] [--seed 1] [--record FILE] [--json]

Draws questions from reasoning-gym, follows each translation with specialists that answer exactly, and lets the library
score their answers; a wrong answer must not score. Then compares the recorded sample with the library's questions for
the same seed today. Prints N of N and exits 1 if anything differs. `--record` writes a new sample. Needs the extra
`reasoning`; `make reasoning` installs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from dirigent.conduct import Conductor
from dirigent.planners.fixed import Fixed
from dirigent.run.trace import StepRecord
from dirigent.tasks.task import Task, grade
from dirigent_gym.questions import RL_ROSTER, exact_pool, plan_for
from dirigent_gym.questions.reasoning import Entry, draw_entries, library_score, read_sample, tasks_of, write_sample


def main() -> None:
    args = _arguments()
    entries = draw_entries(args.questions, seed=args.seed)
    right, wrong = asyncio.run(scored(entries, tasks_of(entries, seed=args.seed)))
    sample, recorded = read_sample()
    same = sum(a == b for a, b in zip(recorded, draw_entries(len(recorded), seed=sample.seed), strict=True))
    if args.record is not None:
        args.record.write_text(write_sample(len(recorded), seed=sample.seed))
    rows = {
        "right answers score 1": (right, len(entries)),
        "wrong answers score less": (wrong, len(entries)),
        f"recorded with {sample.version}, the same today": (same, len(recorded)),
    }
    if not args.json:
        for name, (count, of) in rows.items():
            print(f"{name:<44} {count:,} of {of:,}")
    print(json.dumps({name: {"n": count, "of": of} for name, (count, of) in rows.items()}))
    sys.exit(0 if all(count == of for count, of in rows.values()) else 1)


async def scored(entries: list[Entry], tasks: list[Task]) -> tuple[int, int]:
    """The number of right answers that the library accepts, and of wrong answers that it does not."""
    right = wrong = 0
    for entry, task in zip(entries, tasks, strict=True):
        trace = await Conductor(Fixed(plan_for(task, RL_ROSTER)), exact_pool(RL_ROSTER)).run(task.question)
        # A composed question continues after the library's own; the library scores the result before that.
        last = -2 if task.tags["composed"] else -1
        steps = trace.rounds[-1].steps
        right += grade(task, trace.answer).correct and library_score(entry, _reply(steps[last])) == 1.0
        wrong += library_score(entry, "unknown") < 1.0
    return right, wrong


def _reply(step: StepRecord) -> str:
    return step.reply.text if step.reply is not None else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, default=None, help="write a new sample to this file")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
