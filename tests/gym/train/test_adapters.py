"""Adapters are the same matrices whether they are read from PEFT's folder or from the GGUF file made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")
peft = pytest.importorskip("peft", reason="needs the train extra")
transformers = pytest.importorskip("transformers", reason="needs the train extra")

from dirigent.errors import ConfigError  # noqa: E402
from dirigent.learn.export import ModelShapes, export_adapter  # noqa: E402
from dirigent.workers.adapters import packaged, read_cards  # noqa: E402
from dirigent_gym.train.adapters import (  # noqa: E402
    PACKAGED,
    adapter_named,
    find_adapters,
    load_adapter,
    load_adapters,
    put_adapter,
)
from dirigent_gym.train.stacked import stack  # noqa: E402
from dirigent_gym.weights import FOLDER  # noqa: E402

HIDDEN, INNER, HEADS, KV_HEADS = 64, 96, 4, 2
SHAPES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // 2, HIDDEN),
    "attn_v": (HIDDEN // 2, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}


def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        initializer_range=0.2,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One adapter on all linear layers, as PEFT wrote it and as GGUF."""
    folder = tmp_path_factory.mktemp("adapter")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=12, target_modules="all-linear")
    wrapped = peft.get_peft_model(model(), config)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            # Numbers that float16 holds exactly, so that both files hold the same.
            parameter.data = (torch.randn_like(parameter) * 0.3).half().float()
    wrapped.save_pretrained(str(folder / "all"))
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(2) for name, shape in SHAPES.items()}
    export_adapter(folder / "all", folder / "all.gguf", base=ModelShapes("tiny", "llama", HEADS, KV_HEADS, shapes))
    return folder / "all", folder / "all.gguf"


def test_a_gguf_file_holds_the_matrices_of_the_folder_it_was_made_of(both: tuple[Path, Path]) -> None:
    theirs, ours = load_adapter(both[0], config=model().config), load_adapter(both[1], config=model().config)
    assert (ours.name, ours.rank, set(ours.pairs)) == (theirs.name, theirs.rank, set(theirs.pairs))
    for layer, (first, second) in theirs.pairs.items():
        assert torch.equal(ours.pairs[layer][0], first), layer
        assert torch.equal(ours.pairs[layer][1], second), layer


@torch.no_grad()
def test_a_model_says_the_same_under_either(both: tuple[Path, Path]) -> None:
    tokens = torch.arange(12)[None] % 50
    logits = []
    for path in both:
        stacked = stack(model(), [load_adapter(path, config=model().config)])
        with stacked.mask.use([0]):
            logits.append(stacked.model(tokens).logits)
    assert torch.equal(*logits)
    assert (logits[0] - model()(tokens).logits).abs().max() > 0.1


def test_a_file_that_is_not_there_or_no_adapter_is_refused(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    with pytest.raises(ConfigError, match=r"nowhere\.gguf"):
        load_adapter(tmp_path / "nowhere.gguf", config=model().config)
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ConfigError, match=r"adapter\.type .*'missing'"):
        load_adapter(tmp_path / "model.gguf", config=model().config)


def test_what_ships_can_be_trained_over() -> None:
    names = sorted(name for name, card in read_cards().items() if card.role == "specialist")
    for adapter in load_adapters([packaged()[name] for name in names[:2]], config=model().config):
        card = read_cards()[adapter.name]
        assert adapter.rank == card.rank
        assert len(adapter.pairs) == 30 * 5
        first, second = adapter.pairs["model.layers.29.mlp.down_proj"]
        assert (first.shape, second.shape) == ((card.rank, 1536), (576, card.rank))
        assert second.abs().max() > 0


def test_the_first_folder_that_has_an_adapter_counts(tmp_path: Path) -> None:
    (tmp_path / "facts").mkdir()
    (tmp_path / "roman.gguf").touch()
    found = find_adapters([str(tmp_path), PACKAGED], ["facts", "roman", "letters"])
    assert found == [tmp_path / "facts", tmp_path / "roman.gguf", FOLDER / "letters.gguf"]


def test_those_that_nobody_has_are_named_with_where_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"facts, roman .*recipes/specialists\.toml"):
        find_adapters([str(tmp_path)], ["facts", "roman"])


def adapted(*, rank: int = 3, alpha: int = 6, targets: Any = "all-linear") -> Any:
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, target_modules=targets)
    return peft.get_peft_model(model(), config)


@pytest.mark.parametrize("which", [0, 1], ids=["peft", "gguf"])
def test_a_model_takes_up_either_at_a_scale_of_its_own(both: tuple[Path, Path], which: int) -> None:
    ids = torch.tensor([[3, 14, 15, 9, 26]])
    wanted = peft.PeftModel.from_pretrained(model(), str(both[0])).eval()(input_ids=ids).logits
    fresh = adapted().eval()
    assert not torch.allclose(fresh(input_ids=ids).logits, wanted, atol=1e-2)
    put_adapter(fresh, "default", load_adapter(both[which], config=fresh.config))
    assert torch.allclose(fresh(input_ids=ids).logits, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 4}, r"rank 3 .*rank 4 .*policy\.rank"),
        ({"targets": ["q_proj", "lm_head"]}, r"lm_head"),
        ({"targets": ["q_proj"]}, r"model\.layers\.0\..*policy\.targets"),
    ],
)
def test_one_that_does_not_fit_is_refused(both: tuple[Path, Path], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        put_adapter(adapted(**settings), "default", load_adapter(both[0], config=model().config))


def test_an_adapter_is_found_by_its_path_or_by_the_name_that_it_ships_under(both: tuple[Path, Path]) -> None:
    assert adapter_named(str(both[1])) == both[1]
    assert adapter_named("conductor") == packaged()["conductor"]
    with pytest.raises(ConfigError, match="conductr"):
        adapter_named("conductr")
