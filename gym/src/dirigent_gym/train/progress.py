"""The progress of a run: a line for people, a JSON line a step for programs, TensorBoard for curves.

Shows figures and never computes them. On a terminal the line is rewritten in place; elsewhere it is printed at times.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

BAR_CELLS = 16
LINE_EVERY_S = 30.0
"""Seconds between two printed lines if the line cannot be rewritten."""


class Progress:
    """The record of one run. A resumed run appends to the same files."""

    def __init__(self, folder: Path, *, steps: int, quiet: bool = False, stream: TextIO | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _open_to_append(folder / "metrics.jsonl")
        self._board = _board(folder / "tensorboard")
        self._steps = steps
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._last_reward: float | None = None
        self._shown_at = 0.0
        self._line_open = False

    def record(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Write the figures of a step (`train`) or of a measurement (`dev`) to the files."""
        row = {"kind": kind, "step": step, **{name: float(f"{value:.8g}") for name, value in figures.items()}}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def show(self, step: int, figures: Mapping[str, float], *, seconds_left: float) -> None:
        """Show the line of a step."""
        line = progress_line(step, self._steps, figures, last_reward=self._last_reward, seconds_left=seconds_left)
        self._last_reward = figures.get("reward", self._last_reward)
        if self._quiet:
            return
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[2K{line}")
            self._line_open = True
        elif step >= self._steps or time.monotonic() - self._shown_at >= LINE_EVERY_S:
            self._stream.write(line + "\n")
            self._shown_at = time.monotonic()
        self._stream.flush()

    def say(self, text: str) -> None:
        """Print a sentence of its own below the line."""
        if not self._quiet:
            self._stream.write(("\n" if self._line_open else "") + text + "\n")
            self._stream.flush()
        self._line_open = False

    def close(self) -> None:
        if self._line_open:
            self._stream.write("\n")
        self._file.close()
        if self._board is not None:
            self._board.close()


def progress_line(
    step: int, steps: int, figures: Mapping[str, float], *, last_reward: float | None, seconds_left: float
) -> str:
    """`step 84/250  ████████░░░░░░░░  reward 0.81 (+0.02)  right 79%  …`, without figures that are missing."""
    full = round(BAR_CELLS * min(step, steps) / max(1, steps))
    parts = [f"step {step}/{steps}", "█" * full + "░" * (BAR_CELLS - full)]
    if "reward" in figures:
        change = "" if last_reward is None else f" ({figures['reward'] - last_reward:+.2f})"
        parts.append(f"reward {figures['reward']:.2f}{change}")
    for name, word in (("accuracy", "right"), ("valid", "valid")):
        if name in figures:
            parts.append(f"{word} {figures[name]:.0%}")
    if "steps" in figures and "steps_needed" in figures:
        parts.append(f"steps {figures['steps']:.1f}/{figures['steps_needed']:.1f}")
    if "worker_entropy" in figures:
        parts.append(f"worker entropy {figures['worker_entropy']:.2f}")
    if "step_seconds" in figures:
        parts.append(f"{figures['step_seconds']:.1f} s/step")
    return "  ".join([*parts, f"left {duration(seconds_left)}"])


def duration(seconds: float) -> str:
    """`6 m 40 s`, `1 h 5 m`, `12 s`."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} m"
    return f"{whole // 60} m {whole % 60} s" if whole >= 60 else f"{whole} s"


def _open_to_append(file: Path) -> TextIO:
    """Open the file to append to it, and first remove half a line that a kill or a full disk has left."""
    if file.exists() and not (written := file.read_bytes()).endswith(b"\n"):
        os.truncate(file, written.rfind(b"\n") + 1)
    return file.open("a", encoding="utf-8")


def _board(folder: Path) -> Any:
    """A TensorBoard writer, or None if the package is missing; the JSON lines hold the same figures."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
