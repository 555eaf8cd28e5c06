"""The page of parity: the number of equal replies, each that differs, and the parts kept from run to run."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.facts import facts, says

pytest.importorskip("torch", reason="needs the extra `train`")
gguf = pytest.importorskip("gguf", reason="needs the extra `train`")
pytest.importorskip("peft", reason="needs the extra `train`")
xllamacpp = pytest.importorskip("xllamacpp", reason="needs the extra `local`")

from gym.benchmarks import parity  # noqa: E402
from gym.benchmarks.parity_page import (  # noqa: E402
    Agreement,
    Difference,
    Part,
    Subject,
    Templates,
    as_page,
    read,
    write,
)

from dirigent.errors import ConfigError  # noqa: E402
from dirigent.workers import local_server  # noqa: E402
from dirigent.workers.adapters import packaged  # noqa: E402
from dirigent.workers.local_server import ServerSettings  # noqa: E402

SUBJECT = Subject("conductor", "ab", True, "base.gguf", "cd", 200, 20, 24, 1)
TIED = Difference(7, 3, " one", " two", 0.00312)


def part(*, subject: Subject = SUBJECT, commit: str = "abc123", on: tuple[Difference, ...] = ()) -> Part:
    rows = [Agreement(mode, 200 - len(found), 200, found) for mode, found in (("off", ()), ("on", on), ("merged", ()))]
    return Part(subject, Templates(200, 200, 200), tuple(rows), 190, commit, "2026-11-16", 600.0, 2, {"torch": "2.13"})


def test_the_page_counts_equal_answers_and_lists_different_ones() -> None:
    page = as_page({"f16": part(on=(TIED, Difference(19, 0, "|", "\n", 0.02)))})
    assert says(page, "`conductor`")
    assert says(page, "200 20")
    assert "| f16 | off | 200 of 200 | – |" in page
    assert "| f16 | on | 198 of 200 | 0.0200 |" in page
    assert '| f16 | on | 7, specialist | 3 | `" one"` | `" two"` | 0.0031 |' in page
    assert '| f16 | on | 19, conductor | 0 | `"\\|"` | `"\\n"` | 0.0200 |' in page
    assert says(page, "f16")
    assert says(page, "190 200")
    assert says(page, "10 2 2.13 `abc123`")
    assert "| f32" not in page, "no control was measured"


def test_nothing_that_differs_is_no_table() -> None:
    assert "All that differ" not in as_page({"f16": part()})


def test_the_control_names_differences_that_vanish_without_rounding() -> None:
    other = Difference(9, 1, "a", "b", 0.001)
    memory = part(on=(other, Difference(50, 2, "a", "b", 0.1)))
    page = as_page({"f16": part(on=(TIED, other)), "f32": memory, "f32-all": part()})
    assert says(page, "2 f16 1 f32")
    assert says(page, "2 f16 f32-all 0")
    assert says(page, "f16 f32 f32-all 200")


def test_a_precision_that_is_not_measured_is_kept_with_its_commit() -> None:
    before = {"f32": part(commit="older")}
    kept = parity.with_part(before, "f16", part(commit="newer"))
    assert {name: found.commit for name, found in kept.items()} == {"f16": "newer", "f32": "older"}


@pytest.mark.parametrize(("field", "value"), [("adapter_sha256", "ef"), ("base_sha256", "ef"), ("tokens", 16)])
def test_a_precision_of_another_file_or_of_other_prompts_is_not_kept(field: str, value: object) -> None:
    other = msgspec.structs.replace(SUBJECT, **{field: value})
    assert list(parity.with_part({"f32": part(subject=other)}, "f16", part())) == ["f16"]


def test_written_results_are_read_again_and_give_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, parts = tmp_path / "new" / "p.json", {"f16": part(on=(TIED,)), "f32": part()}
    write(parts, out)
    assert read(out) == parts
    page = out.with_suffix(".md").read_text(encoding="utf-8")
    out.with_suffix(".md").unlink()
    monkeypatch.setattr(sys, "argv", ["parity.py", "--page", "--out", str(out)])
    parity.main()
    assert out.with_suffix(".md").read_text(encoding="utf-8") == page == as_page(parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "p.md"), "error: --out p.md .json"),
        (("--page", "--out", "nowhere.json"), "error: nowhere.json"),
    ],
)
def test_bad_options_are_named_before_anything_is_loaded(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["parity.py", *arguments])
    with pytest.raises(SystemExit) as exit:
        parity.main()
    assert says(str(exit.value), message)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_comparison_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"f16": 1}')
    with pytest.raises(ConfigError, match=facts("p.json")):
        read(tmp_path / "p.json")


def test_the_controls_adapter_has_the_numbers_of_the_shipped_one(tmp_path: Path) -> None:
    shipped = packaged()["guesser"]
    narrow = gguf.GGUFReader(shipped)
    wide = gguf.GGUFReader(parity._widened(shipped, tmp_path / "wide.gguf"))
    named = [name for name in narrow.fields if not name.startswith("GGUF.")]
    assert [wide.fields[name].contents() for name in named] == [narrow.fields[name].contents() for name in named]
    assert [tensor.name for tensor in wide.tensors] == [tensor.name for tensor in narrow.tensors]
    for one, other in zip(narrow.tensors, wide.tensors, strict=True):
        assert (one.data.dtype, other.data.dtype) == ("float16", "float32")
        assert (one.data == other.data).all()


def test_the_second_control_keeps_its_memory_in_float32_and_nothing_else_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serve(settings: ServerSettings) -> SimpleNamespace:
        params = xllamacpp.CommonParams()
        return SimpleNamespace(listening_address="http://127.0.0.1:8123", params=params)

    plain = xllamacpp.CommonParams
    monkeypatch.setattr(local_server, "_serve", serve)
    child = parity.WideChild(ServerSettings(weights="w.gguf", key="a-key-of-ours", alias="w"))
    assert {child.server.params.cache_type_k.name, child.server.params.cache_type_v.name} == {"GGML_TYPE_F32"}
    assert child.server.params.flash_attn_type.name == "LLAMA_FLASH_ATTN_TYPE_DISABLED", "it rounds what it reads"
    assert {plain().cache_type_k.name, plain().cache_type_v.name} == {"GGML_TYPE_F16"}
    assert (child.port, child.key.reveal()) == (8123, "a-key-of-ours")
    assert xllamacpp.CommonParams is plain


def test_the_page_in_the_docs_equals_the_measurement_of_the_shipped_conductor() -> None:
    parts = read(parity.PUBLISHED)
    assert parity.PUBLISHED.with_suffix(".md").read_text(encoding="utf-8") == as_page(parts)
    assert list(parts) == ["f16", "f32", "f32-all"]
    shipped = hashlib.sha256(packaged()["conductor"].read_bytes()).hexdigest()
    for found in parts.values():
        assert found.subject.adapter_sha256 == shipped
        assert (found.subject.prompts, found.templates.same_ids) == (200, 200)
        assert [row.mode for row in found.agreements] == ["off", "on", "merged"]
        assert all(row.of - row.same == len(row.differences) for row in found.agreements)
