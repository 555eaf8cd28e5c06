"""Every example, and every whole Python program in the README and the docs, runs unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    if "import asyncio" in block and "asyncio.run(" in block
]


def run(source: str, tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    assert run(example.read_text(), tmp_path).strip()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_in_the_docs_runs(program: str, tmp_path: Path) -> None:
    assert run(program, tmp_path).strip()


def test_the_readme_has_a_program() -> None:
    assert any(str(param.id).startswith("README.md") for param in PROGRAMS)
