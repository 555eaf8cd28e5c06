"""The progress of a run on the terminal and in its files."""

from __future__ import annotations

import json
from pathlib import Path

from dirigent_gym.train.progress import Progress, duration, progress_line


def test_the_progress_line_reads_as_designed() -> None:
    figures = {
        "reward": 0.81,
        "accuracy": 0.79,
        "valid": 1.0,
        "steps": 2.1,
        "steps_needed": 2.0,
        "worker_entropy": 0.93,
        "step_seconds": 2.4,
    }
    line = progress_line(125, 250, figures, last_reward=0.79, seconds_left=400)
    assert line == (
        "step 125/250  ████████░░░░░░░░  reward 0.81 (+0.02)  right 79%  valid 100%  steps 2.1/2.0  "
        "worker entropy 0.93  2.4 s/step  left 6 m 40 s"
    )
    assert progress_line(1, 4, {}, last_reward=None, seconds_left=3) == "step 1/4  ████░░░░░░░░░░░░  left 3 s"
    assert duration(3900) == "1 h 5 m"


def test_a_resumed_run_appends_to_the_same_file(tmp_path: Path) -> None:
    for step in (1, 2):
        progress = Progress(tmp_path, steps=2, quiet=True)
        progress.record("train", step, {"reward": 0.123456789123})
        progress.close()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"kind": "train", "step": step, "reward": 0.12345679} for step in (1, 2)]


def test_half_a_line_of_a_run_that_was_cut_is_taken_away(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for cut in ('{"kind": "tr', '{"kind": "train", "step": 1}\n{"kind'):
        file.write_text(cut)
        progress = Progress(tmp_path, steps=2, quiet=True)
        progress.record("train", 2, {})
        progress.close()
        steps = [json.loads(line)["step"] for line in file.read_text().splitlines()]
        assert steps == ([1, 2] if "\n" in cut else [2])
