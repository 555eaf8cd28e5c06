"""The program that times a training step: which part of a run it watches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the train extra")

from benchmarks import train_step as program

from dirigent.train import grpo


@pytest.mark.parametrize("updates", [1, 2])
def test_the_last_step_is_watched_with_all_of_its_updates(updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Profiler:
        def __init__(self, **_: Any) -> None:
            self.key_averages = lambda: SimpleNamespace(table=lambda **_: "kernels")

        def start(self) -> None:
            seen.append("start")

        def stop(self) -> None:
            seen.append("stop")

    callbacks: list[Any] = []
    trainer = SimpleNamespace(add_callback=callbacks.append)
    monkeypatch.setattr("torch.profiler.profile", Profiler)
    monkeypatch.setattr(grpo, "make_trainer", lambda: trainer)
    with program.watched(5, step=3, updates=updates):
        assert grpo.make_trainer() is trainer  # type: ignore[call-arg]
    (watching,) = callbacks
    for update in range(3 * updates):
        state = SimpleNamespace(global_step=update)
        watching.on_step_begin(None, state, None)
        seen.append(f"update {update + 1}")
        state.global_step += 1
        watching.on_step_end(None, state, None)
    watched = [f"update {number}" for number in range(2 * updates + 1, 3 * updates + 1)]
    assert seen == [*(f"update {n}" for n in range(1, 2 * updates + 1)), "start", *watched, "stop"]
