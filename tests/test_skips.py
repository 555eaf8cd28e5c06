"""The run's own rules: skips are counted on the last line, and `--no-skips` turns them into a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options, "--rootdir", str(folder), "-c", "/dev/null", str(folder / "test_it.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


ONE_SKIPPED = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no such program')\n"


@pytest.mark.parametrize(("source", "count"), [(ONE_SKIPPED, 1), ("def test_a(): pass\n", 0)])
def test_the_last_line_counts_the_skips(tmp_path: Path, source: str, count: int) -> None:
    done = run_pytest(tmp_path, source)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == f"skipped: {count}"


def test_no_skips_fails_a_run_that_skipped(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, ONE_SKIPPED, "--no-skips")
    assert done.returncode == 1, done.stdout
    assert done.stdout.splitlines()[-1] == "skipped: 1"


def test_no_skips_passes_a_run_that_skipped_nothing(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, "def test_a(): pass\n", "--no-skips").returncode == 0
