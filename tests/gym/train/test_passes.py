"""Quicker passes: the same numbers and the same gradients, and the model as it was afterwards."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from tests.gym.train.llamas import small_llama  # noqa: E402

from dirigent_gym.train.passes import Sums, merged_adapters, quick_passes  # noqa: E402
from dirigent_gym.train.sft import SftSettings, with_adapter  # noqa: E402

IDS = torch.tensor([[3, 9, 4, 4, 7, 21], [11, 5, 6, 20, 30, 41]])


@pytest.fixture
def adapted() -> Any:
    model = with_adapter(small_llama(seed=4), "one", SftSettings(rank=4, alpha=8))
    model = with_adapter(model, "two", SftSettings(rank=4, alpha=8))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.set_adapter("one")
    return model


def learned(model: Any, *, quick: bool) -> tuple[Any, dict[str, Any]]:
    """What the model says, and what a loss on it teaches."""
    model.zero_grad(set_to_none=True)
    with quick_passes(model, on="cpu" if quick else "nowhere"):
        logits = model(input_ids=IDS).logits
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_logits_and_gradients_are_those_of_the_plain_way(adapted: Any) -> None:
    plain, by_plain = learned(adapted, quick=False)
    quick, by_quick = learned(adapted, quick=True)
    assert torch.allclose(quick, plain, atol=1e-5)
    assert by_plain.keys() == by_quick.keys()
    assert all(".one." in name for name in by_quick)
    assert any(bool(gradient.abs().max() > 1e-3) for gradient in by_quick.values())
    for name, gradient in by_quick.items():
        assert torch.allclose(gradient, by_plain[name], atol=1e-5), name


def test_one_sum_serves_several_passes_and_one_way_back(adapted: Any) -> None:
    adapted.zero_grad(set_to_none=True)
    with quick_passes(adapted, on="cpu"):
        loss = sum(adapted(input_ids=ids[None]).logits.square().mean() for ids in IDS)
    loss.backward()
    quick = {name: p.grad.clone() for name, p in adapted.named_parameters() if p.grad is not None}
    adapted.zero_grad(set_to_none=True)
    sum(adapted(input_ids=ids[None]).logits.square().mean() for ids in IDS).backward()
    for name, parameter in adapted.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(quick[name], parameter.grad, atol=1e-5), name


def test_the_adapter_that_is_active_counts_and_none_where_they_are_off(adapted: Any) -> None:
    said = {}
    for name in ("one", "two"):
        adapted.set_adapter(name)
        with torch.no_grad(), quick_passes(adapted, on="cpu"):
            said[name] = adapted(input_ids=IDS).logits
        with torch.no_grad():
            assert torch.allclose(said[name], adapted(input_ids=IDS).logits, atol=1e-5)
    assert not torch.allclose(said["one"], said["two"], atol=1e-2)
    with adapted.disable_adapter(), torch.no_grad():
        plain = adapted(input_ids=IDS).logits
        with quick_passes(adapted, on="cpu"):
            assert torch.allclose(adapted(input_ids=IDS).logits, plain, atol=1e-5)


def test_afterwards_and_after_an_error_the_model_computes_as_before(adapted: Any) -> None:
    with pytest.raises(RuntimeError, match="on the way"), merged_adapters(adapted):
        raise RuntimeError("on the way")
    with quick_passes(adapted, on="cpu"):
        assert any("forward" in vars(module) for module in adapted.modules())
    assert not any("forward" in vars(module) for module in adapted.modules())


def test_where_activations_are_computed_again_nothing_is_exchanged(adapted: Any) -> None:
    adapted.get_base_model().gradient_checkpointing_enable()
    with quick_passes(adapted, on="cpu"):
        assert not any("forward" in vars(module) for module in adapted.modules())


def test_a_model_without_adapters_is_left_alone_but_for_its_norms() -> None:
    model = small_llama(seed=4)
    with torch.no_grad():
        plain = model(input_ids=IDS).logits
        with quick_passes(model, on="cpu"):
            assert torch.allclose(model(input_ids=IDS).logits, plain, atol=1e-5)


def test_a_model_that_gets_an_adapter_later_is_looked_through_again() -> None:
    model = with_adapter(small_llama(seed=4), "narrow", SftSettings(rank=4, targets=("q_proj",)))
    attention = model.get_base_model().model.layers[0].self_attn
    with quick_passes(model, on="cpu"):
        assert "forward" in vars(attention.q_proj)
    model = with_adapter(model, "wide", SftSettings(rank=4, targets=("q_proj", "k_proj")))
    with quick_passes(model, on="cpu"):
        assert "forward" in vars(attention.q_proj)
        assert "forward" in vars(attention.k_proj)
    model.set_adapter("narrow")
    with quick_passes(model, on="cpu"):
        assert "forward" in vars(attention.q_proj)
        assert "forward" not in vars(attention.k_proj)


def test_checkpointing_that_is_switched_on_and_off_is_noticed_each_time(adapted: Any) -> None:
    norm = adapted.get_base_model().model.norm
    for switch in ("gradient_checkpointing_disable", "gradient_checkpointing_enable", "gradient_checkpointing_disable"):
        getattr(adapted.get_base_model(), switch)()
        with quick_passes(adapted, on="cpu"):
            assert ("forward" in vars(norm)) == switch.endswith("disable")


def test_sums_that_are_kept_say_to_the_bit_what_new_ones_say(adapted: Any) -> None:
    sums = Sums()

    def said(sums: Sums | None) -> Any:
        with torch.no_grad(), quick_passes(adapted, on="cpu", sums=sums):
            return adapted(input_ids=IDS).logits

    first = said(sums)
    kept = list(sums._totals)
    assert torch.equal(said(sums), first)
    assert torch.equal(said(None), first)
    assert all(now is then for now, then in zip(sums._totals, kept, strict=True))


@pytest.mark.parametrize("how", ["written over", "another adapter", "other memory"])
def test_sums_are_made_again_where_what_they_are_made_of_has_changed(adapted: Any, how: str) -> None:
    sums = Sums()
    with torch.no_grad(), quick_passes(adapted, on="cpu", sums=sums):
        before = adapted(input_ids=IDS).logits
    up = adapted.get_base_model().model.layers[1].mlp.up_proj.lora_B["one"].weight
    if how == "written over":
        with torch.no_grad():
            up.add_(0.3)
    elif how == "another adapter":
        adapted.set_adapter("two")
    else:
        up.data = up.data + 0.3
    with torch.no_grad():
        with quick_passes(adapted, on="cpu", sums=sums):
            after = adapted(input_ids=IDS).logits
        with quick_passes(adapted, on="cpu"):
            assert torch.equal(after, adapted(input_ids=IDS).logits)
    assert not torch.allclose(before, after, atol=1e-3)
