"""Plugins of other distributions: a planner, a kind of worker and a benchmark, found wherever ours are found."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dirigent import plugins
from dirigent.cli import app
from dirigent.config.discovery import Machine, choices, toml_of
from dirigent.config.file import parse_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError
from dirigent.evals.recipe import EvalRecipe, checked
from dirigent.tasks.benchmarks import load_benchmark

MODULE = """
from dirigent.planners import Fitted, PlannerSpec
from dirigent.planners.fixed import Single
from dirigent.tasks.benchmarks import Benchmark
from dirigent.workers.worker import WorkerKind
from dirigent.workers.scripted import Scripted


async def fit(name, fitting):
    last = fitting.pool.names[-1]
    return Fitted(str(name), lambda task, pool: Single(last, name=str(name)), note=last)


planner = PlannerSpec(
    name="lastborn",
    about="the pool's last worker answers alone",
    make=lambda setup: Single(setup.pool.names[-1]),
    fit=fit,
    learns_from="",
)
worker = WorkerKind(
    about="says its model's name",
    make=lambda info, options: Scripted(
        *[f"The answer is {options.model}."] * 50, name=info.name, kind=info.kind, price=info.price
    ),
)
benchmark = Benchmark(("threes",), "https://example.com/threes")
"""

ENTRIES = """
[dirigent.planners]
lastborn = tiny_plugin:planner

[dirigent.workers]
parrot = tiny_plugin:worker

[dirigent.tasks]
threes = tiny_plugin:benchmark
"""

POOL = """
[[worker]]
name = "one"
kind = "parrot"
model = "1"
price = { input = 1.0, output = 1.0 }

[[worker]]
name = "three"
kind = "parrot"
model = "3"
price = { input = 1.0, output = 1.0 }

[profile.ultra]
planner = "lastborn"
"""

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution with this module and these entry points."""
    site = tmp_path / "site"
    site.mkdir()

    def put(module: str, entries: str) -> None:
        (site / "tiny_plugin.py").write_text(module)
        info = site / "tiny_plugin-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entries)
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        plugins.entries.cache_clear()

    yield put
    sys.modules.pop("tiny_plugin", None)
    plugins.entries.cache_clear()


@pytest.fixture
def installed(install: Install) -> None:
    install(MODULE, ENTRIES)


def shown(*arguments: str) -> str:
    """A help text as one line; words that the layout breaks at a hyphen are joined."""
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"})
    assert result.exit_code == 0, result.output
    return re.sub(r"\s+", " ", result.output)


async def test_a_configuration_takes_a_plugins_planner_and_kind_of_worker(installed: None) -> None:
    async with open_runtime(parse_config(POOL)) as runtime:
        trace = await runtime.conductor().run("How much is 1 + 2?")
    assert trace.answer == "The answer is 3."
    assert runtime.pool["three"].info.kind == "parrot"


def test_a_near_miss_of_a_plugins_name_is_corrected(installed: None) -> None:
    with pytest.raises(ConfigError, match='did you mean "lastborn"'):
        parse_config(POOL.replace('"lastborn"', '"lastbron"'))
    with pytest.raises(ConfigError, match='did you mean "parrot"'):
        parse_config(POOL.replace('"parrot"', '"parot"'))
    with pytest.raises(ConfigError, match='did you mean "threes"'):
        checked(EvalRecipe(tasks=("threse",), pool="dirigent.toml"))


def test_the_error_of_a_kind_names_the_missing_key(installed: None) -> None:
    with pytest.raises(ConfigError, match=r'no "model".*"parrot"'):
        parse_config(POOL.replace('model = "1"', ""))


def test_init_names_plugins_planners_kinds_and_benchmarks(installed: None) -> None:
    text = toml_of(Machine(keys={"openai": "OPENAI_API_KEY"})) + choices()
    assert all(name in text for name in ("lastborn", "parrot", "threes"))
    parse_config(text)


def test_help_names_plugins_planners_and_benchmarks(installed: None) -> None:
    assert "lastborn" in shown("ask")
    assert "lastborn" in shown("plan")
    assert "lastborn" in shown("eval")
    assert "threes" in shown("eval")
    assert "parrot" in shown("init")


def test_an_evaluation_asks_a_plugins_benchmark_over_its_workers_by_its_planner(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool.toml").write_text(POOL)
    rows = [{"id": f"q{i}", "question": f"{i} + {3 - i}?", "answer": "3", "grader": "number"} for i in range(4)]
    (tmp_path / "threes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = ["eval", "--tasks", "threes", "--planners", "lastborn,single:one", "--pool", "pool.toml"]
    result = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert {name: row["accuracy"] for name, row in report["planners"].items()} == {"lastborn": 1.0, "single:one": 0.0}
    assert report["notes"]["lastborn"] == "three"


def test_a_benchmark_of_a_plugin_reads_rows_as_its_authors_publish_them(install: Install, tmp_path: Path) -> None:
    module = MODULE.replace(
        'Benchmark(("threes",), "https://example.com/threes")',
        'Benchmark(("threes",), "https://example.com/threes", '
        'row=lambda raw, i: Row(id=str(i), question=raw["q"], answer="3", grader="number"))',
    )
    install("from dirigent.tasks.published import Row\n" + module, ENTRIES)
    (tmp_path / "threes.jsonl").write_text('{"q": "1 + 2?"}')
    (task,) = load_benchmark("threes", tmp_path)
    assert (task.question, task.answer, task.kind) == ("1 + 2?", "3", "threes")


def test_a_broken_plugin_leaves_lists_and_stops_only_uses_of_its_name(install: Install) -> None:
    install("raise ImportError('no such thing')", ENTRIES)
    assert "lastborn" not in shown("ask")
    parse_config(POOL.replace("parrot", "scripted").replace("model =", "replies =").replace('"1"', '["1"]').replace(
        '= "3"', '= ["3"]').replace('"lastborn"', '"single"'))  # fmt: skip
    with pytest.raises(ConfigError, match=r"tiny-plugin 1\.0.*no such thing"):
        parse_config(POOL)


def test_an_entry_of_another_type_is_refused_by_name(install: Install) -> None:
    install(MODULE + "\nplanner = worker = 3\n", ENTRIES)
    for text in (POOL, POOL.replace('"lastborn"', '"single"')):
        with pytest.raises(ConfigError, match="not 3"):
            parse_config(text)
