"""The adapters in the package: found by name, and checked against their cards and sizes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.facts import facts, says

from dirigent.errors import ConfigError
from dirigent.workers import adapters
from dirigent.workers.adapters import faults, packaged, read_cards
from dirigent_gym import weights


def put(
    folder: Path, name: str, data: bytes, *, role: str = "specialist", sha256: str = "", claims: str | None = None
) -> None:
    """A file and its card."""
    (folder / f"{name}.gguf").write_bytes(data)
    with (folder / "cards.toml").open("a") as cards:
        cards.write(
            f'[adapter."{name}"]\nrole = "{role}"\nbase = "smollm2-135m"\ndata = "made up"\nrecipe = "none"\n'
            f'commit = "0"\nrank = 4\nalpha = 8.0\nsize_bytes = {len(data)}\n'
            f'sha256 = "{sha256 or hashlib.sha256(data).hexdigest()}"\nfigures = {{ own = 0.99 }}\n'
            + (f'claims = "{claims}"\n\n' if claims is not None else "\n")
        )


def test_the_packaged_adapters_pass_the_rules_for_shipping() -> None:
    assert faults(weights.FOLDER) == []
    assert set(packaged()) == set(read_cards(weights.FOLDER))


def test_adapters_are_found_by_name_with_their_cards(tmp_path: Path) -> None:
    put(tmp_path, "facts", b"GGUF one")
    put(tmp_path, "warm-start", b"GGUF two", role="warm-start")
    assert packaged(tmp_path) == {"facts": tmp_path / "facts.gguf", "warm-start": tmp_path / "warm-start.gguf"}
    assert read_cards(tmp_path)["facts"].figures == {"own": 0.99}
    assert faults(tmp_path) == []


def test_a_cards_claims_are_optional(tmp_path: Path) -> None:
    put(tmp_path, "conductor", b"GGUF one", role="conductor", claims="claims routing only")
    put(tmp_path, "facts", b"GGUF two")
    assert {name: card.claims for name, card in read_cards(tmp_path).items()} == {
        "conductor": "claims routing only",
        "facts": "",
    }


def test_an_empty_folder_has_nothing_and_is_not_at_fault(tmp_path: Path) -> None:
    assert (packaged(tmp_path), read_cards(tmp_path), faults(tmp_path)) == ({}, {}, [])


def test_a_file_that_is_not_its_cards_is_a_fault(tmp_path: Path) -> None:
    put(tmp_path, "facts", b"GGUF", sha256="0" * 64)
    (fault,) = faults(tmp_path)
    assert says(fault, "facts: sha256 000000000000…")


def test_a_file_without_a_card_and_a_card_without_a_file_are_faults(tmp_path: Path) -> None:
    put(tmp_path, "facts", b"GGUF")
    (tmp_path / "facts.gguf").rename(tmp_path / "letters.gguf")
    first, second = faults(tmp_path)
    assert says(first, "facts:")
    assert says(second, "letters: cards.toml")


def test_too_many_bytes_are_a_fault_each_and_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "MAX_BYTES", {"specialist": 10, "conductor": 20})
    monkeypatch.setattr(adapters, "MAX_TOTAL_BYTES", 25)
    put(tmp_path, "facts", b"x" * 11)
    put(tmp_path, "conductor", b"x" * 20, role="conductor")
    first, second = faults(tmp_path)
    assert says(first, "facts: 11 10")
    assert says(second, "31 25")


def test_a_card_with_a_misspelt_key_names_the_nearest(tmp_path: Path) -> None:
    put(tmp_path, "facts", b"GGUF")
    cards = tmp_path / "cards.toml"
    cards.write_text(cards.read_text().replace("recipe =", "recipy ="))
    with pytest.raises(ConfigError, match=facts("recipy recipe 5")):
        read_cards(tmp_path)
