"""While plans are written the adapter lies in the weights, and afterwards everything is as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.facts import facts

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from tests.gym.train.llamas import small_llama  # noqa: E402

from dirigent.errors import ConfigError  # noqa: E402
from dirigent_gym.train.base import encode, load_base  # noqa: E402
from dirigent_gym.train.policy import (  # noqa: E402
    ADAPTER,
    Halved,
    Merged,
    Policy,
    open_base,
    token_ids,
    token_texts,
)
from dirigent_gym.train.recipe import BaseSettings, TinySettings  # noqa: E402
from dirigent_gym.train.sft import SftSettings, with_adapter  # noqa: E402
from dirigent_gym.train.tiny import tiny_base  # noqa: E402


@pytest.fixture
def adapted() -> Any:
    model = with_adapter(small_llama(seed=1), ADAPTER, SftSettings(rank=4, alpha=8))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.arange(12).reshape(1, 12)).logits


def test_a_merged_policy_says_what_the_adapted_one_says(adapted: Any) -> None:
    with_it = logits(adapted)
    merged = Merged(on="cpu")
    with merged.weights(adapted):
        torch.testing.assert_close(logits(adapted), with_it, rtol=1e-4, atol=1e-5)
    with adapted.disable_adapter():
        assert not torch.allclose(logits(adapted), with_it, atol=1e-2)


def test_a_step_of_training_shows_the_next_time_it_writes(adapted: Any) -> None:
    merged = Merged(on="cpu")
    with merged.weights(adapted):
        before = logits(adapted)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    with merged.weights(adapted):
        after = logits(adapted)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, logits(adapted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fails", [False, True])
def test_afterwards_weights_and_what_trains_are_as_before(adapted: Any, fails: bool) -> None:
    weights = {name: parameter.detach().clone() for name, parameter in adapted.named_parameters()}
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    before = logits(adapted)
    try:
        with Merged(on="cpu").weights(adapted):
            if fails:
                raise RuntimeError("out of memory")
    except RuntimeError:
        assert fails
    for name, parameter in adapted.named_parameters():
        assert torch.equal(parameter, weights[name]), name
    assert {name for name, parameter in adapted.named_parameters() if parameter.requires_grad} == trained
    assert torch.equal(logits(adapted), before)


def test_elsewhere_nothing_is_merged(adapted: Any) -> None:
    pointers = [parameter.data_ptr() for parameter in adapted.parameters()]
    with Merged().weights(adapted), Halved().weights(adapted):
        assert [parameter.data_ptr() for parameter in adapted.parameters()] == pointers


def test_a_recipe_may_keep_the_adapter_apart(adapted: Any) -> None:
    assert isinstance(Policy(adapted, None, max_completion_tokens=8, merge=True)._quicker, Merged)
    assert isinstance(Policy(adapted, None, max_completion_tokens=8, merge=False)._quicker, Halved)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_are_to_the_bit_what_peft_adds_up(adapted: Any, dtype: str) -> None:
    layers = [module for module in adapted.modules() if hasattr(module, "get_delta_weight")]
    for layer in layers:
        layer.get_base_layer().to(getattr(torch, dtype))
    with torch.no_grad():
        want = [
            (layer.get_base_layer().weight.float() + layer.get_delta_weight(ADAPTER).float()).to(getattr(torch, dtype))
            for layer in layers
        ]
    with Merged(on="cpu").weights(adapted):
        for layer, weight in zip(layers, want, strict=True):
            assert torch.equal(layer.get_base_layer().weight, weight)


TEXTS = ["one two, three .", "<|im_start|>user\nfour  five's 67<|im_end|>\n", "", "na\u00efve \u4e2d\u6587 don't"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_base(TEXTS * 3, settings=TinySettings(hidden=32, layers=1, heads=2, words=300), seed=5)[1]


@pytest.mark.parametrize("padded_before", [False, True])
def test_ids_are_those_of_the_tokenizers_own_call(tokenizer: Any, padded_before: bool) -> None:
    if padded_before:
        tokenizer(TEXTS, padding=True)  # which it remembers until it is called otherwise
    assert token_ids(tokenizer, TEXTS) == encode(tokenizer, TEXTS)
    assert token_ids(tokenizer, TEXTS) == encode(tokenizer, TEXTS)
    assert token_ids(tokenizer, []) == []


@pytest.mark.parametrize("clean_up", [False, True])
def test_texts_are_those_of_the_tokenizers_own_call(tokenizer: Any, clean_up: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(tokenizer, "clean_up_tokenization_spaces", clean_up)
    ids = encode(tokenizer, TEXTS)
    assert token_texts(tokenizer, ids) == tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert "<|im_start|>" not in token_texts(tokenizer, ids)[1]


# --- models of others ---


@pytest.fixture
def own() -> tuple[Any, Any]:
    return tiny_base(TEXTS * 3, settings=TinySettings(hidden=32, layers=1, heads=2, words=300), seed=5)


def saved(pair: tuple[Any, Any], folder: Path) -> BaseSettings:
    for part in pair:
        part.save_pretrained(folder)
    return BaseSettings(model=str(folder))


def test_a_model_that_names_no_padding_is_padded_with_its_end_mark(own: tuple[Any, Any], tmp_path: Path) -> None:
    own[1].pad_token = None
    model, tokenizer = open_base(saved(own, tmp_path))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id is not None
    policy = Policy(model, tokenizer, max_completion_tokens=3)
    assert policy.tokenizer.pad_token == "<|im_end|>"


def test_a_model_that_cannot_be_talked_to_or_is_not_there_is_named(own: tuple[Any, Any], tmp_path: Path) -> None:
    own[1].chat_template = None
    with pytest.raises(ConfigError, match=facts("chat template")):
        open_base(saved(own, tmp_path))
    with pytest.raises(ConfigError, match=facts("base.model nowhere")):
        open_base(BaseSettings(model=str(tmp_path / "nowhere")))


@pytest.mark.parametrize("marks", [("<|im_end|>", "<|endoftext|>"), ("<|endoftext|>",)])
def test_a_gguf_file_of_another_template_keeps_its_own_end_mark(
    marks: tuple[str, ...], own: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = own
    tokenizer.eos_token = marks[-1]
    monkeypatch.setattr(tokenizer, "get_vocab", lambda: dict.fromkeys(marks, 0))
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: tokenizer)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: model)
    _, found = load_base(Path("any.gguf"), device="cpu")
    assert (found.eos_token, found.pad_token) == (marks[0], marks[0])
