"""The program that trains controls in parallel: real runs of a tiny model, from recipes in a folder."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gym.benchmarks import controls as program
from tests.facts import says

from dirigent_gym.train.recipe import load_recipe

ROOT = Path(__file__).parents[3]

DIRECT = """
kind = "direct"
name = "direct"
n = 60
steps = 4
batch = 8
measure = 20
[base]
tiny = { hidden = 32, layers = 1, heads = 2, words = 400, steps = 4 }
[policy]
rank = 4
alpha = 8
"""


def run(*given: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "gym" / "benchmarks" / "controls.py"), *given]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.timeout(600)
def test_controls_are_trained_in_parallel_and_failures_are_named(tmp_path: Path) -> None:
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "control-direct.toml").write_text(DIRECT)
    (recipes / "control-shuffled.toml").write_text('name = "x"\n[grpo]\nstepps = 1\n')
    cut = tmp_path / "runs" / "control-shuffled"
    cut.mkdir(parents=True)
    (cut / "result.json").write_text('{"step": 1, "steps": 2}')  # the result of an earlier part does not count
    asked = ("direct", "shuffled", "--recipes", str(recipes), "--train-only")
    done = run(*asked, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: shuffled failed; see ")
    assert "stepps" in (tmp_path / "runs" / "control-shuffled.log").read_text()
    result = tmp_path / "runs" / "control-direct" / "result.json"
    written = result.stat().st_mtime_ns
    assert program.measurable(tmp_path / "runs") == {"direct": tmp_path / "runs" / "control-direct"}
    again = run("direct", *asked[2:], cwd=tmp_path)
    assert (again.returncode, result.stat().st_mtime_ns) == (0, written)  # a finished control is not trained again


STAND_IN = """
import pathlib, sys, time
name, out, other = sys.argv[1:]
alone = not pathlib.Path(other).exists()
with open(out, "a") as told:
    told.write(f"{name} {'alone' if alone else 'beside'}\\n")
if name == "hungry" and not alone:
    sys.exit("error: out of memory while the adapter was fitted: lower batch")
if name == "never":
    sys.exit("error: out of memory while the adapter was fitted: lower batch")
if name == "other":
    time.sleep(1.5)
    pathlib.Path(other).unlink()
"""


@pytest.mark.parametrize(
    ("names", "told", "failed"),
    [
        (["other", "hungry"], ["other beside", "hungry beside", "hungry alone"], []),
        (["never"], ["never alone"], ["never"]),  # there is no other run to wait for
    ],
)
def test_one_for_which_no_memory_was_left_begins_again_once_another_has_ended(
    names: list[str], told: list[str], failed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, seen, there = tmp_path / "run.py", tmp_path / "seen", tmp_path / "there"
    script.write_text(STAND_IN)
    if "other" in names:
        there.touch()

    def started(name: str, args: argparse.Namespace, **_: object) -> program.Control:
        log = program.log_of(tmp_path, name)
        with log.open("ab") as written:
            command = [sys.executable, str(script), name, str(seen), str(there)]
            return program.Control(name, log, subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT))

    monkeypatch.setattr(program, "started", started)
    monkeypatch.setattr(program, "LOOK_EVERY_S", 0.3)
    args = argparse.Namespace(out=tmp_path, at_once=3)
    assert program.train_all(names, args, deadline=None) == failed
    assert sorted(seen.read_text().splitlines()) == sorted(told)


def test_a_control_that_still_waits_for_memory_at_the_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(name: str, args: argparse.Namespace, **_: object) -> program.Control:
        log = program.log_of(tmp_path, name)
        with log.open("ab") as written:
            script = "import time; time.sleep(1)" if name == "rft" else "raise SystemExit('error: out of memory')"
            return program.Control(name, log, subprocess.Popen([sys.executable, "-c", script], stderr=written))

    monkeypatch.setattr(program, "started", started)
    monkeypatch.setattr(program, "LOOK_EVERY_S", 0.1)
    args = argparse.Namespace(out=tmp_path, at_once=2)
    assert program.train_all(["rft", "direct"], args, deadline=time.monotonic() + 0.6) == ["direct"]


def test_a_run_has_ended_with_its_last_update_and_not_where_it_was_cut(tmp_path: Path) -> None:
    assert not program.ended(tmp_path)
    for result, over in (({"step": 96, "steps": 100}, False), ({"step": 100, "steps": 100}, True), ({}, True)):
        (tmp_path / "result.json").write_text(json.dumps(result))
        assert program.ended(tmp_path) is over


def test_every_control_that_is_trained_has_a_recipe_and_a_line() -> None:
    for name in program.ROLES:
        assert load_recipe(ROOT / "gym" / "recipes" / f"control-{name}.toml").name == f"control-{name}"
    from gym.benchmarks.claims_table import CONTROL_LINES

    assert set(program.ROLES.values()) == set(CONTROL_LINES)


def test_the_table_is_asked_for_with_the_controls_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked[:] = command
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(subprocess, "run", noted)
    args = argparse.Namespace(out=tmp_path, limit=7)
    assert program.measure({"rejection": tmp_path / "control-rft"}, args) == 3
    line = " ".join(asked)
    assert "claims.py --conductor conductor --warm-start warm-start" in line
    assert line.endswith(f"--out {tmp_path}/controls.json --limit 7 --rejection {tmp_path}/control-rft")


def test_a_failed_control_does_not_keep_others_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "control-direct" / "adapter").mkdir(parents=True)
    measured: list[dict[str, Path]] = []
    monkeypatch.setattr(sys, "argv", ["controls.py", "rft", "direct", "--out", str(tmp_path)])
    monkeypatch.setattr(program, "train_all", lambda *_, **__: ["rft"])
    monkeypatch.setattr(program, "measure", lambda controls, _: measured.append(controls) or 0)
    with pytest.raises(SystemExit, match=r"error: rft.*control-rft\.log"):
        program.main()
    assert measured == [{"direct": tmp_path / "control-direct"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("rfd",), "rfd rft"),
        (("rft", "--at-once", "0"), "--at-once 1"),
    ],
)
def test_contradictory_options_are_refused(given: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = run(*given, cwd=tmp_path)
    assert done.returncode == 2
    assert says(done.stderr, message)
