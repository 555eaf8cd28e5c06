"""Row G3 on a sample of the real sets: reference solutions pass, known-wrong programs fail.

`benchmarks/grader.py` does the same over all of them, and makes the wrong programs.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from benchmarks.grader import attempts, grade_all, read

from dirigent.sandbox import Sandbox

SAMPLE, SEED = 20, 1


@pytest.mark.datasets
@pytest.mark.parametrize("kind", ["reference", "stub", "wrapped", "swapped"])
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
async def test_only_reference_solutions_pass(name: str, kind: str, data: Path, sandbox: Sandbox) -> None:
    rows = read(data / f"questions_{name}.jsonl.gz")
    jobs = attempts(random.Random(SEED).sample(rows, SAMPLE))[kind]
    verdicts = await grade_all(jobs, sandbox=sandbox)
    misjudged = [job[0] for job, passed in zip(jobs, verdicts, strict=True) if passed != (kind == "reference")]
    assert (len(verdicts), misjudged) == (SAMPLE, [])
