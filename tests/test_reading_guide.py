"""The reading guide leads to functions that exist, in the order in which they are called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.walk import GUIDE, MOST_STOPS, check

from tests.facts import says

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "walk.py"
STOPS = ("`src/dirigent/conduct.py:Conductor.run`", "`src/dirigent/run/execution.py:execute`")
WALK = ["src/dirigent/conduct.py:110 Conductor.run", "src/dirigent/run/execution.py:64 execute"]


def walk(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, PROGRAM, *options], capture_output=True, text=True, timeout=100, check=False)


def faults(*stops: str, walks: int = 5) -> list[str]:
    """The faults of a guide whose every walk has these stops, if the program calls both of `WALK`."""
    guide = "".join(f"\n## Walk {i}\n" + "\n".join(stops) for i in range(walks))
    return check(guide, {"ask": WALK, "chat request": WALK})


def test_every_stop_of_the_guide_is_there_and_in_order() -> None:
    checked = walk("--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_last_line_counts_functions_and_modules_of_a_chat_request() -> None:
    whole = walk()
    assert whole.returncode == 0, whole.stderr
    *lines, last = whole.stdout.splitlines()
    counts = json.loads(last)
    assert counts.keys() == {"functions", "modules"}
    assert any(says(line, f"chat request: {counts['functions']} {counts['modules']}") for line in lines)
    assert 20 < counts["modules"] < counts["functions"] < 400
    assert any(line.endswith(" Conductor.run") for line in lines)


def test_a_guide_without_faults_passes() -> None:
    assert faults(*STOPS) == []


@pytest.mark.parametrize(
    ("stops", "named"),
    [
        (("`src/dirigent/gone.py:f`",), "src/dirigent/gone.py"),
        (("`src/dirigent/conduct.py:Conductor.gone`",), "'Conductor.gone'"),
        (STOPS[:1] * (MOST_STOPS + 1), f"{MOST_STOPS + 1} stops"),
        (STOPS[::-1], "order"),
        (("`src/dirigent/plan/plan.py:parse_plan`",), "src/dirigent/plan/plan.py:parse_plan"),
    ],
    ids=["no such file", "no such function", "too many stops", "another order", "never called"],
)
def test_a_fault_is_named_with_its_walk(stops: tuple[str, ...], named: str) -> None:
    assert any(fault.startswith("Walk 0: ") and named in fault for fault in faults(*stops))


def test_a_walk_that_is_left_out_is_a_fault() -> None:
    assert len(faults(*STOPS, walks=4)) == 1
    headings = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("## ")]
    assert [heading.split(".")[0] for heading in headings[:5]] == [f"## {i}" for i in range(1, 6)]
