"""The diffs of CONTRIBUTING.md are whole: applied to a copy of the source, each adds the thing it describes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIFFS = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
PARTS = [part for diff in DIFFS for part in re.split(r"(?m)^(?=--- )", diff) if part]

COHERE_WIRE = """
from dirigent.workers.openai import OpenAIWire

class CohereWire(OpenAIWire):
    pass
"""

PLANNER = """
from dirigent.evals.planners import takes
from dirigent.planners import known_planners
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted

assert "second-best" in [spec.name for spec in known_planners()]
assert "second-best" in takes(Pool([Scripted("x", name="a")]))
"""
KIND = """
from dirigent.config.worker_config import known_kinds
from dirigent.config.file import parse_config
from dirigent.config.build import Builder

text = '[[worker]]\\nname = "a"\\nkind = "cohere"\\nmodel = "command"\\nbase_url = "http://127.0.0.1:9"\\n'
(worker,) = parse_config(text).config.worker
assert "cohere" in known_kinds() and worker.kind == "cohere"
"""
BENCHMARK = """
import json, pathlib, tempfile
from dirigent.tasks.benchmarks import load_benchmark

folder = pathlib.Path(tempfile.mkdtemp())
row = {"ID": 7, "Body": "There are 2 apples.", "Question": "How many?", "Answer": 2}
(folder / "svamp.jsonl").write_text(json.dumps(row))
(task,) = load_benchmark("svamp", folder)
assert (task.question, task.answer) == ("There are 2 apples. How many?", "2"), task
"""
FIELD = """
import json
import msgspec
from dirigent.messages import Message
from dirigent.serve.apis.chat.wire import read
from dirigent.workers.openai import OpenAIWire
from dirigent.workers.worker import WorkerInfo

body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "top_k": 5}
asked = read(json.dumps(body).encode())
request = msgspec.structs.replace(asked.options, messages=asked.question)
call = OpenAIWire().build(request, info=WorkerInfo("w", model="m"), base_url="http://x", stream=False)
assert json.loads(call.body)["top_k"] == 5, call.body
"""
ROUTE = """
from dirigent.serve.http.app import ENDPOINTS
from dirigent.serve.http.openapi import openapi

assert [e.path for e in ENDPOINTS].count("/hello") == 1
assert openapi(ENDPOINTS)["paths"]["/hello"]["get"]["security"] == []
"""
REWARD = """
from dirigent.plan.plan import Plan, Step
from dirigent_gym.train.reward import RewardSettings, Scored, rewards

right = Scored(True, True, 1.0, plan=Plan((Step("a", "x"), Step("a", "y"))))
assert rewards([[right]], 0.0, RewardSettings(a_step=0.1)) == [[0.8]]
"""
WAYS = {"planner": PLANNER, "kind": KIND, "benchmark": BENCHMARK, "field": FIELD, "route": ROUTE, "reward": REWARD}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of both distributions' code with every diff applied. Weights are not copied."""
    copy = tmp_path_factory.mktemp("source")
    without = shutil.ignore_patterns("*.gguf", "__pycache__", "*.jsonl*")
    for tree in ("src", "gym/src"):
        shutil.copytree(ROOT / tree, copy / tree, ignore=without)
    (copy / "src/dirigent/workers/cohere.py").write_text(COHERE_WIRE)
    for part in PARTS:
        path, text = applied(part, copy)
        path.write_text(text, encoding="utf-8")
    return copy


def applied(part: str, tree: Path) -> tuple[Path, str]:
    """The file of this part and its text with the part applied; its hunks must fit in order."""
    header = re.match(r"--- a/(\S+)\n\+\+\+ b/\1\n", part)
    assert header is not None, part
    path = tree / header[1]
    done, rest = "", path.read_text(encoding="utf-8")
    for hunk in part[header.end() :].split("@@\n")[1:]:
        lines = hunk.splitlines()
        before = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
        after = "".join(line[1:] + "\n" for line in lines if not line.startswith("-"))
        place = rest.find(before)
        assert place >= 0, before
        done, rest = done + rest[:place] + after, rest[place + len(before) :]
    return path, done + rest


@pytest.mark.parametrize("part", PARTS, ids=lambda part: re.search(r"\+\+\+ b/(\S+)", part)[1])  # type: ignore[index]
def test_a_diff_applies(part: str) -> None:
    applied(part, ROOT)


@pytest.mark.parametrize("way", WAYS)
def test_a_diff_adds_its_planner_worker_benchmark_field_page_or_reward(source: Path, way: str) -> None:
    path = os.pathsep.join(str(source / tree) for tree in ("src", "gym/src"))
    tried = subprocess.run(
        [sys.executable, "-c", WAYS[way]],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stderr
