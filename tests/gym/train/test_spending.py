"""What workers cost a run: never more than its cap, remembered by its folder, and told."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.facts import facts, says

torch = pytest.importorskip("torch", reason="needs the train extra")


from dirigent.errors import ConfigError, CostError  # noqa: E402
from dirigent.limits import Quote  # noqa: E402
from dirigent.messages import Usage  # noqa: E402
from dirigent.workers.scripted import Scripted  # noqa: E402
from dirigent.workers.worker import Price, Worker  # noqa: E402
from dirigent_gym.train.checkpoint import latest  # noqa: E402
from dirigent_gym.train.grpo import Watch  # noqa: E402
from dirigent_gym.train.recipe import BaseSettings, Recipe, TaskSettings, WorkerSettings  # noqa: E402
from dirigent_gym.train.rows import skill_tasks  # noqa: E402
from dirigent_gym.train.run import Result, train  # noqa: E402
from dirigent_gym.train.spending import FILE, CapReached, Spending  # noqa: E402

QUOTE = Quote("dear", input_usd=0.0, output_token_usd=0.01, max_output_tokens=100)
"""A call that costs a dollar at most."""


async def call(spending: Spending, *, cost_usd: float) -> None:
    hold = await spending.reserve(QUOTE)
    assert hold.max_output_tokens == 100, "an answer cut short would be held against the plan"
    await asyncio.sleep(0)
    spending.settle(hold, cost_usd=cost_usd, output_tokens=1)


async def test_calls_wait_for_money_that_others_hold_and_will_not_use() -> None:
    spending = Spending(max_cost_usd=2.5)
    await asyncio.gather(*(call(spending, cost_usd=0.01) for _ in range(150)))
    assert spending.spent_usd == pytest.approx(1.5)
    assert not spending.refused


async def test_a_call_that_nothing_is_left_for_is_refused_and_so_is_every_one_after_it() -> None:
    spending = Spending(max_cost_usd=5.0)
    calls = [call(spending, cost_usd=1.0) for _ in range(20)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, CostError) for outcome in outcomes] == [False] * 5 + [True] * 15
    assert (spending.spent_usd, spending.refused) == (5.0, True)
    with pytest.raises(CostError):
        await spending.reserve(msgspec.structs.replace(QUOTE, output_token_usd=0.0))


async def test_what_was_paid_is_remembered_by_the_folder_even_after_half_a_line(tmp_path: Path) -> None:
    before = Spending(tmp_path)
    for _ in range(3):
        await call(before, cost_usd=0.5)
    with (tmp_path / FILE).open("a") as file:
        file.write("0.")
    after = Spending(tmp_path, max_cost_usd=2.0)
    assert after.total_usd == after.spent_usd == pytest.approx(1.5)
    assert after.covers(0.5)
    assert not after.covers(0.6)


async def test_processes_share_what_is_left_of_the_cap(tmp_path: Path) -> None:
    await call(Spending(tmp_path), cost_usd=1.0)
    several = [Spending(tmp_path, max_cost_usd=7.0, processes=3) for _ in range(3)]
    calls = [call(one, cost_usd=1.0) for one in several for _ in range(9)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert outcomes.count(None) == 6
    assert all(one.total_usd == pytest.approx(7.0) for one in several)


# --- a run ---

NAMES = ("roman", "code")
A_CALL_USD = 0.01


@pytest.fixture(scope="module")
def start(tiny_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Result:
    assert tiny_recipe.base.tiny is not None
    tiny = msgspec.structs.replace(tiny_recipe.base.tiny, steps=tiny_recipe.base.tiny.steps // 6)
    recipe = msgspec.structs.replace(
        tiny_recipe,
        base=msgspec.structs.replace(tiny_recipe.base, tiny=tiny),
        policy=msgspec.structs.replace(tiny_recipe.policy, rank=4),
        warm_start=msgspec.structs.replace(tiny_recipe.warm_start, n=200, steps=20, measure=4),
        grpo=msgspec.structs.replace(tiny_recipe.grpo, steps=0),
        eval=msgspec.structs.replace(tiny_recipe.eval, n=4),
    )
    return train(recipe, out=tmp_path_factory.mktemp("start"), quiet=True)


@pytest.fixture
def own(tiny_recipe: Recipe, tmp_path: Path) -> Recipe:
    """Tasks of a file, whose right plans nobody knows, over workers of a dirigent.toml."""
    tasks = [msgspec.structs.replace(task, sketch=None) for task in skill_tasks("train", 12, skills=NAMES, seed=1)]
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(b"\n".join(msgspec.json.encode(task) for task in tasks))
    return msgspec.structs.replace(
        tiny_recipe,
        tasks=TaskSettings(file=str(file), dev_file=str(file)),
        workers=WorkerSettings("config", config="dirigent.toml"),
        policy=msgspec.structs.replace(tiny_recipe.policy, rank=4),
        warm_start=msgspec.structs.replace(tiny_recipe.warm_start, measure=4),
        grpo=msgspec.structs.replace(tiny_recipe.grpo, steps=4, prompts=2, rollouts=4, refills=0, save_every_steps=10),
        eval=msgspec.structs.replace(tiny_recipe.eval, every_steps=2, n=4),
    )


def pool(price: Price | None = Price(output=A_CALL_USD * 1e6)) -> dict[str, Worker]:  # noqa: B008
    """Each call writes one token, and could write no more."""
    card: dict[str, Any] = {"price": price, "usage": Usage(1, 1), "output_tokens": 1, "subtask_only": True}
    return {name: Scripted("V", name=name, **card) for name in NAMES}


def paid(workers: dict[str, Worker]) -> float:
    return A_CALL_USD * sum(worker.calls for worker in workers.values() if isinstance(worker, Scripted))


def capped(recipe: Recipe, usd: float | None) -> Recipe:
    return msgspec.structs.replace(recipe, workers=msgspec.structs.replace(recipe.workers, max_cost_usd=usd))


def with_start(start: Result, out: Path) -> Path:
    shutil.copytree(Path(start.out) / "warm-start", out / "warm-start")
    (out / "warm-start" / "start.json").unlink()
    return out


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.timeout(300)
def test_a_run_tells_what_workers_cost_and_ends_before_its_cap_with_a_checkpoint(
    own: Recipe, start: Result, tmp_path: Path
) -> None:
    workers = pool()
    free = train(own, out=with_start(start, tmp_path / "free"), workers=workers, quiet=True)
    assert free.finished
    assert free.spent_usd == pytest.approx(paid(workers))
    assert free.spent_usd > 0.3
    told = [row["spent_usd"] for row in rows(tmp_path / "free") if row["kind"] in ("train", "dev")]
    assert len(told) == 6
    assert told == sorted(told)
    assert max(told) == pytest.approx(free.spent_usd)
    assert says(free.summary, "$0")

    after = {row["step"]: row["spent_usd"] for row in rows(tmp_path / "free") if row["kind"] == "train"}
    cap = after[3] - A_CALL_USD
    workers, out = pool(), with_start(start, tmp_path / "capped")
    cut = train(capped(own, cap), out=out, workers=workers, quiet=True)
    assert cut.step in (1, 2)
    assert latest(out) == (out / f"checkpoint-{cut.step}", cut.step)
    assert cut.spent_usd == pytest.approx(paid(workers))
    assert cut.spent_usd <= cap
    assert says(cut.stopped, f"stopped: ${cut.spent_usd:.4g} ${cap:.6g} --resume")
    assert msgspec.json.decode((out / "result.json").read_bytes())["spent_usd"] == cut.spent_usd

    with pytest.raises(CapReached, match=facts(f"{cut.step} --resume")):
        train(capped(own, cap), out=out, resume=True, workers=(again := pool()), quiet=True)
    assert paid(again) == 0.0
    whole = train(capped(own, 100.0), out=out, resume=True, workers=(more := pool()), quiet=True)
    assert whole.finished
    assert whole.spent_usd == pytest.approx(cut.spent_usd + paid(more))
    assert whole.spent_usd == pytest.approx(free.spent_usd), "it is the run that was not broken off"
    assert whole.changes[0].what == f"workers.max_cost_usd {cap:.12g} -> 100"


@pytest.mark.timeout(300)
def test_a_cap_that_is_met_within_a_step_ends_the_run_after_it(own: Recipe, start: Result, tmp_path: Path) -> None:
    whole = train(own, out=with_start(start, tmp_path / "whole"), workers=pool(), quiet=True)
    after = {row["step"]: row["spent_usd"] for row in rows(Path(whole.out)) if row["kind"] == "train"}
    workers, out = pool(), with_start(start, tmp_path / "cut")
    cap = after[1] - 2 * A_CALL_USD
    cut = train(capped(own, cap), out=out, workers=workers, quiet=True)
    assert (cut.step, latest(out)) == (1, (out / "checkpoint-1", 1))
    assert paid(workers) == pytest.approx(cap)
    (row,) = rows(out)
    assert row["dropped"] > 0
    assert says(cut.stopped, "workers.max_cost_usd")


@pytest.mark.timeout(300)
def test_a_cap_too_low_for_the_start_says_so_and_keeps_the_warm_start(
    own: Recipe, start: Result, tmp_path: Path
) -> None:
    out, workers = with_start(start, tmp_path / "low"), pool()
    with pytest.raises(CapReached, match=facts("--resume")):
        train(capped(own, 2.5 * A_CALL_USD), out=out, workers=workers, quiet=True)
    assert paid(workers) == pytest.approx(2 * A_CALL_USD)
    assert not (out / "warm-start" / "start.json").exists()
    assert train(capped(own, None), out=out, resume=True, workers=(more := pool()), quiet=True).spent_usd == (
        pytest.approx(paid(more) + 2 * A_CALL_USD)
    )


@pytest.mark.timeout(300)
def test_what_a_part_without_a_checkpoint_paid_counts_too(
    own: Recipe, start: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that broke off within its second step, before any checkpoint."""
    steps: list[int] = []

    def breaks(watch: Watch, model: Any) -> None:
        steps.append(1)
        if len(steps) == 2:
            raise RuntimeError("the machine is gone")

    out, lost = with_start(start, tmp_path / "broken"), pool()
    with monkeypatch.context() as patch:
        patch.setattr(Watch, "check_gradients", breaks)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            train(capped(own, 100.0), out=out, workers=lost, quiet=True)
    assert latest(out) is None
    result = train(capped(own, 100.0), out=out, resume=True, workers=(more := pool()), quiet=True)
    assert result.spent_usd == pytest.approx(paid(lost) + paid(more))


@pytest.mark.timeout(300)
def test_a_start_that_was_not_fitted_is_measured_without_advice_on_fitting(
    own: Recipe, start: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warm = msgspec.structs.replace(own.warm_start, lessons="none")
    ready = msgspec.structs.replace(own.grpo, steps=0)
    recipe = msgspec.structs.replace(own, base=BaseSettings(model=str(Path(start.out) / "warm-start" / "base")))
    recipe = msgspec.structs.replace(recipe, warm_start=warm, grpo=ready)
    train(recipe, out=with_start(start, tmp_path / "ready"), workers=pool())
    said = capsys.readouterr().err
    assert "valid " in said
    assert "warm_start." not in said


@pytest.mark.timeout(300)
def test_a_cap_over_a_worker_without_a_price_is_refused_before_it_is_asked(
    own: Recipe, start: Result, tmp_path: Path
) -> None:
    workers = pool(price=None)
    with pytest.raises(ConfigError, match=facts("roman price")):
        train(capped(own, 1.0), out=with_start(start, tmp_path / "unpriced"), workers=workers, quiet=True)
    assert paid(workers) == 0.0


def test_tasks_of_the_gym_cost_nothing(start: Result) -> None:
    assert start.spent_usd == 0.0
    assert "$" not in start.summary
    assert not (Path(start.out) / FILE).exists()
