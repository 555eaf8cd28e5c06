"""Merging: the same model as with the adapter beside it, in one file that is made once."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dirigent.config.build import Builder
from dirigent.config.file import parse_config
from dirigent.errors import ConfigError, WorkerError
from dirigent.messages import Message, Request
from dirigent.workers import local_server
from dirigent.workers.http import HttpClient
from dirigent.workers.local import Local, LocalModel
from dirigent.workers.local_server import ServerSettings, merged_file
from tests.facts import facts, says
from tests.workers.gguf_adapter import write_adapter

np = pytest.importorskip("numpy")
gguf = pytest.importorskip("gguf")

Q4_1, Q8_0 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
UP, DOWN = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"
COLUMNS, ROWS, RANK, ALPHA = 64, 96, 16, 32.0


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def write(path: Path, tensors: Mapping[str, Any], *, alpha: float | None = None) -> Path:
    """A GGUF file; matrices called `*.weight` are in 4 bits, as those of the default base."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "Ġb", "ü"])
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, array in tensors.items():
        if name.endswith(".weight"):
            writer.add_tensor(name, gguf.quants.quantize(array, Q4_1), raw_dtype=Q4_1)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    matrices = {UP: numbers(ROWS, COLUMNS), DOWN: numbers(COLUMNS, ROWS, seed=1)}
    return write(tmp_path / "base.gguf", {**matrices, "output_norm": numbers(COLUMNS)})


def write_lora(path: Path, *, name: str = UP, alpha: float | None = ALPHA, seed: int = 2) -> Path:
    a, b = numbers(RANK, COLUMNS, seed=seed), numbers(ROWS, RANK, seed=seed + 1)
    return write(path, {f"{name}.lora_a": a.astype(np.float16), f"{name}.lora_b": b.astype(np.float16)}, alpha=alpha)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Fields, then numbers and forms by tensor."""
    reader = gguf.GGUFReader(path)
    fields = {f.name: f.contents() for f in reader.fields.values() if not f.name.startswith("GGUF.")}
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    return fields, tensors, {t.name: t.tensor_type for t in reader.tensors}


@pytest.mark.parametrize(("alpha", "scale"), [(ALPHA, ALPHA / RANK), (None, 1.0)])
def test_the_adapter_is_added_in_and_all_else_stays(
    base: Path, tmp_path: Path, alpha: float | None, scale: float
) -> None:
    adapter = write_lora(tmp_path / "a.gguf", alpha=alpha)
    fields, tensors, forms = read(merged_file(base, adapter, folder=tmp_path / "merged"))
    fields_before, before, _ = read(base)
    lora = read(adapter)[1]
    assert fields == fields_before | {"general.file_type": 7}
    assert forms == {UP: Q8_0, DOWN: Q4_1, "output_norm": gguf.GGMLQuantizationType.F32}
    wanted = before[UP] + scale * (lora[f"{UP}.lora_b"] @ lora[f"{UP}.lora_a"])
    assert abs(tensors[UP] - wanted).max() < 0.005 * abs(wanted).max()
    assert np.array_equal(tensors[DOWN], before[DOWN])
    assert np.array_equal(tensors["output_norm"], before["output_norm"])


def test_it_is_made_once_and_anew_when_the_adapter_changes(base: Path, tmp_path: Path) -> None:
    adapter, folder = write_lora(tmp_path / "a.gguf"), tmp_path / "merged"
    first = merged_file(base, adapter, folder=folder)
    inode = first.stat().st_ino
    assert merged_file(base, adapter, folder=folder) == first
    assert first.stat().st_ino == inode
    write_lora(adapter, seed=9)
    second = merged_file(base, adapter, folder=folder)
    assert set(folder.glob("*.gguf")) == {first, second}, "the first may still be opened"


def test_a_merge_replaced_long_ago_is_deleted(base: Path, tmp_path: Path) -> None:
    adapter, folder = write_lora(tmp_path / "a.gguf"), tmp_path / "merged"
    old = merged_file(base, adapter, folder=folder)
    other = merged_file(base, write_lora(tmp_path / "b.gguf"), folder=folder)
    for path in (old, other):
        os.utime(path, (0, 0))
    write_lora(adapter, seed=9)
    new = merged_file(base, adapter, folder=folder)
    assert set(folder.glob("*.gguf")) == {new, other}


def test_a_file_in_use_counts_as_new(base: Path, tmp_path: Path) -> None:
    adapter, folder = write_lora(tmp_path / "a.gguf"), tmp_path / "merged"
    used = merged_file(base, adapter, folder=folder)
    os.utime(used, (0, 0))
    merged_file(base, adapter, folder=folder)
    assert used.stat().st_mtime > 0


async def test_several_at_once_get_the_same_whole_file(base: Path, tmp_path: Path) -> None:
    adapter = write_lora(tmp_path / "a.gguf")
    tries = [asyncio.to_thread(merged_file, base, adapter, folder=tmp_path / "merged") for _ in range(4)]
    (merged,) = set(await asyncio.gather(*tries))
    assert read(merged)[2][UP] == Q8_0


def test_an_interrupted_merge_is_made_again(base: Path, tmp_path: Path) -> None:
    adapter, folder = write_lora(tmp_path / "a.gguf"), tmp_path / "merged"
    whole = merged_file(base, adapter, folder=folder)
    data = whole.read_bytes()
    whole.rename(whole.with_name(whole.name + ".partial")).write_bytes(data[:100])
    assert merged_file(base, adapter, folder=folder).read_bytes() == data
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize(
    ("name", "message"), [(DOWN, f"{COLUMNS} {ROWS}"), ("blk.7.ffn_up.weight", "blk.7.ffn_up.weight")]
)
def test_an_adapter_of_another_model_leaves_no_file(base: Path, tmp_path: Path, name: str, message: str) -> None:
    adapter = write_lora(tmp_path / "a.gguf", name=name)
    with pytest.raises(ConfigError, match=facts(message)):
        merged_file(base, adapter, folder=tmp_path / "merged")
    assert {path.suffix for path in (tmp_path / "merged").iterdir()} == {".lock"}


def test_half_an_adapter_is_named(base: Path, tmp_path: Path) -> None:
    adapter = write(tmp_path / "a.gguf", {f"{UP}.lora_a": numbers(RANK, COLUMNS)})
    with pytest.raises(ConfigError, match=facts("blk.0.ffn_up.weight.lora_b")):
        merged_file(base, adapter, folder=tmp_path / "merged")


def settings(base: Path, adapter: Path, folder: Path) -> ServerSettings:
    return ServerSettings(str(base), "key", "alias", merged=str(adapter), merged_folder=str(folder))


def test_without_the_package_the_adapter_is_always_on(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_lora(tmp_path / "a.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert local_server._files(settings(base, adapter, tmp_path / "merged")) == (str(base), {str(adapter): 1.0})


def test_if_the_merge_cannot_be_stored_the_adapter_is_always_on(
    base: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    adapter = write_lora(tmp_path / "a.gguf")
    (tmp_path / "merged").write_text("a file where the folder should be")
    assert local_server._files(settings(base, adapter, tmp_path / "merged")) == (str(base), {str(adapter): 1.0})
    assert says(capfd.readouterr().err, "a.gguf")


QUESTION = Request((Message("user", "What is the capital of France?"),), temperature=0.0, max_output_tokens=12)


async def test_a_real_model_answers_as_with_the_adapter_beside_it(weights_path: Path, tmp_path: Path) -> None:
    babble = write_adapter(tmp_path / "babble.gguf", size=3.0)
    async with (
        LocalModel(weights_path, adapters={"babble": babble}, slots=1, context_tokens=512) as two,
        LocalModel(weights_path, merged=babble, slots=1, context_tokens=512, cache=tmp_path) as one,
    ):
        merged = Local(one, name="merged")
        replies = [await worker.ask(QUESTION) for worker in (Local(two, name="b", adapter="babble"), merged)]
        plain = await Local(two, name="plain").ask(QUESTION)
    assert merged.info.model == "SmolLM2-135M-Instruct.Q4_1+babble"
    assert replies[0].text[:10] == replies[1].text[:10] != plain.text[:10]
    assert len(list((tmp_path / "merged").glob("*.gguf"))) == 1


async def test_a_real_model_that_cannot_be_merged_answers_under_the_adapter_all_the_same(
    weights_path: Path, tmp_path: Path
) -> None:
    babble = write_adapter(tmp_path / "babble.gguf", size=3.0)
    (tmp_path / "merged").write_text("a file where the folder should be")
    async with (
        LocalModel(weights_path, adapters={"babble": babble}, slots=1, context_tokens=512) as two,
        LocalModel(weights_path, merged=babble, slots=1, context_tokens=512, cache=tmp_path) as one,
    ):
        replies = [
            await worker.ask(QUESTION) for worker in (Local(two, name="b", adapter="babble"), Local(one, name="m"))
        ]
    assert replies[0].text == replies[1].text


def test_a_merged_worker_has_a_process_of_its_own_without_the_others_adapters(
    weights_path: Path, tmp_path: Path
) -> None:
    adapter = write_lora(tmp_path / "a.gguf")
    local = f'kind = "local"\nweights = "{weights_path}"\nadapter = "{adapter}"'
    tables = [f'[[worker]]\nname = "{name}"\n{local}\n{more}' for name, more in MERGED_AND_BESIDE.items()]
    loaded = parse_config("\n".join(tables))
    builder = Builder(loaded, HttpClient())
    models = {worker.name: builder._model(worker) for worker in loaded.config.worker}
    assert models["merged"] is models["too"]
    assert models["merged"] is not models["beside"]
    assert models["merged"].adapter_id(None) is None
    assert models["beside"].adapter_id(str(adapter)) == 0
    assert builder.build(loaded.config.worker[0]).info.model == f"{weights_path.stem}+a"
    assert not builder.problems


MERGED_AND_BESIDE = {"merged": "merged = true", "too": "merged = true", "beside": ""}


def test_nothing_to_merge_is_an_error_of_the_config() -> None:
    with pytest.raises(ConfigError, match=facts("merged adapter")):
        parse_config('[[worker]]\nname = "x"\nkind = "local"\nmerged = true')


async def test_an_adapter_that_does_not_fit_is_an_error_of_the_request(weights_path: Path, tmp_path: Path) -> None:
    adapter = write_lora(tmp_path / "a.gguf")
    async with LocalModel(weights_path, merged=adapter, slots=1, context_tokens=512, cache=tmp_path) as model:
        with pytest.raises(WorkerError, match=facts("adapter")):
            await Local(model, name="x").ask(QUESTION)
