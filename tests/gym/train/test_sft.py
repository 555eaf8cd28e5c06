"""Supervised fitting: what is counted in the loss, and what is not."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from dirigent_gym.train.recipe import TinySettings
from dirigent_gym.train.sft import SftSettings, collate, completion_loss, save_adapter, with_adapter
from dirigent_gym.train.tiny import tiny_base

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


def test_a_full_disk_leaves_the_adapter_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = tiny_base(["a b c d e f g h"], settings=TinySettings(), seed=1)
    model = with_adapter(model, "own", SftSettings(rank=2))
    save_adapter(model, "own", tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()}

    def half(tensors: Any, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", half)
        with pytest.raises(OSError, match="No space left"):
            save_adapter(model, "own", tmp_path)
    assert {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()} == before
    save_adapter(model, "own", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
