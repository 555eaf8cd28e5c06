"""How long `import dirigent` and `dirigent --help` take, idle and with every core busy, against bare Python.

    python benchmarks/startup.py [--runs 9] [--json]

The peers, in the same run: `python -c pass`, and the import of aiohttp, which Dirigent loads only when it is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import_dirigent": [sys.executable, "-c", "import dirigent"],
    "import_core": [sys.executable, "-c", "from dirigent import *"],
    "import_aiohttp": [sys.executable, "-c", "import aiohttp"],
    "help": [str(Path(sys.executable).parent / "dirigent"), "--help"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    args = parser.parse_args()
    idle = measure(args.runs)
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        busy = measure(args.runs)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    if not args.json:
        print(f"{'median ms of ' + str(args.runs):<20}{'idle':>8}{'busy':>8}")
        for name in COMMANDS:
            print(f"{name:<20}{idle[name]:>8.0f}{busy[name]:>8.0f}")
    print(
        json.dumps({"idle_ms": idle, "busy_ms": busy, "import_over_python": idle["import_dirigent"] / idle["python"]})
    )


def measure(runs: int) -> dict[str, float]:
    """Median wall-clock milliseconds of each command; the first, cold run is not counted."""
    medians = {}
    for name, command in COMMANDS.items():
        taken = []
        for _ in range(runs + 1):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            taken.append((time.perf_counter() - began) * 1000)
        medians[name] = round(statistics.median(taken[1:]), 1)
    return medians


if __name__ == "__main__":
    main()
