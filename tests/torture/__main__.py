"""Run rows of the goal sheet: one line each, «N of N», and a non-zero exit where one falls short.

    python -m tests.torture                    every row at CI size
    python -m tests.torture F1 L1 --full       these two at their full counts
    python -m tests.torture L1 --rate 60       as many requests a second as this machine is to bear
    python -m tests.torture --list

Every module named in `MODULES` has its rows in `ROWS`. The same seed sends the same requests and faults.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import sys
import time
import traceback
from collections.abc import Iterator

import msgspec

from tests.torture.evidence import keeping
from tests.torture.harness import Result, Row

MODULES = ("rows_load", "rows_faults", "rows_kills", "rows_security")
SEARCHED = ("F", "B")
"""Rows whose remains S5 looks through."""


def main() -> int:
    rows, args = {row.name: row for row in every_row()}, _arguments()
    if args.list:
        for row in rows.values():
            print(f"{row.name:<4}{row.full_count:>9,}{row.ci_count:>8,} in CI   {row.goal}")
        return 0
    if unknown := [name for name in args.rows if name not in rows]:
        print(f"there is no row {unknown[0]}; there are: {', '.join(rows)}", file=sys.stderr)
        return 2
    results = asyncio.run(_run_all([rows[name] for name in args.rows or rows], args))
    return 0 if all(result.reached for result in results) else 1


def every_row() -> Iterator[Row]:
    for name in MODULES:
        yield from importlib.import_module(f"tests.torture.{name}").ROWS


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="names such as L1 F9; none: all of them")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ci", action="store_true", help="1 to 10 %% of each count (the default)")
    size.add_argument("--full", action="store_true", help="the counts of the goal sheet: hours")
    size.add_argument("--count", type=int, help="a count of your own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, help="requests a second of the load rows, where theirs is too many here")
    parser.add_argument("--json", action="store_true", help="a JSON object a row")
    parser.add_argument("--list", action="store_true", help="the rows and their counts")
    return parser.parse_args()


async def _run_all(rows: list[Row], args: argparse.Namespace) -> list[Result]:
    """Runs rows in order, and the next ones beside a row that mostly waits. Rows that search files come last."""
    running: list[asyncio.Task[Result]] = []
    is_searched = any(row.closes for row in rows)
    for row in sorted(rows, key=lambda row: row.closes):
        if row.closes and running:
            await asyncio.wait(running)
        with keeping(row.name) if is_searched and row.name.startswith(SEARCHED) else contextlib.nullcontext():
            task = asyncio.ensure_future(_run(row, args))
        running.append(task)
        if not row.waits:
            await asyncio.wait([task])
    return list(await asyncio.gather(*running))


async def _run(row: Row, args: argparse.Namespace) -> Result:
    count = args.count or (row.full_count if args.full else row.ci_count)
    began = time.monotonic()
    paced = {"rate": args.rate} if row.paced and args.rate else {}
    try:
        result: Result = await row.run(count, args.seed, **paced)
    except Exception as error:  # the other rows are worth running all the same
        traceback.print_exc()
        result = Result(0, count, (f"the row itself broke: {error!r:.300}",))
    _tell(row, result, args, seconds=time.monotonic() - began)
    return result


def _tell(row: Row, result: Result, args: argparse.Namespace, *, seconds: float) -> None:
    if args.json:
        told = {"row": row.name, "seed": args.seed, "seconds": round(seconds, 1), "reached": result.reached}
        print(json.dumps(told | msgspec.to_builtins(result)), flush=True)
        return
    figures = "  ".join(f"{name} {_shown(value)}" for name, value in result.figures.items())
    print(f"{row.name:<4}{result.done:>7,} of {result.wanted:,}  {figures}  ({seconds:.0f} s)", flush=True)
    for fault in result.faults:
        print(f"      {fault}", flush=True)


def _shown(value: float | int | str) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    sys.exit(main())
