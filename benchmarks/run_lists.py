"""The time that the server takes to list and search stored runs, beside a page of the newest runs without a filter.

    python benchmarks/run_lists.py [--runs 10000] [--rounds 5]

Fills a SQLite store with made runs and asks for each page several times, in turns. Prints the median of each page in
milliseconds and its ratio to the unfiltered page of the same run; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.serve.test_console_api import fill

from dirigent.store import Store
from dirigent.store.traces import TraceFilter

PAGES = {
    "newest": TraceFilter(),
    "found text": TraceFilter(search="needle"),
    "text that nothing holds": TraceFilter(search="nowhere to be found"),
    "one worker": TraceFilter(worker="beta"),
    "thumbs up": TraceFilter(feedback="up"),
    "dear ones": TraceFilter(least_usd=0.5),
    "one conversation": TraceFilter(conversation="c77"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    median_ms = asyncio.run(pages(args.runs, args.rounds))
    for page, took_ms in median_ms.items():
        print(f"{page:24} {took_ms:8.1f} ms  {took_ms / median_ms['newest']:6.1f}x")
    print(json.dumps({"runs": args.runs, "median_ms": median_ms}))


async def pages(runs: int, rounds: int) -> dict[str, float]:
    """The median milliseconds of each page of fifty runs."""
    took_ms: dict[str, list[float]] = {page: [] for page in PAGES}
    with tempfile.TemporaryDirectory() as folder:
        async with Store.open(Path(folder) / "store.db") as store:
            await fill(store, runs)
            for _ in range(rounds):
                for page, filter in PAGES.items():
                    began = time.perf_counter()
                    await store.find(filter, limit=50)
                    took_ms[page].append(1000 * (time.perf_counter() - began))
    return {page: statistics.median(took) for page, took in took_ms.items()}


if __name__ == "__main__":
    main()
