"""Training on tasks of a file over workers with a price: it ends at its cap and continues with a higher one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.facts import facts, says

from dirigent.errors import ConfigError
from dirigent.messages import Usage
from dirigent.workers.scripted import Scripted
from dirigent.workers.worker import Price, Worker
from dirigent_gym.train.recipe import Recipe, TaskSettings, WorkerSettings
from dirigent_gym.train.rows import skill_tasks
from dirigent_gym.train.run import Result, train_conductor
from dirigent_gym.train.workers import SPENT_FILE, CapReached

pytestmark = pytest.mark.timeout(600)

NAMES = ("roman", "code")
A_CALL_USD = 0.01


@pytest.fixture
def own(small_recipe: Recipe, tmp_path: Path) -> Recipe:
    """Tasks of a file, whose right plans are unknown, over workers of a dirigent.toml."""
    tasks = [msgspec.structs.replace(task, sketch=None) for task in skill_tasks("train", 12, skills=NAMES, seed=1)]
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(b"\n".join(msgspec.json.encode(task) for task in tasks))
    return msgspec.structs.replace(
        small_recipe,
        tasks=TaskSettings(file=str(file), dev_file=str(file)),
        workers=WorkerSettings("config", config="dirigent.toml"),
        warm_start=msgspec.structs.replace(small_recipe.warm_start, measure=4),
        eval=msgspec.structs.replace(small_recipe.eval, n=4),
    )


def pool(price: Price | None = Price(output=A_CALL_USD * 1e6)) -> dict[str, Worker]:  # noqa: B008
    """Each call writes one token, and could write no more."""
    card: dict[str, Any] = {"price": price, "usage": Usage(1, 1), "output_tokens": 1, "subtask_only": True}
    return {name: Scripted("V", name=name, **card) for name in NAMES}


def paid(workers: dict[str, Worker]) -> float:
    return A_CALL_USD * sum(worker.calls for worker in workers.values() if isinstance(worker, Scripted))


def capped(recipe: Recipe, usd: float | None) -> Recipe:
    return msgspec.structs.replace(recipe, workers=msgspec.structs.replace(recipe.workers, max_cost_usd=usd))


def steps_of(out: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row for row in rows if row["kind"] == "train"}


def test_a_run_reports_the_cost_of_workers_and_ends_at_its_cap_with_a_checkpoint(
    own: Recipe, started: Path, tmp_path: Path
) -> None:
    shutil.copytree(started, tmp_path / "capped")
    workers = pool()
    free = train_conductor(own, out=started, workers=workers, quiet=True)
    assert free.finished
    assert free.spent_usd == pytest.approx(paid(workers))
    after = {step: row["spent_usd"] for step, row in steps_of(started).items()}
    assert list(after) == [1, 2, 3, 4]
    assert says(free.summary, f"${free.spent_usd:.4g}")

    cap = after[2] + A_CALL_USD
    out, workers = tmp_path / "capped", pool()
    cut = train_conductor(capped(own, cap), out=out, workers=workers, quiet=True)
    assert cut.step in (2, 3)
    assert cut.spent_usd == pytest.approx(paid(workers))
    assert cut.spent_usd <= cap + 1e-9
    assert says(cut.stopped, f"stopped: ${cap:.6g} workers.max_cost_usd --resume")
    assert (out / "loop" / "checkpoint.pt").is_file()
    whole = train_conductor(capped(own, 100.0), out=out, resume=True, workers=(more := pool()), quiet=True)
    assert whole.finished
    assert whole.spent_usd == pytest.approx(cut.spent_usd + paid(more))


def test_a_cap_too_low_for_the_start_is_reported_and_keeps_the_warm_start(own: Recipe, started: Path) -> None:
    workers = pool()
    with pytest.raises(CapReached, match=facts("--resume")):
        train_conductor(capped(own, 0.5 * A_CALL_USD), out=started, workers=workers, quiet=True)
    assert paid(workers) == 0.0
    assert not (started / "warm-start" / "start.json").exists()
    assert train_conductor(capped(own, None), out=started, resume=True, workers=pool(), quiet=True).finished


def test_a_cap_over_a_worker_without_a_price_is_refused_before_it_is_asked(own: Recipe, started: Path) -> None:
    workers = pool(price=None)
    with pytest.raises(ConfigError, match=facts("roman price")):
        train_conductor(capped(own, 1.0), out=started, workers=workers, quiet=True)
    assert paid(workers) == 0.0


def test_a_pool_of_a_file_is_really_asked(own: Recipe, started: Path, tmp_path: Path) -> None:
    (tmp_path / "dirigent.toml").write_text(
        "".join(f'[[worker]]\nname = "{name}"\nkind = "scripted"\nreplies = ["V"]\n' for name in NAMES)
    )
    workers = WorkerSettings("config", config=str(tmp_path / "dirigent.toml"))
    result = train_conductor(msgspec.structs.replace(own, workers=workers), out=started, quiet=True)
    assert result.finished
    assert result.spent_usd == 0.0


def test_tasks_of_the_gym_cost_nothing(small_run: Result) -> None:
    assert small_run.spent_usd == 0.0
    assert "$" not in small_run.summary
    assert not (Path(small_run.out) / SPENT_FILE).exists()
