"""The run's own rules: skips are counted on the last line, `--no-skips` lets none pass, and nothing hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options, "--rootdir", str(folder), "-c", "/dev/null", str(folder / "test_it.py")],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


ONE_SKIPPED = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no such program')\n"
NONE_SKIPPED = "def test_a(): pass\n"


@pytest.mark.parametrize(
    ("source", "options", "code", "count"),
    [(ONE_SKIPPED, (), 0, 1), (ONE_SKIPPED, ("--no-skips",), 1, 1), (NONE_SKIPPED, ("--no-skips",), 0, 0)],
    ids=["a skip passes", "a skip fails with --no-skips", "no skip passes with --no-skips"],
)
def test_the_last_line_counts_the_skips_and_no_skips_allows_none(
    tmp_path: Path, source: str, options: tuple[str, ...], code: int, count: int
) -> None:
    done = run_pytest(tmp_path, source, *options)
    assert done.returncode == code, done.stdout
    assert done.stdout.splitlines()[-1] == f"skipped: {count}"


HANGS_AFTERWARDS = """import time, pytest
@pytest.fixture
def slow():
    yield
    time.sleep(60)
def test_a(slow): assert False
"""


def test_cleaning_up_after_a_failed_test_may_not_hang_for_ever(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run_pytest(tmp_path, HANGS_AFTERWARDS, "--teardown-s", "0.5")
    assert done.returncode == 1
    assert "Timeout (0:00:00.500000)!" in done.stderr
    assert "in slow" in done.stderr  # where it hung
    assert time.monotonic() - began < 50
