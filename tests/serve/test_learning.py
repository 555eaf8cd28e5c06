"""Admins see the learned policy, and switch its operating point there and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dirigent.config.file import load_config
from dirigent.config.runtime import Runtime
from dirigent.learn.policy import FixedPlan, Kind, Point, Policy
from dirigent.learn.selector import WORDS, Selector
from dirigent.serve.apis.learning import adapter_shown
from dirigent.serve.http.server import bound, serving
from dirigent.serve.service import open_service
from dirigent.workers import adapters
from tests.serve.conftest import CONFIG, Answer, Server
from tests.stub_provider import StubProvider

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def a_policy() -> Policy:
    """Five points over two workers, as `dirigent learn` would write them."""
    kind = Kind(order=(0,), until=0.9, right=0.8, cost=1.0)
    points = tuple(
        Point(0.0, (kind,), (kind,), (0,), accuracy, cost, 1.5, accuracy - 0.8, accuracy - 0.85, accuracy - 0.75)
        for accuracy, cost in ((0.86, 0.003), (0.85, 0.0018), (0.83, 0.0011), (0.81, 0.0006), (0.76, 0.0004))
    )
    fixed = (
        FixedPlan("beta ×3", 0.82, 0.003, 3, 0.02, -0.01, 0.05),
        FixedPlan("vote of the best 2", 0.8, 0.0013, 2, 0.0, -0.03, 0.03),
    )
    return Policy(
        version=1,
        unit="usd",
        workers=("alpha", "beta"),
        fingerprints={},
        baseline="beta",
        baseline_accuracy=0.8,
        baseline_cost=0.001,
        questions=300,
        labels=300,
        points=points,
        named={"best": 0, "same": 3},
        why="same accuracy for 0.6 of the cost",
        more_labels=None,
        active="same",
        novel_above=(1.0, 1.0),
        fixed=fixed,
        centres=np.zeros((1, 4), dtype=np.float32),
        familiar=np.zeros((1, 4), dtype=np.float32),
    )


def a_selector() -> Selector:
    empty = np.zeros((0, 1), dtype=np.int64)
    leaves, words = np.zeros((0, 2), dtype=np.float32), np.zeros((WORDS + 1, 3), dtype=np.float32)
    return Selector(("alpha", "beta"), 0.0, empty, empty, leaves, words)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # The profile is planned by one worker: no run here asks the policy.
    monkeypatch.setattr(Runtime, "policy", lambda *_: None, raising=False)
    a_policy().save(tmp_path / "policy", a_selector())
    (tmp_path / "reports" / "train").mkdir(parents=True)
    shutil.copy(RESULTS / "gym.json", tmp_path / "reports" / "gym.json")
    (tmp_path / "reports" / "notes.json").write_text('{"something": "else"}')
    lines = [json.dumps({"step": i, "reward": i / 10, "dev/accuracy": 0.5, "sample_s": 3}) for i in range(1000)]
    (tmp_path / "reports" / "train" / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 10')
    return tmp_path


async def asked(folder: Path, stub: StubProvider, empty_store: Path, *calls: tuple[str, str, Any]) -> list[Answer]:
    """The replies of a server whose profile `mini` has the policy, and whose configuration names the reports."""
    import aiohttp

    shutil.copy(empty_store, folder / "serve.db")
    config = CONFIG.format(url=stub.url("openai"), store=folder / "serve.db")
    config = (
        config.replace("[profile.mini]\n", '[profile.mini]\npolicy = "policy"\n') + '\n[serve]\nreports = "reports"\n'
    )
    (folder / "dirigent.toml").write_text(config)
    answers = []
    async with (
        open_service(load_config(folder / "dirigent.toml")) as service,
        serving(service, bound("127.0.0.1", 0)) as url,
        aiohttp.ClientSession() as session,
    ):
        server = Server(service, stub, url, session)
        for method, path, body in calls:
            answers.append(await server.request(method, path, json=body))
    return answers


async def test_policies_evaluations_and_trainings_are_shown(
    folder: Path, stub: StubProvider, empty_store: Path
) -> None:
    [answer] = await asked(folder, stub, empty_store, ("GET", "/v1/learning", None))
    [policy] = answer.object["policies"]
    assert (policy["profile"], policy["active"], policy["versions"]) == ("mini", "same", [])
    assert [point["accuracy"] for point in policy["points"]] == [0.86, 0.85, 0.83, 0.81, 0.76]
    [report] = answer.object["evaluations"]
    assert report["file"] == "gym.json"
    assert 0.5 < report["planners"]["conductor"]["accuracy"] < 1
    [training] = answer.object["trainings"]
    assert training["folder"] == "train"
    assert set(training["curves"]) == {"reward", "dev/accuracy"}
    assert len(training["curves"]["reward"]) <= 400
    assert training["under_way"] is True
    assert [plan["name"] for plan in policy["fixed"]] == ["beta ×3", "vote of the best 2"]
    assert answer.object["faults"] == []


CARD = """
[adapter.shipped]
role = "conductor"
base = "smollm2-135m"
data = "Made questions."
recipe = "tiny"
commit = "abc"
date = "2026-11-15"
rank = 4
alpha = 8.0
size_bytes = 20
sha256 = "beef"
figures = { own = 0.9 }
"""


async def test_an_adapter_is_shown_with_its_version_and_figures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "folders", lambda: [folder])
    (folder / "cards.toml").write_text(CARD)
    for name in ("shipped", "own"):
        (folder / f"{name}.gguf").write_bytes(b"GGUF" * 5)
    (folder / "dirigent.toml").write_text(
        "".join(
            f'[[worker]]\nname = "w{i}"\nkind = "local"\nadapter = "{adapter}"\n'
            for i, adapter in enumerate(("shipped", "elsewhere/own.gguf"))
        )
    )
    loaded = load_config(folder / "dirigent.toml")
    shipped, missing = (adapter_shown(worker, folder=folder, cards={}) for worker in loaded.config.worker)
    assert (shipped.adapter, shipped.date, shipped.sha256, shipped.bytes) == ("shipped", "2026-11-15", "beef", 20)
    assert shipped.figures == {"own": 0.9}
    assert (missing.bytes, missing.date) == (None, "")


async def test_an_operating_point_is_switched_and_brought_back(
    folder: Path, stub: StubProvider, empty_store: Path
) -> None:
    best, back, none_left, wrong, missing, audit = await asked(
        folder,
        stub,
        empty_store,
        ("POST", "/v1/learning/mini", {"to": "best"}),
        ("POST", "/v1/learning/mini", {"to": "rollback"}),
        ("POST", "/v1/learning/mini", {"to": "rollback"}),
        ("POST", "/v1/learning/mini", {"to": "sideways"}),
        ("POST", "/v1/learning/ultra", {"to": "best"}),
        ("GET", "/v1/audit", None),
    )
    assert [best.object["policies"][0][name] for name in ("active", "version")] == ["best", 2]
    [version] = best.object["policies"][0]["versions"]
    assert (version["name"], version["version"], version["active"]) == ("0001", 1, "same")
    assert [back.object["policies"][0][name] for name in ("active", "version", "versions")] == ["same", 1, []]
    assert (none_left.status, wrong.status, missing.status) == (400, 400, 404)
    assert "sideways" in wrong.error["message"]
    assert [row["action"] for row in audit.object["data"]] == ["policy.switch"] * 2


async def test_a_damaged_policy_is_a_fault_and_no_500(folder: Path, stub: StubProvider, empty_store: Path) -> None:
    (folder / "policy" / "policy.json").write_text("{")
    [answer] = await asked(folder, stub, empty_store, ("GET", "/v1/learning", None))
    assert (answer.status, answer.object["policies"]) == (200, [])
    assert "policy.json" in answer.object["faults"][0]
