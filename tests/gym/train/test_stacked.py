"""Adapters stacked over one model say exactly what each says alone under PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")
peft = pytest.importorskip("peft", reason="needs the train extra")
transformers = pytest.importorskip("transformers", reason="needs the train extra")

from dirigent.errors import ConfigError  # noqa: E402
from dirigent_gym.train.adapters import load_adapter, load_adapters  # noqa: E402
from dirigent_gym.train.decode import DecodeSettings  # noqa: E402
from dirigent_gym.train.noise import draw, seed_starts, uniforms  # noqa: E402
from dirigent_gym.train.stacked import NO_ADAPTER, Stacked, stack, write  # noqa: E402

VOCABULARY, PAD, END = 97, 0, 1
MLP = ("gate_proj", "up_proj", "down_proj")
SPECIALIST = ("v_proj", "o_proj", *MLP)
ADAPTERS: dict[str, dict[str, Any]] = {
    "small": {"r": 4, "lora_alpha": 8, "target_modules": list(SPECIALIST)},
    "large": {"r": 16, "lora_alpha": 16, "target_modules": ["q_proj", "k_proj", *SPECIALIST]},
    "rooted": {"r": 3, "lora_alpha": 6, "target_modules": ["v_proj"], "use_rslora": True},
    "uneven": {"r": 2, "lora_alpha": 4, "target_modules": list(MLP), "rank_pattern": {"up_proj": 5}},
}


def tiny_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=PAD,
        bos_token_id=2,
        eos_token_id=END,
        initializer_range=0.2,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def peft_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A PEFT model with every adapter, random and loud, and the folder they were saved in."""
    folder = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(1)
    model: Any = None
    for name, settings in ADAPTERS.items():
        config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
        if model is None:
            model = peft.get_peft_model(tiny_model(), config, adapter_name=name)
        else:
            model.add_adapter(name, config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(str(folder))
    return model.eval(), folder


@pytest.fixture(scope="module")
def stacked(peft_model: tuple[Any, Path]) -> Stacked:
    return stack(tiny_model(), load_adapters([peft_model[1] / name for name in ADAPTERS]))


def ids(rows: int, length: int, seed: int = 3) -> Any:
    return torch.randint(2, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
@pytest.mark.parametrize("name", list(ADAPTERS))
def test_each_adapter_gives_the_logits_it_gives_under_peft(
    name: str, peft_model: tuple[Any, Path], stacked: Stacked
) -> None:
    model, tokens = peft_model[0], ids(3, 11)
    model.set_adapter(name)
    with stacked.mask.use([stacked.index(name)] * 3):
        ours = stacked.model(tokens).logits
    torch.testing.assert_close(ours, model(tokens).logits, atol=1e-4, rtol=1e-4)
    with model.disable_adapter():
        assert (ours - model(tokens).logits).abs().max() > 0.1  # The adapter is loud enough for this to mean something.


@torch.no_grad()
def test_rows_of_one_batch_are_each_under_their_own_adapter_or_none(
    peft_model: tuple[Any, Path], stacked: Stacked
) -> None:
    model, tokens = peft_model[0], ids(5, 9)
    names = ["rooted", None, "large", "small", "uneven"]
    with stacked.mask.use([NO_ADAPTER if name is None else stacked.index(name) for name in names]):
        ours = stacked.model(tokens).logits
    for i, name in enumerate(names):
        if name is None:
            expected = tiny_model()(tokens[i : i + 1]).logits
        else:
            model.set_adapter(name)
            expected = model(tokens[i : i + 1]).logits
        torch.testing.assert_close(ours[i : i + 1], expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_outside_use_the_model_is_its_base_and_so_it_is_after_a_failure(stacked: Stacked) -> None:
    tokens = ids(2, 7)
    with pytest.raises(RuntimeError, match="in the middle"), stacked.mask.use([0, 0]):
        raise RuntimeError("in the middle")
    torch.testing.assert_close(stacked.model(tokens).logits, tiny_model()(tokens).logits)


def test_stacking_shares_the_weights_and_leaves_the_given_model_alone(peft_model: tuple[Any, Path]) -> None:
    model = tiny_model()
    before = [name for name, _ in model.named_modules()]
    copied = stack(model, load_adapters([peft_model[1] / "small"])).model
    assert [name for name, _ in model.named_modules()] == before
    assert copied.model.layers[0].mlp.up_proj.base.weight is model.model.layers[0].mlp.up_proj.weight


def test_a_model_under_training_adapters_is_refused(peft_model: tuple[Any, Path]) -> None:
    with pytest.raises(ConfigError, match="stack before wrapping"):
        stack(peft_model[0].get_base_model(), load_adapters([peft_model[1] / "small"]))


def test_an_adapter_of_another_base_is_refused_with_both_sizes(peft_model: tuple[Any, Path]) -> None:
    config = tiny_model().config
    config.intermediate_size = 128
    with pytest.raises(ConfigError, match=r"96 to 64 at .*down_proj, the model 128 to 64"):
        stack(transformers.LlamaForCausalLM(config), load_adapters([peft_model[1] / "small"]))


def test_an_adapter_with_more_layers_than_the_model_is_refused(peft_model: tuple[Any, Path]) -> None:
    config = tiny_model().config
    config.num_hidden_layers = 1
    config.layer_types = None
    with pytest.raises(ConfigError, match=r"no layer model.layers.1"):
        stack(transformers.LlamaForCausalLM(config), load_adapters([peft_model[1] / "small"]))


def test_a_folder_without_an_adapter_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no adapter: it has no adapter_config.json"):
        load_adapter(tmp_path, config=None)


@pytest.mark.parametrize(
    "rest", [{}, {"base_model.model.model.embed_tokens.lora_embedding_A": 1}, {"lone.lora_A.weight": 1}]
)
def test_weights_that_are_no_pairs_of_matrices_are_refused(rest: dict[str, int], tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 8}')
    save_file({name: torch.zeros(2, 2) for name in rest}, str(tmp_path / "adapter_model.safetensors"))
    with pytest.raises(
        ConfigError, match=f"{next(iter(rest))}, which is no half" if rest else "holds no LoRA matrices"
    ):
        load_adapter(tmp_path, config=None)


def test_what_is_not_plain_lora_is_refused(peft_model: tuple[Any, Path], tmp_path: Path) -> None:
    for file in (peft_model[1] / "small").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_dora": True}))
    with pytest.raises(ConfigError, match="uses use_dora = True"):
        load_adapter(tmp_path, config=None)


def test_an_unknown_adapter_name_lists_those_there_are(stacked: Stacked) -> None:
    with pytest.raises(ConfigError, match="'roman'; there are: small, large, rooted, uneven"):
        stacked.index("roman")


def written(
    stacked: Stacked, prompts: list[list[int]], names: list[str], seeds: list[int | None], **options: Any
) -> Any:
    adapters = [stacked.index(name) for name in names]
    settings = DecodeSettings(**{"pad": PAD, "end": END, "max_new_tokens": 12} | options)
    return write(stacked, prompts, adapters=adapters, seeds=seeds, settings=settings)


PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15], [16, 17, 18, 19]]
NAMES = ["small", "large", "uneven", "rooted"]


def test_greedy_decoding_writes_what_transformers_writes_for_each_adapter_alone(
    peft_model: tuple[Any, Path], stacked: Stacked
) -> None:
    model = peft_model[0]
    ours = written(stacked, PROMPTS, NAMES, [None] * 4)
    for prompt, name, tokens in zip(PROMPTS, NAMES, ours, strict=True):
        model.set_adapter(name)
        row = torch.tensor([prompt])
        theirs = model.generate(
            input_ids=row, attention_mask=torch.ones_like(row), max_new_tokens=12, do_sample=False, pad_token_id=PAD
        )[0, len(prompt) :].tolist()
        assert tokens == (theirs[: theirs.index(END)] if END in theirs else theirs)


def test_small_chunks_change_nothing(stacked: Stacked) -> None:
    seeds = [None, 4, 5, None]
    together = written(stacked, PROMPTS, NAMES, seeds)
    assert written(stacked, PROMPTS, NAMES, seeds, chunk_tokens=20) == together


def test_a_static_cache_changes_nothing_for_rows_of_any_adapter(stacked: Stacked) -> None:
    seeds = [None, 4, 5, None]
    assert written(stacked, PROMPTS, NAMES, seeds, cache="static") == written(stacked, PROMPTS, NAMES, seeds)


def test_the_mask_of_a_size_that_is_captured_stays_where_it_lies(stacked: Stacked) -> None:
    with stacked.mask.use([0] * 16):
        first = stacked.mask.rows_BR
    with stacked.mask.use([1] * 16):
        assert stacked.mask.rows_BR is first
        assert first is not None
        assert first[0, 4] == 1.0  # the second adapter's first column, after the four of the first


def test_padding_with_the_end_mark_itself_changes_nothing(stacked: Stacked) -> None:
    seeds = [1, 2, 3, 4]
    assert written(stacked, PROMPTS, NAMES, seeds, pad=END) == written(stacked, PROMPTS, NAMES, seeds)


def test_a_sample_depends_on_its_seed_and_not_on_its_neighbours(stacked: Stacked) -> None:
    alone = written(stacked, [PROMPTS[1]], ["large"], [7])[0]
    beside = written(stacked, [PROMPTS[0], PROMPTS[1], PROMPTS[2]], ["small", "large", "large"], [8, 7, None])
    other = written(stacked, [PROMPTS[1]], ["large"], [9])[0]
    assert beside[1] == alone != other


def test_decoding_stops_at_the_end_mark_of_each_row(stacked: Stacked) -> None:
    texts = written(stacked, [PROMPTS[0]] * 40, ["small"] * 40, list(range(40)), max_new_tokens=30)
    assert all(END not in text for text in texts)
    assert len({len(text) for text in texts}) > 1


@torch.no_grad()
def test_sampling_follows_the_models_own_distribution(stacked: Stacked) -> None:
    n, prompt = 4000, PROMPTS[0]
    first = [
        text[0] if text else END
        for text in written(stacked, [prompt] * n, ["small"] * n, list(range(n)), max_new_tokens=1)
    ]
    with stacked.mask.use([stacked.index("small")]):
        expected = stacked.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    found = torch.bincount(torch.tensor(first), minlength=VOCABULARY) / n
    assert (found - expected).abs().sum() / 2 < 0.08


def test_numbers_differ_between_turns_and_seeds_and_are_even() -> None:
    starts, _ = seed_starts(list(range(50_000)), "cpu")
    numbers = uniforms(starts, torch.tensor([0]))
    assert not torch.equal(numbers, uniforms(starts, torch.tensor([1])))
    assert numbers.min() > 0.0
    assert numbers.max() < 1.0
    assert torch.histc(numbers, bins=10, min=0, max=1) / 50_000 == pytest.approx(torch.full((10,), 0.1), abs=0.01)
    turns = torch.stack([uniforms(starts[:1], torch.tensor([turn])) for turn in range(5_000)])
    assert turns.mean().item() == pytest.approx(0.5, abs=0.02)


def test_a_draw_never_takes_a_token_that_cannot_be() -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).expand(5, -1)
    points = torch.tensor([1e-7, 0.4999, 0.5, 0.5001, 1 - 2**-24])
    assert draw(probabilities, points).tolist() == [1, 1, 3, 3, 3]
