"""Pack: PEFT folders become the package's files and cards."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.facts import facts

torch = pytest.importorskip("torch", reason="needs the extra `train`")
pytest.importorskip("gguf", reason="needs the extra `train`")


from dirigent.learn.export import ModelShapes  # noqa: E402
from dirigent.workers.adapters import faults, packaged, read_cards  # noqa: E402
from dirigent_gym.train import pack as pack_module  # noqa: E402
from dirigent_gym.train.pack import Origin, cards_text, pack  # noqa: E402

BASE = ModelShapes("tiny", "llama", 2, 2, {"blk.0.attn_v.weight": (8, 8)})


def peft_folder(path: Path, *, size: float = 1.0) -> Path:
    from safetensors.torch import save_file

    path.mkdir(parents=True)
    layer = "base_model.model.model.layers.0.self_attn.v_proj"
    halves = {f"{layer}.lora_{half}.weight": torch.full(shape, size) for half, shape in (("A", (2, 8)), ("B", (8, 2)))}
    save_file(halves, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    return path


def test_folders_become_files_with_cards_that_fit(tmp_path: Path) -> None:
    folders = {name: peft_folder(tmp_path / "peft" / name) for name in ("facts", "conductor", "warm-start")}
    into = tmp_path / "weights"
    into.mkdir()
    pack(folders, into, base=BASE, origin=Origin("gym-gpu", "abc123", {"facts": {"own": 0.996}}))
    assert set(packaged(into)) == {"facts", "conductor", "warm-start"}
    assert faults(into) == []
    cards = read_cards(into)
    assert {name: card.role for name, card in cards.items()} == {
        "facts": "specialist",
        "conductor": "conductor",
        "warm-start": "warm-start",
    }
    assert (cards["facts"].rank, cards["facts"].alpha, cards["facts"].figures) == (2, 4.0, {"own": 0.996})
    assert (cards["conductor"].recipe, cards["conductor"].commit) == ("gym-gpu", "abc123")


def test_packing_one_again_keeps_the_others(tmp_path: Path) -> None:
    into = tmp_path / "weights"
    into.mkdir()
    both = {name: peft_folder(tmp_path / name) for name in ("facts", "letters")}
    before = pack(both, into, base=BASE, origin=Origin("first", "1", {"letters": {"own": 1.0, "questions": 400}}))
    again = {"facts": peft_folder(tmp_path / "again", size=2.0)}
    after = pack(again, into, base=BASE, origin=Origin("second", "2"))
    assert after["letters"] == before["letters"]
    assert 'figures = { "own" = 1.0, "questions" = 400 }' in (into / "cards.toml").read_text(encoding="utf-8")
    assert after["facts"].recipe == "second"
    assert after["facts"].sha256 != before["facts"].sha256
    assert faults(into) == []


def test_cards_are_written_as_they_are_read(tmp_path: Path) -> None:
    into = tmp_path / "weights"
    into.mkdir()
    odd = 'a "quoted"\nrecipe'
    cards = pack({"facts": peft_folder(tmp_path / "facts")}, into, base=BASE, origin=Origin(odd, "1", {"facts": {}}))
    assert read_cards(into) == cards
    assert (into / "cards.toml").read_text() == cards_text(cards)


def test_claims_are_written_on_the_cards_of_the_planners_packed_with_them(tmp_path: Path) -> None:
    into = tmp_path / "weights"
    into.mkdir()
    folders = {name: peft_folder(tmp_path / name) for name in ("facts", "conductor", "warm-start")}
    claims = 'starts from "gym" questions'
    pack(folders, into, base=BASE, origin=Origin("second", "1", claims=claims))
    assert {name: card.claims for name, card in read_cards(into).items()} == {
        "facts": "",
        "conductor": claims,
        "warm-start": claims,
    }
    assert (into / "cards.toml").read_text().count("claims = ") == 2
    pack({"conductor": folders["conductor"]}, into, base=BASE, origin=Origin("third", "2"))
    again = read_cards(into)
    assert (again["conductor"].claims, again["warm-start"].claims) == ("", claims)


def test_cards_without_a_claim_are_written_as_before() -> None:
    cards = read_cards()
    assert "claims" not in cards_text({name: card for name, card in cards.items() if not card.claims})


def test_a_claim_comes_from_the_command_line_in_one_line_and_only_for_a_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "weights"
    into.mkdir()
    monkeypatch.setattr(pack_module, "default_base", lambda: Path("tiny.gguf"))
    monkeypatch.setattr(pack_module, "read_base", lambda path: BASE)
    common = ["pack", "--recipe", "r", "--commit", "c", "--into", str(into), "--claims", "claims routing\n  only"]
    conductor = peft_folder(tmp_path / "conductor")
    monkeypatch.setattr(sys, "argv", [*common, "--conductor", str(conductor)])
    pack_module.main()
    assert read_cards(into)["conductor"].claims == "claims routing only"
    peft_folder(tmp_path / "peft" / "facts")
    monkeypatch.setattr(sys, "argv", [*common, "--specialists", str(tmp_path / "peft")])
    with pytest.raises(SystemExit, match=facts("error: --claims")):
        pack_module.main()
    assert set(packaged(into)) == {"conductor"}


def test_nothing_to_pack_and_no_such_specialist_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ["pack", "--recipe", "r", "--commit", "c", "--into", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", common)
    with pytest.raises(SystemExit, match=facts("error:")):
        pack_module.main()
    (tmp_path / "somebody").mkdir()
    monkeypatch.setattr(sys, "argv", [*common, "--specialists", str(tmp_path)])
    with pytest.raises(SystemExit, match=facts("facts")):
        pack_module.main()
