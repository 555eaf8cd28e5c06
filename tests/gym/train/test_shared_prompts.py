"""Reading a prompt once for its group changes nothing but the time it takes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from trl.trainer.utils import add_fused_lm_head  # noqa: E402

from dirigent_gym.train.branch_attention import Kernels, Plain  # noqa: E402
from dirigent_gym.train.shared_prompts import (  # noqa: E402
    Branch,
    Shared,
    lay_flat,
    like_lengths,
    log_probs_and_entropies,
    pack,
    sequences,
)

PAD = 0
PROMPTS = ([5, 6, 7], [8, 9, 10, 11, 12, 13], [5, 6])
COMPLETIONS = ([20, 21, 22, 1], [23, 1], [24, 25, 26, 27, 28], [29])


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))
    return model


def batch() -> tuple[Any, Any, int]:
    """Every completion after every prompt, in an order that scatters the groups, padded as TRL pads."""
    rows = [(prompt, completion) for completion in COMPLETIONS for prompt in PROMPTS]
    longest, most = max(map(len, PROMPTS)), max(map(len, COMPLETIONS))
    ids = [[PAD] * (longest - len(p)) + p + c + [PAD] * (most - len(c)) for p, c in rows]
    mask = [[0] * (longest - len(p)) + [1] * (len(p) + len(c)) + [0] * (most - len(c)) for p, c in rows]
    return torch.tensor(ids), torch.tensor(mask), most


def plainly(model: Any, ids: Any, mask: Any, most: int) -> tuple[Any, Any]:
    """The way TRL does it."""
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-most] = -100
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return outputs.log_probs[:, -most:], outputs.entropy[:, -most:]


both_ways = pytest.mark.parametrize("kernels", [None, Plain()], ids=["padded", "flat"])


@both_ways
def test_log_probs_and_entropies_are_those_of_the_plain_way(model: Any, kernels: Kernels | None) -> None:
    ids, mask, most = batch()
    expected, expected_entropy = plainly(model, ids, mask, most)
    found, entropy = log_probs_and_entropies(model, ids, mask, completion_tokens=most, kernels=kernels)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(entropy, expected_entropy, atol=1e-5)
    assert bool((found[mask[:, -most:] == 0] == 0).all())


@both_ways
@pytest.mark.parametrize("of", [0, 1], ids=["log-probabilities", "entropies"])
def test_gradients_are_those_of_the_plain_way(model: Any, of: int, kernels: Kernels | None) -> None:
    ids, mask, most = batch()
    weights = torch.arange(len(ids)).float()[:, None] - 5

    def gradient(logps: Any) -> Any:
        model.zero_grad()
        (logps * weights).sum().backward()
        return model.model.layers[0].self_attn.k_proj.weight.grad.clone()

    expected = gradient(plainly(model, ids, mask, most)[of])
    found = gradient(log_probs_and_entropies(model, ids, mask, completion_tokens=most, kernels=kernels)[of])
    assert expected.abs().max() > 1e-3
    assert torch.allclose(found, expected, atol=1e-4)


def test_gradients_are_the_same_where_activations_are_computed_again_on_the_way_back(model: Any) -> None:
    """A flat row's attention is in place for the pass alone, so there the row is padded, whatever kernels there are."""
    ids, mask, most = batch()

    def gradient(**options: Any) -> Any:
        model.zero_grad()
        log_probs_and_entropies(model, ids, mask, completion_tokens=most, **options)[0].square().sum().backward()
        return model.model.layers[0].self_attn.k_proj.weight.grad.clone()

    expected = gradient()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    was_training = model.training
    model.train()  # in evaluation nothing is computed again
    try:
        found = gradient(kernels=Plain())
    finally:
        model.train(was_training)
        model.gradient_checkpointing_disable()
    assert expected.abs().max() > 1e-3
    assert torch.allclose(found, expected, atol=1e-4)


def test_rows_with_one_prompt_become_one_sequence() -> None:
    ids, mask, most = batch()
    found = sequences(ids, mask, completion_tokens=most)
    assert [one.prompt.tolist() for one in found] == list(PROMPTS)
    assert [branch.row for branch in found[1].branches] == [1, 4, 7, 10]
    assert [branch.completion.tolist() for branch in found[1].branches] == list(COMPLETIONS)


@both_ways
def test_an_empty_completion_takes_no_place(model: Any, kernels: Kernels | None) -> None:
    ids, mask = torch.tensor([[5, 6, 7, PAD], [5, 6, 7, 8]]), torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    logps, _ = log_probs_and_entropies(model, ids, mask, completion_tokens=1, kernels=kernels)
    assert logps[0].tolist() == [0.0]
    assert logps[1, 0] < 0


class Untouched(Plain):
    def forward(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("nothing branches off here")


@pytest.mark.parametrize(
    ("ids", "mask"), [([[PAD, 6, 7]], [[0, 1, 1]]), ([[5, 6, PAD]], [[1, 1, 0]])], ids=["one token", "nothing said"]
)
def test_what_kernels_cannot_take_is_padded(model: Any, ids: list[list[int]], mask: list[list[int]]) -> None:
    given = torch.tensor(ids), torch.tensor(mask)
    found, expected = (
        log_probs_and_entropies(model, *given, completion_tokens=1, kernels=kernels)[0]
        for kernels in (Untouched(), None)
    )
    assert found.tolist() == expected.tolist()


def test_without_padding_a_batch_holds_more() -> None:
    def of(tokens: int) -> Shared:
        return Shared(np.array([1]), [Branch(0, np.full(tokens, 2))])

    batches = list(like_lengths([of(9), of(2), of(3), of(50), of(3)], most_tokens=18, padded=False))
    assert [[one.tokens for one in batch] for batch in batches] == [[2, 3, 3, 9], [50]]


def test_sequences_of_like_length_go_together_within_the_bound() -> None:
    def of(tokens: int) -> Shared:
        return Shared(np.array([1]), [Branch(0, np.full(tokens, 2))])

    batches = list(like_lengths([of(9), of(2), of(3), of(50), of(3)], most_tokens=10))
    assert [[one.tokens for one in batch] for batch in batches] == [[2, 3, 3], [9], [50]]


def token_by_token(batch: list[Shared]) -> tuple[list[list[list[int]]], list[list[int]]]:
    """Ids, positions, labels and branches of every packed position, and where every completion token stands."""
    rows, cells = [], []
    for s, one in enumerate(batch):
        prompt = one.prompt.tolist()
        row = [(token, i, -100, 0) for i, token in enumerate(prompt[:-1])]
        for number, branch in enumerate(one.branches, 1):
            said = branch.completion.tolist()
            for turn, (token, label) in enumerate(zip([prompt[-1], *said], said, strict=False)):
                cells.append([branch.row, turn, s, len(row)])
                row.append((token, len(prompt) - 1 + turn, label, number))
        rows.append(row)
    length = -(-max(map(len, rows)) // 8) * 8
    padded = [row + [(0, 0, -100, -1)] * (length - len(row)) for row in rows]
    return [[[cell[k] for cell in row] for row in padded] for k in range(4)], cells


def drawn(rng: Any) -> list[Shared]:
    """Sequences of all sizes."""
    rows, shared = iter(rng.permutation(1000).tolist()), []
    for _ in range(rng.integers(1, 7)):
        said = [rng.integers(1, 50, size=rng.integers(0, 9)) for _ in range(rng.integers(1, 6))]
        shared.append(Shared(rng.integers(1, 50, size=rng.integers(1, 20)), [Branch(next(rows), ids) for ids in said]))
    return shared


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_packed_stands_where_it_would_token_by_token(seed: int) -> None:
    shared = drawn(np.random.default_rng(seed))
    (ids, positions, labels, branches), cells = token_by_token(shared)
    packed = pack(shared, device="cpu")
    assert [packed.ids_SL.tolist(), packed.positions_SL.tolist(), packed.labels_SL.tolist()] == [ids, positions, labels]
    assert packed.index_4N.T.tolist() == cells
    for s, of in enumerate(branches):
        want = [[j <= i and of[j] in (0, of[i]) for j in range(len(of))] for i in range(len(of))]
        assert packed.mask_S1LL[s, 0].tolist() == want


@pytest.mark.parametrize("seed", range(8))
def test_a_flat_row_has_all_prompts_and_then_all_branches(seed: int) -> None:
    shared = drawn(np.random.default_rng(seed))
    prompts, branches, cells = [], [], []
    for one in shared:
        prompt = one.prompt.tolist()
        prompts += [(token, i, -100) for i, token in enumerate(prompt[:-1])]
    for one in shared:
        prompt = one.prompt.tolist()
        for branch in one.branches:
            said = branch.completion.tolist()
            for turn, (token, label) in enumerate(zip([prompt[-1], *said], said, strict=False)):
                cells.append([branch.row, turn, 0, len(prompts) + len(branches)])
                branches.append((token, len(prompt) - 1 + turn, label))
    flat = lay_flat(shared, device="cpu")
    assert [tuple(token) for token in flat.table_3F.T.tolist()] == prompts + branches
    assert flat.index_4N.T.tolist() == cells
    assert flat.layout.prompt_tokens == len(prompts)
    ends = np.cumsum([sum(len(branch.completion) for branch in one.branches) for one in shared]).tolist()
    assert flat.layout.families.starts.tolist() == [0, *ends]
