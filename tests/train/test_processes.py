"""Several processes of one run: they end together, and go on together."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.train.grpo import agreed
from dirigent.train.recipe import Recipe

ONE_OF_TWO = """
import json, sys
from torch import distributed
from dirigent.train.grpo import agreed

rank, meeting, *reasons = sys.argv[1:]
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
print(json.dumps([agreed(reason) for reason in reasons]))
distributed.destroy_process_group()
"""


def test_a_process_alone_has_its_own_reason() -> None:
    assert [agreed("out of time"), agreed("")] == ["out of time", ""]


def test_two_processes_end_for_the_reason_of_either(tmp_path: Path) -> None:
    """Step by step: neither has one, the second has one, both have one."""
    said = (["", "", "collapsed"], ["", "out of time", "interrupted"])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_TWO, str(rank), str(tmp_path / "meeting"), *reasons],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, reasons in enumerate(said)
    ]
    heard = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert heard == [["", "out of time", "collapsed"]] * 2


ONE_PART = """
import sys
from pathlib import Path
import msgspec
from dirigent.train.recipe import Recipe
from dirigent.train.run import train

recipe, out, seconds = sys.argv[1:]
read = msgspec.json.decode(Path(recipe).read_bytes(), type=Recipe)
train(read, out=Path(out), resume=True, seconds=float(seconds) if seconds else None, quiet=True)
"""


def run_of_two(recipe: Path, out: Path, *, seconds: str = "") -> list[dict[str, Any]]:
    """A run by two processes, or its next part; what each of them says at its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_PART, str(recipe), str(out), seconds],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    faults = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], faults
    return [json.loads((out / part / "result.json").read_bytes()) for part in (".", "process-1")]


@pytest.mark.timeout(900)
def test_a_run_of_two_processes_is_cut_and_resumed_to_the_weights_of_an_unbroken_one(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    """Two whole processes that draw rows of their own."""
    change = msgspec.structs.replace
    grpo = change(tiny_recipe.grpo, steps=2, prompts=4, rollouts=4, minibatch_rows=4, save_every_steps=1)
    recipe = change(
        tiny_recipe,
        grpo=grpo,
        warm_start=change(tiny_recipe.warm_start, measure=4),
        eval=change(tiny_recipe.eval, n=4, every_steps=100),
    )
    (tmp_path / "recipe.json").write_bytes(msgspec.json.encode(recipe))
    for name in ("whole", "cut"):
        shutil.copytree(warm_folder, tmp_path / name / "warm-start")
    whole = run_of_two(tmp_path / "recipe.json", tmp_path / "whole")
    cut = run_of_two(tmp_path / "recipe.json", tmp_path / "cut", seconds="0")
    assert [one["step"] for one in (*whole, *cut)] == [2, 2, 1, 1]
    assert whole[1]["gguf"] == "", "the first process exports"
    run_of_two(tmp_path / "recipe.json", tmp_path / "cut")
    weights = [(tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    assert weights[0] != (warm_folder / "policy" / "adapter_model.safetensors").read_bytes()
    rows = [(tmp_path / "whole" / "checkpoint-2" / name).read_bytes() for name in ("dirigent.json", "dirigent-1.json")]
    assert rows[0] != rows[1]
    drawn = [
        [json.loads(line) for line in (tmp_path / "whole" / part / "metrics.jsonl").read_text().splitlines()]
        for part in (".", "process-1")
    ]
    assert any(row["kind"] == "train" for row in drawn[0])
    assert not any(row["kind"] == "train" for row in drawn[1]), "the first process tells of updates for all"
