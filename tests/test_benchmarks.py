"""Every program in benchmarks/ explains itself, and the page lists them all in their own words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
FILES = sorted(
    [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "gym" / "benchmarks").glob("*.py")], key=lambda file: file.stem
)
PROGRAMS = [file for file in FILES if 'if __name__ == "__main__"' in file.read_text(encoding="utf-8")]
PARTS = {
    "claims_evidence": "claims",
    "claims_local": "claims",
    "claims_table": "claims",
    "parity_page": "parity",
    "pays_page": "pays",
    "real_page": "real",
    "specialists_page": "specialists",
}
"""What is no program, and whose part it is."""
WRITERS_OF_RESULTS = ("results", "paper_table", "fuzz_plan", "executor", "recorded", "specialists", "elsewhere", "must")


def story(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda file: file.stem)
def test_a_programs_help_names_its_measurement_with_an_example(program: Path) -> None:
    done = subprocess.run([sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert story(program).splitlines()[0] in done.stdout
    assert re.search(rf"^ +python {program.relative_to(ROOT)}\b", done.stdout, re.MULTILINE)


def test_the_page_lists_every_program_in_its_own_words() -> None:
    listed = re.findall(r"^\| `(\w+)\.py` \| (.*?) \|", PAGE, re.MULTILINE)
    assert sorted(listed) == [(program.stem, story(program).splitlines()[0]) for program in PROGRAMS]


def test_a_file_that_is_no_program_names_its_program_and_is_on_the_page() -> None:
    parts = [file for file in FILES if file not in PROGRAMS]
    assert [part.stem for part in parts] == list(PARTS)
    for part in parts:
        assert f"`{PARTS[part.stem]}.py`" in story(part)
        assert f"`{part.name}`" in PAGE


def test_every_page_of_results_is_made_anew_by_make_results() -> None:
    """The table of claims apart, and parity: they want a trained run. Everyday questions want a person who scores.

    `make pays` makes the page of that name, from recorded answers.
    """
    recipe = re.search(r"^results:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None
    assert re.findall(r"benchmarks/(\w+)\.py", recipe[1]) == list(WRITERS_OF_RESULTS)
    pages = {page.stem for page in (ROOT / "docs" / "results").glob("*.md")}
    assert "docs/results/gym-local.json" in recipe[1]
    made = {"gym", "gym-local", "paper-dry-run", "recorded", "specialists", "elsewhere", "must"}
    assert pages - {"claims", "parity", "everyday", "pays"} == made
