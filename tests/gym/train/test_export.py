"""Export: what a PEFT adapter becomes in GGUF, and that llama.cpp then says what torch says."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `train`")
gguf = pytest.importorskip("gguf", reason="needs the extra `train`")
peft = pytest.importorskip("peft", reason="needs the extra `train`")
pytest.importorskip("xllamacpp", reason="needs the extra `local`")

from gym.benchmarks import parity  # noqa: E402

from dirigent.errors import ConfigError  # noqa: E402
from dirigent.messages import Request  # noqa: E402
from dirigent.workers.local import Local, LocalModel  # noqa: E402
from dirigent_gym.train import export  # noqa: E402
from dirigent_gym.train.base import encode, prompt_texts  # noqa: E402
from dirigent_gym.train.export import (  # noqa: E402
    Base,
    base_of,
    export_adapter,
    export_base,
    export_if_possible,
    interleaved,
    read_base,
)

HIDDEN, INNER, HEADS, KEY_VALUE_HEADS, RANK = 64, 128, 4, 2, 4
TIE = 0.05
"""Two tokens nearer than this, in logits, may fall either way: llama.cpp keeps what it has read in float16."""


def tiny_llama(seed: int = 0) -> Any:
    """Random, and loud enough that its first choice is clear; grouped heads, as the real base has them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.4,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokenizer(weights_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(weights_path.parent, gguf_file=weights_path.name)


@pytest.fixture(scope="module")
def base_gguf(weights_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return export_base(tiny_llama(), folder / "tiny.gguf", like=weights_path, precision="f32")


@pytest.fixture(scope="module")
def base(base_gguf: Path) -> Base:
    return read_base(base_gguf)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return parity.random_adapter(tiny_llama(), tmp_path / "facts", rank=RANK, size=0.5, seed=3)


def tensors_of(path: Path) -> dict[str, Any]:
    return {t.name: torch.tensor(t.data) for t in gguf.GGUFReader(path).tensors}


def saved(adapter: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(adapter / "adapter_model.safetensors")


def save(adapter: Path, tensors: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, adapter / "adapter_model.safetensors")


def set_config(adapter: Path, **changes: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def key(layer: str, half: str, *, block: int = 0) -> str:
    part = "self_attn" if layer in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    return f"base_model.model.model.layers.{block}.{part}.{layer}.lora_{half}.weight"


def test_rows_of_two_halves_of_a_head_are_interleaved() -> None:
    rows = torch.arange(8.0).reshape(8, 1)
    assert interleaved(rows, heads=2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert interleaved(rows, heads=1).flatten().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


def test_the_base_is_read_for_what_an_adapter_must_fit(base: Base) -> None:
    assert (base.heads, base.key_value_heads) == (HEADS, KEY_VALUE_HEADS)
    assert base.shapes["blk.0.attn_k.weight"] == (HIDDEN // 2, HIDDEN)
    assert base.shapes["blk.1.ffn_down.weight"] == (HIDDEN, INNER)


def test_a_models_config_says_of_it_what_its_file_says(base: Base, adapter: Path, tmp_path: Path) -> None:
    of_config = base_of(tiny_llama().config)
    assert (of_config.heads, of_config.key_value_heads) == (base.heads, base.key_value_heads)
    assert of_config.shapes == {name: shape for name, shape in base.shapes.items() if name.startswith("blk.")}
    by_file = export_adapter(adapter, tmp_path / "file.gguf", base=base)
    assert export_adapter(adapter, tmp_path / "config.gguf", base=of_config).sha256 == by_file.sha256


def test_what_cannot_be_exported_is_said_in_a_line_and_leaves_no_older_file(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, llama = tmp_path / "conductor.gguf", tiny_llama().config
    other = SimpleNamespace(model_type="qwen2")
    assert export_if_possible(adapter, out, config=llama) == ""
    assert out.is_file()
    assert export_if_possible(adapter, out, config=other).startswith("the base is a 'qwen2' model; ")
    assert not out.exists()
    monkeypatch.setitem(sys.modules, "gguf", None)
    said = export_if_possible(adapter, out, config=llama)
    assert said == "the package gguf is missing; pip install 'dirigent[train]'"
    assert not out.exists()


def test_an_adapter_becomes_one_file_with_llamas_names_in_float16(adapter: Path, base: Base, tmp_path: Path) -> None:
    done = export_adapter(adapter, tmp_path / "facts.gguf", base=base)
    assert (done.rank, done.alpha) == (RANK, 2 * RANK)
    assert done.targets == tuple(export.LAYERS)
    fields = gguf.GGUFReader(done.path).fields
    said = {name: fields[name].contents() for name in ("general.type", "general.architecture", "adapter.type")}
    assert said == {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    assert fields["adapter.lora.alpha"].contents() == 2 * RANK
    written, given = tensors_of(done.path), saved(adapter)
    assert len(written) == len(given) == 2 * 7 * 2
    assert written["blk.1.ffn_up.weight.lora_a"].dtype == torch.float16
    assert torch.equal(written["blk.1.ffn_up.weight.lora_a"].float(), given[key("up_proj", "A", block=1)])
    assert done.size_bytes == done.path.stat().st_size


def test_only_the_rows_of_query_and_key_change_their_order(adapter: Path, base: Base, tmp_path: Path) -> None:
    written = tensors_of(export_adapter(adapter, tmp_path / "a.gguf", base=base).path)
    given = saved(adapter)
    for layer, heads in (("q_proj", HEADS), ("k_proj", KEY_VALUE_HEADS)):
        b, name = given[key(layer, "B")], f"blk.0.{export.LAYERS[layer]}.weight.lora_b"
        assert torch.equal(written[name].float(), interleaved(b, heads=heads))
        assert not torch.equal(written[name].float(), b)
    assert torch.equal(written["blk.0.attn_v.weight.lora_b"].float(), given[key("v_proj", "B")])
    assert torch.equal(written["blk.0.attn_q.weight.lora_a"].float(), given[key("q_proj", "A")])


def test_the_same_adapter_gives_the_same_bytes_and_leaves_nothing_else(
    adapter: Path, base: Base, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    first = export_adapter(adapter, out / "a.gguf", base=base)
    again = export_adapter(adapter, out / "a.gguf", base=base)
    assert first.sha256 == again.sha256
    assert [path.name for path in out.iterdir()] == ["a.gguf"]


def test_a_specialists_file_for_the_real_base_is_two_megabytes(tmp_path: Path) -> None:
    """Rank 4 on value, output and the feed-forward layers of 30 blocks, as specialists are fitted."""
    sizes = {"v_proj": (192, 576), "o_proj": (576, 576), "down_proj": (576, 1536)}
    sizes |= dict.fromkeys(("gate_proj", "up_proj"), (1536, 576))
    shapes = {f"blk.{n}.{export.LAYERS[layer]}.weight": size for n in range(30) for layer, size in sizes.items()}
    tensors = {}
    for block in range(30):
        for layer, (rows, columns) in sizes.items():
            tensors[key(layer, "A", block=block)] = torch.zeros(RANK, columns)
            tensors[key(layer, "B", block=block)] = torch.zeros(rows, RANK)
    adapter = tmp_path / "facts"
    adapter.mkdir()
    save(adapter, tensors)
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 8}))
    done = export_adapter(adapter, tmp_path / "facts.gguf", base=Base("smollm2", "llama", 9, 3, shapes))
    assert 1.9e6 < done.size_bytes < 2.1e6
    assert done.targets == ("v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"use_dora": True}, "use_dora = True"),
        ({"use_rslora": True}, "use_rslora = True"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"alpha_pattern": {"q_proj": 1}}, "alpha_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"r": "four"}, "not PEFT's"),
        ({"r": 8}, "rank 8"),
    ],
)
def test_what_the_format_cannot_express_is_refused(
    adapter: Path, base: Base, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    set_config(adapter, **changes)
    with pytest.raises(ConfigError, match=says):
        export_adapter(adapter, tmp_path / "a.gguf", base=base)
    assert not (tmp_path / "a.gguf").exists()


def test_a_folder_without_an_adapter_says_what_is_missing(adapter: Path, base: Base, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapter_config\.json is missing"):
        export_adapter(tmp_path / "nowhere", tmp_path / "a.gguf", base=base)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors is missing"):
        export_adapter(adapter, tmp_path / "a.gguf", base=base)


def test_tensors_that_do_not_belong_are_named(adapter: Path, base: Base, tmp_path: Path) -> None:
    good = saved(adapter)
    faults = {
        "lm_head": good | {"base_model.model.lm_head.lora_A.weight": torch.zeros(RANK, HIDDEN)},
        "not its other half": {name: t for name, t in good.items() if name != key("v_proj", "B")},
        "for another model": good | {key("v_proj", h, block=9): good[key("v_proj", h)].clone() for h in "AB"},
        r"not 4 x 63": good | {key("v_proj", "A"): torch.zeros(RANK, HIDDEN - 1)},
        "beyond float16": good | {key("v_proj", "A"): torch.full((RANK, HIDDEN), 1e5)},
        "holds no tensors": {},
    }
    for says, tensors in faults.items():
        save(adapter, tensors)
        with pytest.raises(ConfigError, match=says):
            export_adapter(adapter, tmp_path / "a.gguf", base=base)


def test_a_base_that_is_missing_or_no_llama_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no base model"):
        read_base(tmp_path / "none.gguf")
    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match="'bert' model"):
        read_base(tmp_path / "bert.gguf")


def test_the_command_says_what_it_wrote_or_what_is_wrong(
    adapter: Path, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "facts.gguf")
    monkeypatch.setattr(sys, "argv", ["export", str(adapter), out, "--base", str(tmp_path / "none.gguf")])
    with pytest.raises(SystemExit, match="error: there is no base model"):
        export.main()
    monkeypatch.setattr(export, "read_base", lambda path: base)  # a vocabulary takes seconds to read
    export.main()
    assert f"rank {RANK}, alpha {2 * RANK}, q_proj" in capsys.readouterr().out


# ---- torch and llama.cpp -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(weights_path: Path, tmp_path_factory: pytest.TempPathFactory) -> parity.Files:
    folder = tmp_path_factory.mktemp("parity")
    model = tiny_llama()
    adapter = parity.random_adapter(model, folder / "random", rank=RANK, size=0.3, seed=3)
    return parity.prepare(model, folder, like=weights_path, adapter=adapter, precision="f32", say=print)


PROMPTS = parity.gym_prompts(10, seed=2)


def test_torch_and_llama_cpp_say_the_same_with_the_adapter_off_on_and_merged(
    files: parity.Files, tokenizer: Any
) -> None:
    templates, agreements, changed = asyncio.run(
        parity.compare(files, tokenizer, PROMPTS, max_tokens=12, threads=1, say=print)
    )
    assert (templates.same_text, templates.same_ids, templates.of) == (10, 10, 10)
    assert changed >= 8, "an adapter that changes nothing would prove nothing"
    for row in agreements:
        assert row.widest_gap < TIE, row
        assert row.same >= 6, row  # of a tiny random model many tokens are ties


async def test_an_adapter_in_the_wrong_order_would_be_noticed(
    files: parity.Files, base: Base, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "interleaved", lambda rows, *, heads: rows)
    wrong = tmp_path / "wrong.gguf"
    export_adapter(files.base_gguf.parent / "random", wrong, base=base)
    rows = encode(tokenizer, prompt_texts(tokenizer, PROMPTS))
    ours = parity.torch_greedy(parity._runner(files, "on"), rows, max_tokens=12, tokenizer=tokenizer)
    async with LocalModel(files.base_gguf, adapters={"it": wrong}, slots=1, threads=1, context_tokens=1024) as model:
        theirs = await parity.llama_greedy(model, PROMPTS, adapter="it", max_tokens=12, tokenizer=tokenizer)
    found = parity.agreement("on", files, tokenizer, rows, ours, theirs)
    assert found.same < 5
    assert found.widest_gap > TIE


async def test_a_worker_under_the_exported_adapter_replies_as_torch_does(files: parity.Files, tokenizer: Any) -> None:
    """The whole way: our wire, the server's chat template, the adapter chosen by the request."""
    rows = encode(tokenizer, prompt_texts(tokenizer, PROMPTS[:2]))
    ours = parity.torch_greedy(parity._runner(files, "on"), rows, max_tokens=8, tokenizer=tokenizer)
    said = tokenizer.batch_decode(ours, skip_special_tokens=True)
    async with LocalModel(
        files.base_gguf, adapters={"it": files.adapter_gguf}, slots=1, threads=1, context_tokens=1024
    ) as model:
        worker = Local(model, name="it", adapter="it")
        replies = [await worker.ask(Request(p, temperature=0.0, max_output_tokens=8)) for p in PROMPTS[:2]]
    assert [reply.text.strip() for reply in replies] == [text.strip() for text in said]
