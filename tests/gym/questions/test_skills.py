"""Warm-only operations that are data: valid files are read, faulty ones are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent_gym.questions.skills import NUMBERS, WARM_OPERATIONS, read_operations

FILE = """
[types]
tool = ["chisel", "trowel", "awl"]

[[operation]]
name = "bench.along"
takes = "tool"
gives = "number"
parameters = ["2", "3"]
nouns = ["the hook {k} places past {x}"]
orders = ["Go {k} hooks past {x}."]
asks = ["Which hook is {k} past {x}?"]

[[operation]]
name = "bench.heavier"
takes = "tool tool"
gives = "tool"
nouns = ["the heavier of {x} and {y}"]
orders = ["Weigh {x} and {y}."]
asks = ["Which of {x} and {y} is heavier?"]
"""


def test_a_file_becomes_operations_with_every_value_and_parameter(tmp_path: Path) -> None:
    (tmp_path / "bench.toml").write_text(FILE, encoding="utf-8")
    along, heavier = read_operations(tmp_path)
    assert (along.full_name, along.takes, along.gives) == ("bench.along", ("tool",), "number")
    assert set(along.table) == {(tool, k) for tool in ("chisel", "trowel", "awl") for k in ("2", "3")}
    assert set(along.table.values()) <= set(NUMBERS)
    assert ("chisel", "awl") in heavier.table
    assert ("awl", "awl") not in heavier.table


def test_the_same_file_gives_the_same_tables(tmp_path: Path) -> None:
    (tmp_path / "bench.toml").write_text(FILE, encoding="utf-8")
    assert read_operations(tmp_path) == read_operations(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('takes = "tool"', 'takes = "plank"', "bench.along plank"),
        ('asks = ["Which hook', 'questions = ["Which hook', "bench.toml"),
        ("[types]", "[types", "bench.toml"),
    ],
)
def test_an_invalid_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "bench.toml").write_text(FILE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=facts(message)):
        read_operations(tmp_path)


def test_there_are_many_of_them_and_no_name_twice() -> None:
    names = [op.full_name for op in WARM_OPERATIONS]
    assert len(names) == len(set(names)) > 200
