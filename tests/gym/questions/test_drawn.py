"""The generator's draws do not change with its code: trained adapters and published figures depend on them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.errors import ConfigError
from dirigent_gym.questions import generate
from dirigent_gym.questions.skills import OPERATIONS, read_solved


def digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()


def test_the_first_200_test_questions_are_the_same_to_the_byte() -> None:
    assert digest(generate("test", 200, seed=1)) == "084f3973d29e280a07779ff92893765ce3006c6aea4a9cdb826f20c38049e8a5"


def test_training_questions_with_everyday_words_are_the_same_to_the_byte() -> None:
    drawn = generate("train", 200, seed=1, everyday=0.3)
    assert digest(drawn) == "6f7d6eb37ed703b4c77546cfb80600b73da4485baf71aabd860555f8b3bda6d7"


def test_every_table_and_every_wording_is_the_same_to_the_byte() -> None:
    said = [(name, op.takes, op.gives, list(op.table.items()), op.phrases) for name, op in OPERATIONS.items()]
    assert digest(said) == "493e1138fbcb6807a092edbdd0d7b789d974c19cf82e9f5f66e41fb587fed00e"


def test_an_operation_without_table_or_domain_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    words = 'nouns = ["the {x}"]\norders = ["Say {x}."]\nasks = ["What is {x}?"]\n'
    head = '[[operation]]\nname = "new.thing"\ntakes = "number"\ngives = "number"\n'
    file.write_text(head + words)
    with pytest.raises(ConfigError, match=r"new\.thing"):
        read_solved(file)
    file.write_text(
        f'[[operation]]\nname = "new.thing"\ntakes = "number"\ngives = "number"\ntable = {{ 1 = "2" }}\n{words}'
    )
    (op,) = read_solved(file)
    assert op.table == {("1",): "2"}
