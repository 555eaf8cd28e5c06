"""The work of a request, counted rather than timed: instructions of a bare proxy and of `worker/NAME`.

    python benchmarks/instructions.py [--requests 300] [--concurrency 16]

Each server runs under valgrind's callgrind, which counts instructions in user space, of all threads together. A busy
machine changes the count by a few hundredths, but CPU times (`overhead.py`) by half, so the count shows whether a
change in the code helped. Work that follows the clock weighs more here, because everything takes thirty times as long:
the store is asked for keys once a second, and commits seem slow and move to the writer's thread. The kernel's part is
left out. The counts by function are in `callgrind.NAME.*` in the current folder, for `callgrind_annotate`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import overhead

WARM_UP = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=16)
    args = parser.parse_args()
    if shutil.which("callgrind_control") is None:
        raise SystemExit("callgrind_control is missing: install valgrind")
    counts = asyncio.run(_count_all(args.concurrency, args.requests))
    for name, count in counts.items():
        print(f"{name:<8}{count / 1000:>9,.0f} thousand instructions a request{count / counts['bare']:>7.2f}x")


async def _count_all(level: int, requests: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with overhead._upstream(home) as (upstream, serve):
            bare = (overhead.__file__, "--role", "bare", "--upstream", upstream)
            return {
                "bare": await _count("bare", bare, "x", home, level, requests),
                "worker": await _count("worker", serve, "worker/stub", home, level, requests),
                "plan": await _count("plan", serve, "plan", home, level, requests),
            }


async def _count(name: str, command: tuple[str, ...], model: str, home: Path, level: int, requests: int) -> float:
    _forget(name)
    patient = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=patient) as session:
        with _counted(name, *command, home=home) as (pid, url):
            await overhead._load(session, url, model, level, WARM_UP)
            await asyncio.to_thread(_control, "--instr=on", pid)
            await overhead._load(session, url, model, level, requests)
            await asyncio.to_thread(_control, "--dump", pid)
    return _sum(name) / requests


def _forget(name: str) -> None:
    for old in Path().glob(f"callgrind.{name}*"):
        old.unlink()


def _sum(name: str) -> int:
    found = re.search(r"^totals: (\d+)", Path(f"callgrind.{name}.1").read_text(errors="replace"), re.MULTILINE)
    assert found is not None, "a dump without its sum"
    return int(found[1])


@contextlib.contextmanager
def _counted(name: str, *command: str, home: Path) -> Iterator[tuple[int, str]]:
    """Starts a server under callgrind, with counting off at first."""
    into = Path(f"callgrind.{name}").absolute()
    under = ("valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={into}")
    with overhead._process(*command, home=home, under=under) as (process, url):
        yield process.pid, url


def _control(what: str, pid: int) -> None:
    subprocess.run(["callgrind_control", what, str(pid)], check=True, capture_output=True)


if __name__ == "__main__":
    main()
