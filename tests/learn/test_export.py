"""Export: an adapter in GGUF and back, and equal replies of llama.cpp and torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `learn`")
gguf = pytest.importorskip("gguf", reason="needs the extra `learn`")

from dirigent.errors import ConfigError  # noqa: E402
from dirigent.learn import export  # noqa: E402
from dirigent.learn.base import Base  # noqa: E402
from dirigent.learn.decoder import LINEAR, Adapter, Decoder, Shape, logprobs  # noqa: E402
from dirigent.learn.export import (  # noqa: E402
    ModelShapes,
    export_adapter,
    export_base,
    in_halves,
    interleaved,
    load_adapter,
    read_base,
    shapes_of,
)
from dirigent.learn.sampler import BatchedSampler  # noqa: E402
from dirigent.messages import Message, Request  # noqa: E402

HIDDEN, INNER, HEADS, KEY_VALUE_HEADS, RANK = 64, 128, 4, 2, 4
FAMILIES = ("llama", "qwen2")


def tiny(family: str) -> Any:
    """Random, and loud enough that its first choice is clear; grouped heads, as the real bases have them."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 49152,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "initializer_range": 0.4,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    if family == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(0, 0.5)
    return model.eval()


def base_from(model: Any, tokenizer: Any = None) -> Base:
    weights = dict(model.state_dict())
    weights.pop("lm_head.weight")
    stub = SimpleNamespace(get_vocab=dict, eos_token_id=2)
    return Base("tiny", weights, Shape.of(model.config), tokenizer or stub)


def random_adapter(base: Base, *, size: float = 0.5) -> Adapter:
    """An adapter that was never trained; its numbers are exact in float16."""
    generator = torch.Generator().manual_seed(3)
    adapter = Adapter.fresh(base.weights, base.shape, rank=RANK, alpha=2 * RANK, seed=3)
    for matrix in adapter.b.values():
        matrix.normal_(0, size, generator=generator)
    for side in (adapter.a, adapter.b):
        for name, matrix in side.items():
            side[name] = matrix.half().float()
    return adapter


@pytest.fixture(scope="module")
def tokenizer(weights_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(weights_path.parent, gguf_file=weights_path.name)


@pytest.fixture(scope="module", params=FAMILIES)
def base_gguf(weights_path: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    return export_base(tiny(request.param), folder / f"{request.param}.gguf", like=weights_path, precision="f32")


@pytest.fixture
def base() -> ModelShapes:
    return shapes_of(base_from(tiny("llama")))


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    random_adapter(base_from(tiny("llama"))).save(tmp_path / "facts", base="tiny")
    return tmp_path / "facts"


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


def test_rows_of_two_halves_of_a_head_are_interleaved_and_back() -> None:
    rows = torch.arange(8.0).reshape(8, 1)
    assert interleaved(rows, heads=2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert interleaved(rows, heads=1).flatten().tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert torch.equal(in_halves(interleaved(rows, heads=2), heads=2), rows)


def test_a_file_and_loaded_weights_give_the_same_shapes(base_gguf: Path) -> None:
    of_file, of_weights = read_base(base_gguf), shapes_of(base_from(tiny(base_gguf.stem)))
    assert of_weights.shapes == {name: shape for name, shape in of_file.shapes.items() if name.startswith("blk.")}
    for one in (of_file, of_weights):
        assert (one.architecture, one.heads, one.key_value_heads) == (base_gguf.stem, HEADS, KEY_VALUE_HEADS)
    assert of_file.shapes["blk.0.attn_k.weight"] == (HIDDEN // 2, HIDDEN)
    assert of_file.shapes["blk.1.ffn_down.weight"] == (HIDDEN, INNER)


def test_an_adapter_becomes_one_file_with_llamas_names_in_float16(
    adapter: Path, base: ModelShapes, tmp_path: Path
) -> None:
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


def test_only_the_rows_of_query_and_key_change_their_order(adapter: Path, base: ModelShapes, tmp_path: Path) -> None:
    written = tensors_of(export_adapter(adapter, tmp_path / "a.gguf", base=base).path)
    given = saved(adapter)
    for layer, heads in (("q_proj", HEADS), ("k_proj", KEY_VALUE_HEADS)):
        b, name = given[key(layer, "B")], f"blk.0.{export.LAYERS[layer]}.weight.lora_b"
        assert torch.equal(written[name].float(), interleaved(b, heads=heads))
        assert not torch.equal(written[name].float(), b)
    assert torch.equal(written["blk.0.attn_v.weight.lora_b"].float(), given[key("v_proj", "B")])
    assert torch.equal(written["blk.0.attn_q.weight.lora_a"].float(), given[key("q_proj", "A")])


def test_the_same_adapter_gives_the_same_bytes_and_leaves_nothing_else(
    adapter: Path, base: ModelShapes, tmp_path: Path
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
    done = export_adapter(adapter, tmp_path / "facts.gguf", base=ModelShapes("smollm2", "llama", 9, 3, shapes))
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
def test_an_adapter_that_the_format_cannot_express_is_refused(
    adapter: Path, base: ModelShapes, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    set_config(adapter, **changes)
    with pytest.raises(ConfigError, match=says):
        export_adapter(adapter, tmp_path / "a.gguf", base=base)
    assert not (tmp_path / "a.gguf").exists()


def test_the_error_for_a_folder_without_an_adapter_names_the_missing_file(
    adapter: Path, base: ModelShapes, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"adapter_config\.json is missing"):
        export_adapter(tmp_path / "nowhere", tmp_path / "a.gguf", base=base)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors is missing"):
        export_adapter(adapter, tmp_path / "a.gguf", base=base)


def test_tensors_that_do_not_belong_are_named(adapter: Path, base: ModelShapes, tmp_path: Path) -> None:
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


def test_the_command_prints_its_file_or_its_error(
    adapter: Path,
    base: ModelShapes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = str(tmp_path / "facts.gguf")
    monkeypatch.setattr(sys, "argv", ["export", str(adapter), out, "--base", str(tmp_path / "none.gguf")])
    with pytest.raises(SystemExit, match="error: there is no base model"):
        export.main()
    monkeypatch.setattr(export, "read_base", lambda path: base)  # a vocabulary takes seconds to read
    export.main()
    assert f"rank {RANK}, alpha {2 * RANK}, q_proj" in capsys.readouterr().out


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_adapter_is_read_back(family: str, tmp_path: Path) -> None:
    base = base_from(tiny(family))
    written = random_adapter(base)
    written.save(tmp_path / "peft", base="tiny")
    export_adapter(tmp_path / "peft", tmp_path / "a.gguf", base=shapes_of(base))
    for path in (tmp_path / "peft", tmp_path / "a.gguf"):
        read = load_adapter(path, base=base)
        assert (read.rank, read.alpha) == (RANK, 2 * RANK)
        for part in written.a:
            assert torch.equal(read.a[part], written.a[part])
            assert torch.equal(read.b[part], written.b[part])


def test_rows_of_query_and_key_move_for_llama_alone(tmp_path: Path) -> None:
    moved = {}
    for family in FAMILIES:
        base = base_from(tiny(family))
        random_adapter(base).save(tmp_path / family, base="tiny")
        file = export_adapter(tmp_path / family, tmp_path / f"{family}.gguf", base=shapes_of(base)).path
        given = saved(tmp_path / family)[key("q_proj", "B")]
        moved[family] = not torch.equal(tensors_of(file)["blk.0.attn_q.weight.lora_b"].float(), given)
    assert moved == {"llama": True, "qwen2": False}


def test_an_adapter_may_leave_a_layer_out_in_every_block_and_in_no_single_one(adapter: Path, base: ModelShapes) -> None:
    whole = saved(adapter)
    for left_out, refused in ((".k_proj.", False), (".layers.0.self_attn.k_proj.", True)):
        save(adapter, {name: tensor for name, tensor in whole.items() if left_out not in name})
        export_adapter(adapter, adapter / "a.gguf", base=base)
        if refused:
            with pytest.raises(ConfigError, match=r"blk\.0\.attn_k\.weight"):
                load_adapter(adapter / "a.gguf", base=base_from(tiny("llama")))
            continue
        for path in (adapter, adapter / "a.gguf"):
            read = load_adapter(path, base=base_from(tiny("llama")))
            assert set(LINEAR) - set(read.a) == {"self_attn.k_proj"}
            assert torch.equal(read.b["mlp.up_proj"][1], whole[key("up_proj", "B", block=1)].float())


@pytest.mark.timeout(400)
def test_the_gyms_warm_start_gives_the_log_probabilities_that_transformers_gives(weights_path: Path) -> None:
    """SmolLM2-135M under the file that ships: the matrices are turned back, or this is far off."""
    peft = pytest.importorskip("peft", reason="compares with PEFT")
    weights = pytest.importorskip("dirigent_gym.weights", reason="needs the gym's adapters")
    from transformers import AutoModelForCausalLM, GgufConfig

    base = Base.from_gguf(weights_path, device="cpu")
    start = load_adapter(weights.FOLDER / "warm-start.gguf", base=base)
    model: Any = AutoModelForCausalLM.from_pretrained(
        weights_path.parent,
        gguf_file=weights_path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    config = peft.LoraConfig(r=start.rank, lora_alpha=start.alpha, target_modules=list(export.LAYERS))
    adapted = peft.get_peft_model(model, config).eval()
    named = dict(adapted.named_parameters())
    with torch.no_grad():
        for letter, side in (("A", start.a), ("B", start.b)):
            for part, stacked in side.items():
                for block, matrix in enumerate(stacked):
                    named[f"base_model.model.model.layers.{block}.{part}.lora_{letter}.default.weight"].copy_(matrix)
    prompt = base.prompt_ids([Message("user", "Count the letters in Oslo.\nWorkers:\n0 letters: Knows words.")])
    reply = base.reply_ids("Count the letters in Oslo. | letters 0 | -")
    with torch.no_grad():
        ours = logprobs(Decoder(base.weights, base.shape, start), [prompt], [[reply]])
        scores = adapted(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    theirs = scores.gather(1, torch.tensor(reply)[:, None])[:, 0]
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-3)


# ---- torch and llama.cpp -----------------------------------------------------------------------------------------

QUESTIONS = ["Count the letters in Oslo.", "Add 2 to 31.", "Say hello.", "What follows May?", "Name a river.", "Go on."]


async def replies_of(base_gguf: Path, adapter: Path) -> list[str]:
    pytest.importorskip("xllamacpp", reason="needs the extra `local`")
    from dirigent.workers.local import Local, LocalModel

    async with LocalModel(base_gguf, adapters={"it": adapter}, slots=1, threads=1, context_tokens=512) as model:
        worker = Local(model, name="it", adapter="it")
        asked = [Request((Message("user", q),), temperature=0.0, max_output_tokens=8) for q in QUESTIONS]
        return [(await worker.ask(request)).text for request in asked]


async def test_llama_cpp_with_an_exported_adapter_agrees_with_torch(
    base_gguf: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both families; and rows in the wrong order would be noticed."""
    base = base_from(tiny(base_gguf.stem), tokenizer)
    adapter = random_adapter(base, size=0.3)
    adapter.save(tmp_path / "it", base="tiny")
    prompts = [base.prompt_ids([Message("user", question)]) for question in QUESTIONS]
    with torch.no_grad():
        decoder = Decoder(base.weights, base.shape, adapter)
    written = BatchedSampler(end=base.end, max_tokens=8).greedy(decoder, prompts)
    ours = [base.text(ids).strip() for ids in written]

    right = export_adapter(tmp_path / "it", tmp_path / "it.gguf", base=read_base(base_gguf)).path
    theirs = [text.strip() for text in await replies_of(base_gguf, right)]
    # Many tokens of a random model are nearly tied, and llama.cpp keeps its memory of the prompt in float16.
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= 4

    other = {"llama": "qwen2", "qwen2": "llama"}[base_gguf.stem]
    monkeypatch.setattr(export.ModelShapes, "heads_of", lambda self, layer: _heads(self, layer, as_family=other))
    export_adapter(tmp_path / "it", tmp_path / "wrong.gguf", base=read_base(base_gguf))
    theirs = [text.strip() for text in await replies_of(base_gguf, tmp_path / "wrong.gguf")]
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) < 4


def _heads(shapes: ModelShapes, layer: str, *, as_family: str) -> int | None:
    return {"q_proj": shapes.heads, "k_proj": shapes.key_value_heads}.get(layer) if as_family == "llama" else None
