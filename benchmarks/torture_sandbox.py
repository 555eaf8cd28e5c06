"""Attack the sandbox again and again, and grade everything several times over: nothing may get through or change.

    python benchmarks/torture_sandbox.py [--rounds 100] [--data FOLDER --grader-rounds 3 --limit N] [--json]

Row G1: every attack of `sandbox/attacks.py`, N times (without landlock, attacks that only landlock contains are left
out). Row G3, with FOLDER as `grader.py` wants it: all reference solutions pass and all known-wrong programs fail, in
every round alike. Prints one line a row, "N of N", and exits 1 if an N falls short.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.grader import measure

from dirigent.sandbox import open_untested
from dirigent.sandbox.selftest import attack_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="how often every attack is tried")
    parser.add_argument("--data", type=Path, default=None, help="folder with HumanEval and MBPP, for row G3")
    parser.add_argument("--grader-rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=None, help="rows of each set in row G3; all by default")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    args = parser.parse_args()
    figures = asyncio.run(
        torture(args.rounds, data=args.data, grader_rounds=args.grader_rounds, limit=args.limit, quiet=args.json)
    )
    print(json.dumps(figures))
    sys.exit(0 if figures["whole"] else 1)


async def torture(
    rounds: int, *, data: Path | None, grader_rounds: int, limit: int | None = None, quiet: bool
) -> dict[str, Any]:
    began = time.monotonic()
    through: Counter[str] = Counter()
    async with open_untested() as sandbox:
        attacks, stamp = len(sandbox.attacks), sandbox.stamp
        for _ in range(rounds):
            through.update(await attack_all(sandbox))
    tried = rounds * attacks
    held = tried - through.total()
    figures: dict[str, Any] = {
        "sandbox": stamp,
        "attacks": attacks,
        "rounds": rounds,
        "contained": held,
        "of": tried,
        "through": dict(through),
        "attack_s": round(time.monotonic() - began, 1),
        "whole": not through,
    }
    if not quiet:
        print(f"G1  {held:,} of {tried:,} attacks contained ({attacks} attacks, {rounds} times): {stamp}", flush=True)
    if data is not None:
        graded = await measure(data, limit=limit, rounds=grader_rounds, quiet=True)
        sets = graded["sets"].values()
        right, of = sum(part["right"] for part in sets), sum(part["of"] for part in sets)
        figures |= {"grader": graded, "whole": figures["whole"] and graded["whole"]}
        if not quiet:
            print(f"G3  {right:,} of {of:,} programs graded rightly, the same in {grader_rounds} rounds", flush=True)
    return figures


if __name__ == "__main__":
    main()
