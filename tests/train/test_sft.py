"""Supervised fitting: what is counted in the loss, and what is not."""

from __future__ import annotations

import pytest

from dirigent.train.recipe import TinySettings
from dirigent.train.sft import collate, completion_loss
from dirigent.train.tiny import tiny_base

ROWS = [([1, 2, 3, 4, 5], [6, 7]), ([1, 2], [3]), ([4, 4, 4], [5, 5, 5, 5, 5])]


def test_labels_leave_out_prompts_and_padding() -> None:
    ids, labels = collate(ROWS[:2], pad=0, device="cpu")
    assert ids.tolist() == [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 0, 0, 0, 0]]
    assert labels.tolist() == [[-100] * 5 + [6, 7], [-100, -100, 3] + [-100] * 4]


def test_rows_padded_to_one_length_cost_what_they_cost_alone() -> None:
    model, _ = tiny_base(["a b c d e f g h"], settings=TinySettings(), seed=1)
    together = completion_loss(model, *collate(ROWS, pad=0, device="cpu"))
    alone = [completion_loss(model, *collate([row], pad=0, device="cpu")) * len(row[1]) for row in ROWS]
    assert together.item() == pytest.approx(sum(loss.item() for loss in alone) / 8, rel=1e-5)
