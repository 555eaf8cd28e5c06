"""The update reads each prompt once for its whole group.

TRL puts a row's prompt before each of its completions, so a group of 16 reads the same prompt 16 times, and a plan is
short where its prompt is long. Here a group is one sequence: the prompt, then every completion as a branch that sees
the prompt and itself. Each branch begins with the prompt's last token again, because that is what its first token is
predicted from. Log-probabilities, entropies and gradients are those of the plain way, up to rounding; the tokens read
are fewer by several times.

Works on whatever batch TRL makes: rows whose prompts are equal share, others stand alone. Where flash attention can be
used (`branch_attention.py`) tokens lie in one flat row; elsewhere, and where activations are computed again on the way
back, sequences are padded, and a mask says who reads what.

Dimensions: B rows, T tokens of a padded row, C completion tokens, S sequences, L tokens of a packed sequence,
K branches of a batch, N completion tokens of a batch, F tokens of a flat row.
"""

# ruff: noqa: N803, N806, N815 -- suffixes name dimensions

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from dirigent_gym.train.branch_attention import Flash, Kernels, Layout, branch_attention, fault, layout_of
from dirigent_gym.train.passes import Sums, quick_passes, recomputes
from dirigent_gym.train.upload import upload

NO_LABEL = -100
PADDING = -1
MOST_TOKENS = 32_768
"""Of one pass through the model, padding counted: sequences of like length go together. More at once means fewer
launches but longer padding, and what attention computes grows with the square of that: twice as many was slower."""

Ids = np.ndarray[Any, np.dtype[np.int64]]

ALIGNED = 8
"""A mask whose rows are not a multiple of this long is copied to be, in every layer."""


class Branch(msgspec.Struct, frozen=True):
    row: int
    completion: Ids


class Shared(msgspec.Struct, frozen=True):
    """A prompt and the completions that share it."""

    prompt: Ids
    branches: list[Branch]

    @property
    def tokens(self) -> int:
        return len(self.prompt) - 1 + sum(len(branch.completion) for branch in self.branches)


class Packed(msgspec.Struct, frozen=True):
    """Sequences as tensors."""

    ids_SL: torch.Tensor
    positions_SL: torch.Tensor
    labels_SL: torch.Tensor
    """What each position predicts: not the token beside it where a branch ends."""
    mask_S1LL: torch.Tensor
    index_4N: torch.Tensor
    """Where every completion token stands: row and turn in the plain batch, sequence and position in this one."""


def log_probs_and_entropies(
    model: Any,
    input_ids_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    completion_tokens: int,
    sums: Sums | None = None,
    kernels: Kernels | None = None,
    most_tokens: float = MOST_TOKENS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every completion token, [B, C], zero where a completion is padded; by TRL's own head.

    `sums` are those of an adapter that is not learned from, kept from one call to the next. `kernels` lay tokens flat
    whatever the device. `most_tokens` are those of one pass.
    """
    rows, device = len(input_ids_BT), input_ids_BT.device
    logps_BC = torch.zeros(rows, completion_tokens, device=device)
    entropies_BC = torch.zeros(rows, completion_tokens, device=device)
    found = sequences(input_ids_BT, mask_BT, completion_tokens=completion_tokens)
    flat = kernels or (None if fault(device) else Flash())
    # Computed again on the way back, a flat row would be one text: its attention is in place for the pass alone.
    if recomputes(model) or not all(map(_branches_off, found)):
        flat = None
    with quick_passes(model, sums=sums):
        for batch in like_lengths(found, most_tokens=most_tokens, padded=flat is None):
            outputs, index_4N = (
                _padded_pass(model, batch, device) if flat is None else _flat_pass(model, batch, device, flat)
            )
            at, packed_at = index_4N[:2].unbind(0), index_4N[2:].unbind(0)
            logps_BC = logps_BC.index_put(at, outputs.log_probs[packed_at].to(logps_BC.dtype))
            if outputs.entropy is not None:  # TRL's head has none for a reference with weights of its own
                entropies_BC = entropies_BC.index_put(at, outputs.entropy[packed_at].to(entropies_BC.dtype))
    return logps_BC, entropies_BC


def in_equal_passes(
    read: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    input_ids_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    rows: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, one pass for so many rows however long they are; None: for all of them.

    Where weights are shared out over processes, each pass brings them together, so all processes have to make as many.
    """
    size = rows or len(input_ids_BT)
    passes = [
        read(ids, mask, most_tokens=math.inf)
        for ids, mask in zip(input_ids_BT.split(size), mask_BT.split(size), strict=True)
    ]
    logps, entropies = zip(*passes, strict=True)
    return torch.cat(logps), torch.cat(entropies)


def _padded_pass(model: Any, batch: Sequence[Shared], device: Any) -> tuple[Any, torch.Tensor]:
    packed = pack(batch, device=device)
    outputs = model(
        input_ids=packed.ids_SL,
        attention_mask=packed.mask_S1LL,
        position_ids=packed.positions_SL,
        shift_labels=packed.labels_SL,
        fused_lm_head=True,
    )
    return outputs, packed.index_4N


def _flat_pass(model: Any, batch: Sequence[Shared], device: Any, kernels: Kernels) -> tuple[Any, torch.Tensor]:
    flat = lay_flat(batch, device=device)
    ids_1F, positions_1F, labels_1F = flat.table_3F.unsqueeze(1).unbind(0)
    with branch_attention(getattr(model, "module", model).config, flat.layout, kernels=kernels):
        outputs = model(input_ids=ids_1F, position_ids=positions_1F, shift_labels=labels_1F, fused_lm_head=True)
    return outputs, flat.index_4N


def _branches_off(sequence: Shared) -> bool:
    """Whether there is something to branch off from, and something that does: kernels take no empty runs of keys."""
    return len(sequence.prompt) > 1 and any(len(branch.completion) for branch in sequence.branches)


def sequences(input_ids_BT: torch.Tensor, mask_BT: torch.Tensor, *, completion_tokens: int) -> list[Shared]:
    """Rows padded before their prompts and after their completions, as prompts with their completions."""
    start = input_ids_BT.shape[1] - completion_tokens
    before_B, after_B = torch.stack([mask_BT[:, :start].sum(1), mask_BT[:, start:].sum(1)]).tolist()
    ids_BT = input_ids_BT.cpu().numpy()
    found: dict[bytes, Shared] = {}
    for row, (ids, before, after) in enumerate(zip(ids_BT, before_B, after_B, strict=True)):
        prompt = ids[start - before : start]
        shared = found.setdefault(prompt.tobytes(), Shared(prompt, []))
        shared.branches.append(Branch(row, ids[start : start + after]))
    return list(found.values())


def like_lengths(
    all_sequences: Sequence[Shared], *, most_tokens: float = MOST_TOKENS, padded: bool = True
) -> Iterator[list[Shared]]:
    """Shortest first, as many at a time as stay within the bound, padding counted where there is some; one too long
    stands alone."""
    batch: list[Shared] = []
    for sequence in sorted(all_sequences, key=lambda one: one.tokens):
        before = len(batch) * sequence.tokens if padded else sum(one.tokens for one in batch)
        if batch and before + sequence.tokens > most_tokens:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch


def pack(batch: Sequence[Shared], *, device: Any) -> Packed:
    length = -(-max(sequence.tokens for sequence in batch) // ALIGNED) * ALIGNED
    table = np.zeros((4, len(batch), length), dtype=np.int64)
    ids_SL, positions_SL, labels_SL, branch_SL = table
    labels_SL.fill(NO_LABEL)
    branch_SL.fill(PADDING)
    order_L = np.arange(length)
    places = []
    for s, sequence in enumerate(batch):
        end = before = len(sequence.prompt) - 1
        ids_SL[s, :before] = sequence.prompt[:-1]
        positions_SL[s, :before] = order_L[:before]
        branch_SL[s, :before] = 0
        for number, branch in enumerate(sequence.branches, 1):
            start, end = end, end + len(branch.completion)
            places.append((branch.row, s, start, end - start))
            ids_SL[s, start:end][:1] = sequence.prompt[-1]
            ids_SL[s, start + 1 : end] = branch.completion[:-1]
            positions_SL[s, start:end] = order_L[before : before + end - start]
            labels_SL[s, start:end] = branch.completion
            branch_SL[s, start:end] = number
    ids, positions, labels, branch_of = upload(table, device).unbind(0)
    return Packed(ids, positions, labels, _visible(branch_of), upload(_index(places), device))


class Flat(msgspec.Struct, frozen=True):
    """Sequences as one row: all prompts, then all branches."""

    table_3F: torch.Tensor
    """Ids, positions and labels."""
    layout: Layout
    index_4N: torch.Tensor
    """As of packed sequences; there is one of them."""


def lay_flat(batch: Sequence[Shared], *, device: Any) -> Flat:
    prompts = [len(sequence.prompt) - 1 for sequence in batch]
    families = [[branch for branch in sequence.branches if len(branch.completion)] for sequence in batch]
    table = np.zeros((3, sum(sequence.tokens for sequence in batch)), dtype=np.int64)
    table[2].fill(NO_LABEL)
    order = np.arange(max(sequence.tokens for sequence in batch) + 1)
    places, end, start_of_branch = [], 0, sum(prompts)
    for sequence, before, family in zip(batch, prompts, families, strict=True):
        start, end = end, end + before
        table[0, start:end], table[1, start:end] = sequence.prompt[:-1], order[:before]
        for branch in family:
            size = len(branch.completion)
            places.append((branch.row, 0, start_of_branch, size))
            own = slice(start_of_branch, start_of_branch + size)
            table[0, own] = np.concatenate((sequence.prompt[-1:], branch.completion[:-1]))
            table[1, own] = order[before : before + size]
            table[2, own] = branch.completion
            start_of_branch += size
    layout = layout_of(prompts, [[len(branch.completion) for branch in family] for family in families], device)
    return Flat(upload(table, device), layout, upload(_index(places), device))


def _visible(branch_SL: torch.Tensor) -> torch.Tensor:
    """What each position may read: the prompt and its own branch up to itself. Padding reads padding, never nothing."""
    length = branch_SL.shape[1]
    earlier_LL = torch.ones(length, length, dtype=torch.bool, device=branch_SL.device).tril()
    of_prompt = branch_SL[:, None, :] == 0
    same = branch_SL[:, :, None] == branch_SL[:, None, :]
    return (earlier_LL & (of_prompt | same))[:, None]


def _index(places: Sequence[tuple[int, int, int, int]]) -> Ids:
    """Row, turn, sequence and position of each completion token, given row, sequence, first position and length of
    each branch."""
    row_K, s_K, start_K, size_K = np.array(places, dtype=np.int64).reshape(-1, 4).T
    turn_N = np.arange(size_K.sum()) - np.repeat(np.cumsum(size_K) - size_K, size_K)
    row_N, s_N, start_N = (np.repeat(column_K, size_K) for column_K in (row_K, s_K, start_K))
    return np.stack([row_N, turn_N, s_N, start_N + turn_N])
