"""Several processes of one run: they measure together, learn together, end together, and go on together."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.facts import says

from dirigent_gym.train.grpo import agreed
from dirigent_gym.train.processes import divided
from dirigent_gym.train.recipe import Recipe


def said_by(processes: int, script: str, *args: str, within_s: float = 100.0) -> list[Any]:
    """What each of so many processes that run this script prints last, as JSON. None outlives the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(processes)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, *args],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        said = [process.communicate(timeout=within_s) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * processes, [fault for _, fault in said]
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


# --- what they tell one another ---

ONE_OF_TWO = """
import json, os, sys
from dirigent_gym.train.grpo import agreed
from dirigent_gym.train.processes import meeting

reasons = sys.argv[1:]
with meeting():
    print(json.dumps([agreed(reason) for reason in reasons[int(os.environ["RANK"]) :: 2]]))
"""


def test_a_process_alone_has_its_own_reason() -> None:
    assert [agreed("out of time"), agreed("")] == ["out of time", ""]


def test_two_processes_end_for_the_reason_of_either() -> None:
    """Step by step: neither has one, the second has one, both have one."""
    heard = said_by(2, ONE_OF_TWO, "", "", "", "out of time", "collapsed", "interrupted")
    assert heard == [["", "out of time", "collapsed"]] * 2


# --- work that is divided among them ---


def test_a_process_alone_does_all_of_it_and_fails_as_it_would() -> None:
    def shares(places: Sequence[int]) -> list[int]:
        return [10 // (3 - place) for place in places]

    assert divided(["a", "b", "a"], shares) == [3, 5, 10]
    assert divided([], shares) == []
    with pytest.raises(ZeroDivisionError):
        divided(["a", "b", "c", "d"], shares)


DIVIDING = """
import json, os
from dirigent_gym.train.processes import divided, meeting

did, told = [], []

def work(places):
    did.append(list(places))
    if fails_at in places:
        raise ValueError(f"no answer to {fails_at}")
    return [f"{os.environ['RANK']} did {place}" for place in places]

with meeting():
    for keys, fails_at in (("abcde", None), ("aabbca", None), ("a", None), ("", None), ("abc", 1), ("ab", None)):
        try:
            told.append(divided(list(keys), work))
        except Exception as error:
            told.append(f"{type(error).__name__}: {error}")
print(json.dumps([did, told]))
"""


def test_each_process_does_its_share_and_all_have_all_of_it() -> None:
    """Equal keys stay together, a share may be empty, and one that fails ends it for both; then they go on."""
    (first, told), (second, told_too) = said_by(2, DIVIDING)
    assert first == [[0, 2, 4], [0, 1, 4, 5], [0], [], [0, 2], [0]]
    assert second == [[1, 3], [2, 3], [], [], [1], [1]]
    assert told[0] == ["0 did 0", "1 did 1", "0 did 2", "1 did 3", "0 did 4"]
    assert told[1:4] == [["0 did 0", "0 did 1", "1 did 2", "1 did 3", "0 did 4", "0 did 5"], ["0 did 0"], []]
    assert says(told[4], "DirigentError: 1 ValueError: no answer to 1")
    assert told_too[4] == "ValueError: no answer to 1"
    assert told[5] == ["0 did 0", "1 did 1"]
    assert [one for i, one in enumerate(told) if i != 4] == [one for i, one in enumerate(told_too) if i != 4]


MEASURED = """
import json, sys
from pathlib import Path
import msgspec
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.run import train
from dirigent_gym.train.workers import ExactWorkers

asked = []

class Lucky:
    def __init__(self, worker):
        self.worker, self.info = worker, worker.info

    async def ask(self, request, **options):
        asked.append(f"{self.info.name} {request.seed} {request.messages[-1].text}")
        reply = await self.worker.ask(request, **options)
        return reply if request.seed % 3 else msgspec.structs.replace(reply, text="no luck")

recipe, out = sys.argv[1:]
read = msgspec.json.decode(Path(recipe).read_bytes(), type=Recipe)
train(read, out=Path(out), quiet=True, workers={name: Lucky(one) for name, one in ExactWorkers().items()})
print(json.dumps(asked))
"""


@pytest.mark.timeout(900)
def test_two_processes_ask_as_much_as_one_and_have_its_figures(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    """Of the start, of the development questions and of the ceiling; workers answer by luck, which counts attempts."""
    change = msgspec.structs.replace
    recipe = change(
        tiny_recipe,
        grpo=change(tiny_recipe.grpo, steps=0),
        warm_start=change(tiny_recipe.warm_start, measure=9),
        eval=change(tiny_recipe.eval, n=7),
    )
    (tmp_path / "recipe.json").write_bytes(msgspec.json.encode(recipe))
    asked: dict[int, list[list[str]]] = {}
    for processes in (1, 2):
        out = tmp_path / str(processes)
        shutil.copytree(warm_folder, out / "warm-start", ignore=shutil.ignore_patterns("start.json"))
        asked[processes] = said_by(processes, MEASURED, str(tmp_path / "recipe.json"), str(out), within_s=300)
    assert min(len(share) for share in asked[2]) > 10
    assert sorted(asked[2][0] + asked[2][1]) == sorted(asked[1][0])
    one, *both = (
        json.loads((tmp_path / part / "result.json").read_bytes()) for part in ("1", "2", "2/process-1")
    )  # fmt: skip
    for name in ("start", "dev", "ceiling"):
        assert [part[name] for part in both] == [one[name]] * 2
    assert one["dev"]["rollouts"] == 7
    assert 0 < one["ceiling"] < 1, "luck has a say in it"
    assert not (tmp_path / "2" / "process-1" / "warm-start").exists()


# --- updates of differently many passes ---

PASSES = """
import json, os, sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
import msgspec, torch
from transformers import TrainerCallback
from dirigent_gym.train.policy import Policy
from dirigent_gym.train.recipe import Recipe, TinySettings
from dirigent_gym.train.shared_prompts import log_probs_and_entropies
from dirigent_gym.train.tiny import tiny_base
from dirigent_gym.train.trainer import make_trainer

recipe, out, *most_tokens = sys.argv[1:]
number, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
inner, tokenizer = tiny_base(["Convert 14 to Roman numerals."], settings=TinySettings(words=300), seed=3)

async def plan_reward(**_):
    return []

read = msgspec.json.decode(Path(recipe).read_bytes(), type=Recipe)
rollouts = SimpleNamespace(sample=None, plan_reward=plan_reward)
policy = Policy(inner, tokenizer, max_completion_tokens=6)
trainer = make_trainer(read, policy, rollouts, out=Path(out), callback=TrainerCallback())
model = trainer.accelerator.prepare_model(inner)
made = []
inner.register_forward_hook(lambda *_: made.append(1))
ids = torch.randint(5, 60, (8, 20), generator=torch.Generator().manual_seed(1))
for update in range(2):
    inner.zero_grad()
    own = ids[number::processes]
    for part, rows in enumerate(own.chunk(2)):
        with nullcontext() if part or processes == 1 else model.no_sync():
            logps, _ = log_probs_and_entropies(
                model, rows, torch.ones_like(rows), completion_tokens=8, most_tokens=float(most_tokens[number])
            )
            (-logps.mean() / 2).backward()
    with torch.no_grad():
        for weight in inner.parameters():
            weight -= 0.1 * weight.grad
torch.save([weight.grad for weight in inner.parameters()], Path(out) / f"{number}-of-{processes}.pt")
trainer.accelerator.end_training()
print(json.dumps(len(made)))
"""


@pytest.mark.timeout(400)
def test_processes_that_make_differently_many_passes_have_the_gradients_of_one(
    tmp_path: Path, tiny_recipe: Recipe
) -> None:
    """Sent about in every pass, buffers would have them wait for one another for ever."""
    recipe = msgspec.structs.replace(tiny_recipe, policy=msgspec.structs.replace(tiny_recipe.policy, rank=0))
    (tmp_path / "recipe.json").write_bytes(msgspec.json.encode(recipe))
    args = (str(tmp_path / "recipe.json"), str(tmp_path))
    assert said_by(1, PASSES, *args, "inf") == [4]
    assert said_by(2, PASSES, *args, "1", "inf") == [8, 4]
    one, first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("0-of-1", "0-of-2", "1-of-2"))
    assert max(float(gradient.abs().max()) for gradient in one) > 0.01
    for alone, with_another, other in zip(one, first, second, strict=True):
        assert torch.equal(with_another, other)
        torch.testing.assert_close(with_another, alone, rtol=1e-4, atol=1e-6)


# --- whole runs ---

ONE_PART = """
import math, os, sys
from functools import partial
from pathlib import Path
import msgspec
from dirigent_gym.train import trainer
from dirigent_gym.train.recipe import Recipe
from dirigent_gym.train.run import train

recipe, out, seconds = sys.argv[1:]
read = msgspec.json.decode(Path(recipe).read_bytes(), type=Recipe)
most_tokens = math.inf if int(os.environ["RANK"]) else 1
trainer.log_probs_and_entropies = partial(trainer.log_probs_and_entropies, most_tokens=most_tokens)
result = train(read, out=Path(out), resume=True, seconds=float(seconds) if seconds else None, quiet=True)
print(msgspec.json.encode(result).decode())
"""


def run_of_two(recipe: Path, out: Path, *, seconds: str = "") -> list[dict[str, Any]]:
    """A run by two processes, or its next part; what each of them says at its end."""
    return said_by(2, ONE_PART, str(recipe), str(out), seconds, within_s=300)


@pytest.mark.timeout(900)
def test_a_run_of_two_processes_is_cut_and_resumed_to_the_weights_of_an_unbroken_one(
    tmp_path: Path, tiny_recipe: Recipe, warm_folder: Path
) -> None:
    """Two whole processes that draw rows of their own, the first with a pass for every prompt."""
    change = msgspec.structs.replace
    grpo = change(tiny_recipe.grpo, steps=2, prompts=8, rollouts=4, minibatch_rows=8, save_every_steps=1)
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
