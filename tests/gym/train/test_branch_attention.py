"""Attention over branches reads what attention with a mask reads, forth and back; kernels that do not are not used."""

from __future__ import annotations

from typing import Any

import pytest
from tests.facts import says

torch = pytest.importorskip("torch")

from dirigent_gym.train import branch_attention  # noqa: E402
from dirigent_gym.train.branch_attention import Flash, Plain, attend, disagreement, fault, layout_of  # noqa: E402

PROMPTS, BRANCHES = (5, 1, 3), ((4, 1), (2,), (3, 3, 1))


def readable() -> Any:
    """Who may read whom, token by token."""
    owners = [(p, -1) for p, length in enumerate(PROMPTS) for _ in range(length)]
    owners += [(p, b) for p, family in enumerate(BRANCHES) for b, length in enumerate(family) for _ in range(length)]
    return torch.tensor(
        [
            [p == q and (c == -1 if b != c else j <= i) for j, (q, c) in enumerate(owners)]
            for i, (p, b) in enumerate(owners)
        ]
    )


@pytest.mark.parametrize("keys", [1, 2, 4])
def test_it_reads_and_pulls_as_one_softmax_under_a_mask_does(keys: int) -> None:
    torch.manual_seed(1)
    mask = readable()
    q, k, v, weights = (torch.randn(len(mask), heads, 8, requires_grad=True) for heads in (4, keys, keys, 4))
    layout = layout_of(PROMPTS, BRANCHES, "cpu")
    found = attend(q, k, v, layout, scale=0.3, kernels=Plain())
    by_head = (tensor.transpose(0, 1) for tensor in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *by_head, attn_mask=mask, scale=0.3, enable_gqa=True
    ).transpose(0, 1)
    assert torch.allclose(found, expected, atol=1e-6)
    ours, theirs = (torch.autograd.grad((read * weights).sum(), (q, k, v)) for read in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_families_are_the_branches_of_a_prompt() -> None:
    layout = layout_of(PROMPTS, BRANCHES, "cpu")
    assert layout.prompt_tokens == 9
    assert layout.prompts.starts.tolist() == [0, 5, 6, 9]
    assert layout.branches.starts.tolist() == [0, 4, 5, 7, 10, 13, 14]
    assert layout.families.starts.tolist() == [0, 5, 7, 14]
    assert (layout.prompts.longest, layout.branches.longest, layout.families.longest) == (5, 4, 7)
    assert layout.families.starts.dtype == torch.int32


class Forgetful(Plain):
    """Reads right, and forgets on the way back that a part has the sums of the whole."""

    def backward(self, *given: Any, **named: Any) -> Any:
        gradient, q, k, v, _, _, seen = given
        out, sums, _ = self.forward(q, k, v, **named)
        return super().backward(gradient, q, k, v, out, sums, seen, **named)


class Blind(Plain):
    def forward(self, *given: Any, **named: Any) -> Any:
        return super().forward(*given, **{**named, "causal": False})


def test_kernels_that_differ_forth_or_back_are_found_out() -> None:
    assert disagreement(Plain(), "cpu", torch.float32) == 0.0
    assert disagreement(Blind(), "cpu", torch.float32) > 0.1
    assert disagreement(Forgetful(), "cpu", torch.float32) > 0.1
    assert 0 < disagreement(Plain(), "cpu", torch.bfloat16) < branch_attention.MOST_APART


def test_kernels_are_compared_even_where_a_pass_without_gradients_is_the_first_to_ask() -> None:
    with torch.no_grad():
        assert disagreement(Plain(), "cpu", torch.float32) == 0.0
        assert disagreement(Forgetful(), "cpu", torch.float32) > 0.1


def test_where_there_is_no_gpu_masks_do_it_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert fault(torch.device("cpu"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("far", "said"),
    [(0.5, "50%"), (NotImplementedError("no such kernel\nmore"), "no such kernel")],
)
def test_a_gpu_without_kernels_that_can_be_used_says_so_once(
    far: float | Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(kernels: Any, device: Any, dtype: Any) -> float:
        assert isinstance(kernels, Flash)
        if isinstance(far, Exception):
            raise far
        return far

    monkeypatch.setattr(branch_attention, "disagreement", measured)
    fault.cache_clear()
    assert [says(fault(torch.device("cuda", 3)), said) for _ in range(2)] == [True, True]
    assert says(capsys.readouterr().err, said)
    fault.cache_clear()
