"""The gym's page is complete: its example runs and its tables name everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.facts import says

from dirigent_gym.questions import ROSTER
from dirigent_gym.questions.skills import GYM_OPERATIONS, OPERATIONS
from dirigent_gym.questions.split import held_out_pairs, held_out_triples, skill_pairs, skill_triples

PAGE = (Path(__file__).parents[3] / "docs" / "gym.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    exec(code[1], {})
    assert capsys.readouterr().out.endswith("True True\n")


def test_every_skill_and_operation_is_listed_with_its_size() -> None:
    for skill in {op.skill for op in OPERATIONS.values()}:
        assert skill in PAGE
    for skill in {op.skill for op in GYM_OPERATIONS}:
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {skill} |"))
        operations = [op for op in GYM_OPERATIONS if op.skill == skill]
        assert all(op.name in row for op in operations)
        assert row.endswith(f"| {sum(len(op.table) for op in operations):,} |")


def test_every_specialist_is_listed() -> None:
    assert any(all(specialist.name in section for specialist in ROSTER) for section in PAGE.split("\n## ")[1:])


def test_the_held_out_combinations_are_counted_right() -> None:
    assert says(PAGE, f"{len(held_out_pairs())} {len(skill_pairs())}")
    assert says(PAGE, f"{len(held_out_triples())} {len(skill_triples())}")
