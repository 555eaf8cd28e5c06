"""The update reads each prompt once for its whole group.

TRL puts a row's prompt before each of its completions, so a group of 16 reads the same prompt 16 times, and a plan is
short where its prompt is long. Here a group is one sequence: the prompt, then every completion as a branch that sees
the prompt and itself. Each branch begins with the prompt's last token again, because that is what its first token is
predicted from. Log-probabilities, entropies and gradients are those of the plain way, up to rounding; the tokens read
are fewer by several times.

Works on whatever batch TRL makes: rows whose prompts are equal share, others stand alone.

Dimensions: B rows, T tokens of a padded row, C completion tokens, S sequences, L tokens of a packed sequence.
"""

# ruff: noqa: N803, N806, N815 -- suffixes name dimensions

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch

from dirigent.train.passes import quick_passes

NO_LABEL = -100
PADDING = -1
MOST_TOKENS = 32_768
"""Of one pass through the model, padding counted: sequences of like length go together. More at once means fewer
launches but longer padding, and what attention computes grows with the square of that: twice as many was slower."""

ALIGNED = 8
"""A mask whose rows are not a multiple of this long is copied to be, in every layer."""


class Branch(msgspec.Struct, frozen=True):
    row: int
    completion: list[int]


class Shared(msgspec.Struct, frozen=True):
    """A prompt and the completions that share it."""

    prompt: list[int]
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
    places: list[tuple[int, int, int, int]]
    """Row, sequence, first position and length of every branch."""


def log_probs_and_entropies(
    model: Any, input_ids_BT: torch.Tensor, mask_BT: torch.Tensor, *, completion_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every completion token, [B, C], zero where a completion is padded; by TRL's own head."""
    rows, device = len(input_ids_BT), input_ids_BT.device
    logps_BC = torch.zeros(rows, completion_tokens, device=device)
    entropies_BC = torch.zeros(rows, completion_tokens, device=device)
    with quick_passes(model):
        for batch in like_lengths(sequences(input_ids_BT, mask_BT, completion_tokens=completion_tokens)):
            packed = pack(batch, device=device)
            outputs = model(
                input_ids=packed.ids_SL,
                attention_mask=packed.mask_S1LL,
                position_ids=packed.positions_SL,
                shift_labels=packed.labels_SL,
                fused_lm_head=True,
            )
            index = _index(packed, completion_tokens=completion_tokens, device=device)
            logps_BC = logps_BC.index_put(index[:2], outputs.log_probs[index[2:]].to(logps_BC.dtype))
            entropies_BC = entropies_BC.index_put(index[:2], outputs.entropy[index[2:]].to(entropies_BC.dtype))
    return logps_BC, entropies_BC


def sequences(input_ids_BT: torch.Tensor, mask_BT: torch.Tensor, *, completion_tokens: int) -> list[Shared]:
    """Rows padded before their prompts and after their completions, as prompts with their completions."""
    found: dict[tuple[int, ...], list[Branch]] = {}
    start = input_ids_BT.shape[1] - completion_tokens
    sizes = zip(mask_BT[:, :start].sum(1).tolist(), mask_BT[:, start:].sum(1).tolist(), strict=True)
    for row, (ids, (before, after)) in enumerate(zip(input_ids_BT.tolist(), sizes, strict=True)):
        found.setdefault(tuple(ids[start - before : start]), []).append(Branch(row, ids[start : start + after]))
    return [Shared(list(prompt), branches) for prompt, branches in found.items()]


def like_lengths(all_sequences: Sequence[Shared], *, most_tokens: int = MOST_TOKENS) -> Iterator[list[Shared]]:
    """Shortest first, as many at a time as stay within the bound when padded; one too long stands alone."""
    batch: list[Shared] = []
    for sequence in sorted(all_sequences, key=lambda one: one.tokens):
        if batch and (len(batch) + 1) * sequence.tokens > most_tokens:
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch


def pack(batch: Sequence[Shared], *, device: Any) -> Packed:
    length = -(-max(sequence.tokens for sequence in batch) // ALIGNED) * ALIGNED
    ids, positions, labels, branch_of, places = [], [], [], [], []
    for s, sequence in enumerate(batch):
        *before, last = sequence.prompt
        row_ids, row_positions = list(before), list(range(len(before)))
        row_labels, row_branch = [NO_LABEL] * len(before), [0] * len(before)
        for number, branch in enumerate(sequence.branches, 1):
            size = len(branch.completion)
            places.append((branch.row, s, len(row_ids), size))
            row_ids += [last, *branch.completion[:-1]][:size]
            row_positions += range(len(before), len(before) + size)
            row_labels += branch.completion
            row_branch += [number] * size
        gap = length - len(row_ids)
        ids.append(row_ids + [0] * gap)
        positions.append(row_positions + [0] * gap)
        labels.append(row_labels + [NO_LABEL] * gap)
        branch_of.append(row_branch + [PADDING] * gap)
    ids_SL, positions_SL, labels_SL, branch_SL = (
        torch.tensor(table, dtype=torch.long, device=device) for table in (ids, positions, labels, branch_of)
    )
    return Packed(ids_SL, positions_SL, labels_SL, _visible(branch_SL), places)


def _visible(branch_SL: torch.Tensor) -> torch.Tensor:
    """What each position may read: the prompt and its own branch up to itself. Padding reads padding, never nothing."""
    length = branch_SL.shape[1]
    earlier_LL = torch.ones(length, length, dtype=torch.bool, device=branch_SL.device).tril()
    of_prompt = branch_SL[:, None, :] == 0
    same = branch_SL[:, :, None] == branch_SL[:, None, :]
    return (earlier_LL & (of_prompt | same))[:, None]


def _index(packed: Packed, *, completion_tokens: int, device: Any) -> tuple[torch.Tensor, ...]:
    """Where every completion token stands: row and turn in the plain batch, sequence and position in the packed one."""
    cells = [
        (row, turn, s, start + turn)
        for row, s, start, size in packed.places
        for turn in range(min(size, completion_tokens))
    ]
    table = torch.tensor(cells, dtype=torch.long, device=device).reshape(-1, 4)
    return tuple(table.unbind(1))
