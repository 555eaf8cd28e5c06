"""Every planner that an evaluation can name, over a live pool: three models behind three wires, and two that plan.

The provider is a stub on loopback; pool, command, record and report are as users have them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dirigent.cli.evaluating import carried_out
from dirigent.config.file import load_config, parse_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError
from dirigent.evals.live import LiveField, live_pool, planner_digests, shipped_weights, with_warm_start, worker_digests
from dirigent.evals.questions import Questions
from dirigent.evals.recipe import EvalRecipe
from dirigent.evals.record import Outcome, read_outcomes
from dirigent.plan.planner import LanguagePlanner
from dirigent.workers.adapters import packaged
from dirigent.workers.pool import Pool
from dirigent.workers.scripted import Scripted
from tests.facts import facts, says
from tests.published_rows import published
from tests.stub_provider import StubProvider
from tests.stub_wires import StubCall

NAMED = (
    "best", "single:strong", "random", "cheapest", "vote", "self-moa", "moa", "reflect", "knn", "routerdc", "masrouter",
    "smoothie", "language", "pipeline", "escalate", "warm-start", "conductor", "oracle", "ceiling",
)  # fmt: skip
"""What the command line promises, one row each."""

WORKER = """
[[worker]]
name = "{name}"
kind = "{kind}"
model = "{name}"
base_url = "{url}"
api_key_env = "LIVE_TEST_KEY"
about = "Answers questions."
price = {{ input = {price}, output = {price} }}
"""

PLANNERS = """
[profile.ultra]
planner = "conductor"
planner_worker = "after"

[profile.warm-start]
planner = "conductor"
planner_worker = "before"
"""

RIGHT = {i: reply for i, (_, reply) in enumerate(published("gsm8k", 30))}
SHARE_RIGHT = {"strong": 230, "middling": 160, "weak": 90}
"""Of 256: how often a model is right."""


def answer(call: StubCall) -> str:
    """A plan if the request asks for one, else an answer; a stronger model is right more often."""
    text = json.dumps(call.body, ensure_ascii=False)
    if call.model in ("before", "after"):
        return "Answer the question. | strong 0 | -" if call.model == "after" else "Answer it. | weak 2 | -"
    if "access_list" in text:
        return "model_id = [1, 0]\nsubtasks = ['Answer.', 'Check it.']\naccess_list = [[], [0]]"
    i = int(re.findall(r"\[gsm8k #(\d+)\]", text)[0])
    lot = hashlib.blake2b(f"{call.model} {i}".encode()).digest()[0]
    return RIGHT[i] if lot < SHARE_RIGHT[call.model] else "The answer is 7."


@pytest.fixture
async def stub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StubProvider]:
    monkeypatch.setenv("LIVE_TEST_KEY", "not-a-key")
    async with StubProvider(answer) as provider:
        yield provider


@pytest.fixture
def wanted(stub: StubProvider, tmp_path: Path) -> EvalRecipe:
    """Four questions to fit on and four to ask, of every planner."""
    wires = {"strong": "openai", "middling": "anthropic", "weak": "gemini", "after": "openai", "before": "openai"}
    prices = {"strong": 10.0, "middling": 3.0, "weak": 1.0, "after": 0.5, "before": 0.5}
    workers = (
        WORKER.format(name=name, kind=wire, url=stub.url(wire), price=prices[name])  # type: ignore[arg-type]
        for name, wire in wires.items()
    )
    (tmp_path / "dirigent.toml").write_text("".join(workers) + PLANNERS)
    (tmp_path / "gsm8k.jsonl").write_text("\n".join(json.dumps(row) for row, _ in published("gsm8k", 30)))
    return EvalRecipe(
        tasks=("gsm8k",),
        planners=NAMED,
        pool=str(tmp_path / "dirigent.toml"),
        data=str(tmp_path / "gsm8k.jsonl"),
        limit=4,
        fit=4,
        max_cost=5.0,
        max_output_tokens=64,
    )


def spent_usd(outcomes: Path) -> float:
    """All payments, including those for cut replies."""
    lines = outcomes.read_bytes().splitlines()[1:]
    return sum(float(json.loads(line).get("cost_usd", 0.0)) for line in lines)


async def test_every_planner_named_has_its_row_also_after_a_kill_and_nothing_is_paid_twice(
    stub: StubProvider, wanted: EvalRecipe, tmp_path: Path, wait_until: Callable[..., Awaitable[None]]
) -> None:
    stub.delay_s = 0.01
    outcomes, report = tmp_path / "r.jsonl", tmp_path / "r.json"
    command = ["-m", "dirigent", "eval", "--tasks", "gsm8k", "--planners", ",".join(NAMED), "--pool", wanted.pool]
    command += ["--data", wanted.data, "--limit", "4", "--fit", "4", "--max-cost", "5", "--out", str(report)]
    environ = os.environ | {"DIRIGENT_HOME": str(tmp_path / "home")}
    process = await asyncio.create_subprocess_exec(sys.executable, *command, env=environ, stderr=-3, stdout=-3)
    try:
        await wait_until(lambda: outcomes.exists() and outcomes.read_bytes().count(b"\n") > 60, within_s=60)
    finally:
        process.kill()
        await process.wait()
    kept, before = read_outcomes(outcomes), len(stub.calls)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--resume", env=environ, stderr=-1, stdout=-1
    )
    printed, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert says(said.decode(), f"{len(kept)}")
    assert re.search(r"ceiling: .*\b10\b.*\b4\b.*\$", said.decode())
    _has_all_rows(json.loads(report.read_text()))
    assert all(f"\n{name}" in printed.decode() for name in NAMED)
    _was_paid_once(outcomes, kept, calls=len(stub.calls) - before)


def _has_all_rows(report: dict[str, dict[str, dict[str, object]]]) -> None:
    assert list(report["planners"]) == list(NAMED)
    assert report["complete"]
    assert {name: row["n"] for name, row in report["planners"].items()} == dict.fromkeys(NAMED, 4)
    assert all(row["failed"] == 0 and row["valid"] == 1.0 for row in report["planners"].values())


def _was_paid_once(outcomes: Path, kept: list[Outcome], *, calls: int) -> None:
    """Outcomes from before the kill stay, and the calls after it belong to new outcomes alone."""
    keys = [
        (line["planner"], line["task"], line.get("repeat", 0))
        for line in map(json.loads, outcomes.read_bytes().splitlines()[1:])
    ]
    assert max(Counter(keys).values()) == 1
    new = [outcome for outcome in read_outcomes(outcomes) if outcome.key not in {old.key for old in kept}]
    assert calls == sum(outcome.calls for outcome in new)


async def test_a_cap_holds_over_fitting_and_test_and_a_raised_one_finishes(
    stub: StubProvider, wanted: EvalRecipe, tmp_path: Path
) -> None:
    outcomes = tmp_path / "r.jsonl"
    whole = await carried_out(wanted, tmp_path / "r.json", resume=False, traces=False)
    cost_usd = spent_usd(outcomes)
    cap_usd = cost_usd * 0.8
    capped = EvalRecipe(**{**_fields(wanted), "max_cost": cap_usd})  # type: ignore[arg-type]
    cut = await carried_out(capped, tmp_path / "c.json", resume=False, traces=False)
    assert not cut.complete
    assert spent_usd(tmp_path / "c.jsonl") <= cap_usd
    finished = await carried_out(wanted, tmp_path / "c.json", resume=True, traces=False)
    assert finished.complete
    assert {n: r.accuracy for n, r in finished.planners.items()} == {n: r.accuracy for n, r in whole.planners.items()}
    assert spent_usd(tmp_path / "c.jsonl") == pytest.approx(cost_usd, rel=0.2)


async def test_a_ceiling_that_the_cap_cannot_pay_for_is_refused_before_its_plans_are_tried(
    stub: StubProvider, wanted: EvalRecipe, tmp_path: Path
) -> None:
    ranking = EvalRecipe(**{**_fields(wanted), "planners": ("best",)})  # type: ignore[arg-type]
    await carried_out(ranking, tmp_path / "b.json", resume=False, traces=False)
    fields = {"planners": ("best", "ceiling"), "max_cost": spent_usd(tmp_path / "b.jsonl") * 2}
    tight = EvalRecipe(**{**_fields(wanted), **fields})  # type: ignore[arg-type]
    before = len(stub.calls)
    with pytest.raises(ConfigError, match=facts("ceiling --max-cost --resume")):
        await carried_out(tight, tmp_path / "t.json", resume=False, traces=False)
    assert len(stub.calls) - before == 4 * 3


async def test_a_router_is_not_fitted_on_the_plans_that_a_cap_happened_to_pay_for(
    wanted: EvalRecipe, tmp_path: Path
) -> None:
    named = EvalRecipe(**{**_fields(wanted), "planners": ("best", "masrouter")})  # type: ignore[arg-type]
    whole = await carried_out(named, tmp_path / "r.json", resume=False, traces=False)
    capped = EvalRecipe(**{**_fields(named), "max_cost": whole.fit["cost_usd"] * 0.7})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=facts("masrouter --max-cost --resume")):
        await carried_out(capped, tmp_path / "c.json", resume=False, traces=False)
    assert not {"best", "masrouter"} & {outcome.planner for outcome in read_outcomes(tmp_path / "c.jsonl")}
    finished = await carried_out(named, tmp_path / "c.json", resume=True, traces=False)
    assert finished.planners.keys() == whole.planners.keys()
    assert finished.complete


async def test_a_planning_worker_given_by_name_needs_no_fitting_questions(
    stub: StubProvider, wanted: EvalRecipe, tmp_path: Path
) -> None:
    named = EvalRecipe(**{**_fields(wanted), "planners": ("language:strong", "random")})  # type: ignore[arg-type]
    report = await carried_out(named, tmp_path / "r.json", resume=False, traces=False)
    assert report.complete
    assert report.fit == {}
    assert report.tasks["left_out"] == {}
    assert len(stub.calls) == 4 * (1 + 2 + 1)


def _fields(recipe: EvalRecipe) -> dict[str, object]:
    return {name: getattr(recipe, name) for name in recipe.__struct_fields__}


async def test_models_that_only_plan_are_asked_no_question(stub: StubProvider, wanted: EvalRecipe) -> None:
    loaded = load_config(Path(wanted.pool))
    async with open_runtime(loaded) as runtime:
        pool, trained = live_pool(runtime, ("conductor", "conductor:2", "warm-start"))
        assert pool.names == ("strong", "middling", "weak")
        assert {name: _worker_of(trained[name](None, pool)) for name in trained} == {  # type: ignore[arg-type]
            "conductor": "after",
            "warm-start": "before",
        }
        assert shipped_weights(runtime.config, trained) == {}  # a user's own conductor: our cards do not describe it


def _worker_of(planner: object) -> str:
    assert isinstance(planner, LanguagePlanner)
    return planner.worker.info.name


async def test_without_a_profile_of_its_own_the_warm_start_is_the_packaged_one() -> None:
    if "warm-start" not in packaged():
        pytest.fail("the package has no warm start")
    loaded = parse_config('[[worker]]\nname = "a"\nkind = "scripted"\nreplies = ["x"]\n')
    assert with_warm_start(loaded, ("best",)) is loaded
    joined = with_warm_start(loaded, ("best", "warm-start"))
    worker = joined.config.worker[-1]
    assert (worker.name, worker.kind, worker.adapter, worker.merged) == ("warm-start", "local", "warm-start", True)
    async with open_runtime(joined) as runtime:
        if problem := runtime.problems.get("warm-start"):
            pytest.skip(f"needs a local model: {problem}")
        pool, trained = live_pool(runtime, ("warm-start",))
        assert pool.names == ("a",)
        planner = trained["warm-start"](None, pool)  # type: ignore[arg-type]
        assert (planner.name, _worker_of(planner)) == ("warm-start", "warm-start")
        assert list(shipped_weights(runtime.config, trained)) == ["warm-start"]


async def test_a_planner_with_other_weights_is_not_gone_on_with_under_its_old_name(
    stub: StubProvider, wanted: EvalRecipe, tmp_path: Path
) -> None:
    first = EvalRecipe(**{**_fields(wanted), "planners": ("single:strong",)})  # type: ignore[arg-type]
    both = EvalRecipe(**{**_fields(wanted), "planners": ("single:strong", "conductor")})  # type: ignore[arg-type]
    await carried_out(first, tmp_path / "r.json", resume=False, traces=False)
    joined = await carried_out(both, tmp_path / "r.json", resume=True, traces=False)
    assert [row.n for row in joined.planners.values()] == [4, 4]
    before = (tmp_path / "r.jsonl").read_bytes(), len(stub.calls)
    pool = tmp_path / "dirigent.toml"
    pool.write_text(pool.read_text().replace('model = "after"', 'model = "after-more-training"'))
    with pytest.raises(ConfigError, match=facts("conductor after after-more-training --resume")):
        await carried_out(both, tmp_path / "r.json", resume=True, traces=False)
    await carried_out(first, tmp_path / "r.json", resume=True, traces=False)
    assert ((tmp_path / "r.jsonl").read_bytes(), len(stub.calls)) == before


def test_local_weights_are_named_by_their_files_digests(tmp_path: Path) -> None:
    adapter, base = tmp_path / "mine.gguf", tmp_path / "base.gguf"
    adapter.write_bytes(b"one")
    base.write_bytes(b"base")
    local = '[[worker]]\nname = "{name}"\nkind = "local"\nadapter = "{adapter}"\nweights = "{weights}"\n'
    text = local.format(name="after", adapter="mine.gguf", weights="smollm2-135m")
    text += local.format(name="sums", adapter="sums", weights="base.gguf")
    text += '[profile.ultra]\nplanner = "conductor"\nplanner_worker = "after"\n'
    loaded = parse_config(text, path=tmp_path / "dirigent.toml")
    pool = Pool([Scripted("x", name="sums")])
    planners, workers = planner_digests(loaded, ["conductor"]), worker_digests(loaded, pool)
    assert re.fullmatch(r"smollm2-135m\+mine\.gguf:[0-9a-f]{32}", planners["conductor"])
    assert re.fullmatch(r"sums=base\.gguf:[0-9a-f]{32}\+sums\.gguf:[0-9a-f]{32}", workers)
    adapter.write_bytes(b"two")
    base.write_bytes(b"other")
    assert planner_digests(loaded, ["conductor"]) != planners
    assert worker_digests(loaded, pool) != workers
    adapter.unlink()
    with pytest.raises(ConfigError, match=facts("mine.gguf")):
        planner_digests(loaded, ["conductor"])


async def test_going_on_with_a_worker_at_another_temperature_is_refused(
    stub: StubProvider, wanted: EvalRecipe, tmp_path: Path
) -> None:
    named = EvalRecipe(**{**_fields(wanted), "planners": ("single:strong",)})  # type: ignore[arg-type]
    await carried_out(named, tmp_path / "r.json", resume=False, traces=False)
    pool = tmp_path / "dirigent.toml"
    pool.write_text(pool.read_text().replace('model = "strong"', 'model = "strong"\nretries = 1'))
    await carried_out(named, tmp_path / "r.json", resume=True, traces=False)
    assert len(stub.calls) == 4
    pool.write_text(pool.read_text().replace("retries = 1", "temperature = 0.7"))
    with pytest.raises(ConfigError, match=facts("pool strong=strong middling=middling")):
        await carried_out(named, tmp_path / "r.json", resume=True, traces=False)


async def test_a_worker_called_so_that_does_not_plan_is_no_warm_start() -> None:
    loaded = parse_config('[[worker]]\nname = "warm-start"\nkind = "scripted"\nreplies = ["x"]\n')
    with pytest.raises(ConfigError, match=facts("warm-start [profile.warm-start]")):
        with_warm_start(loaded, ("warm-start",))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bset", "bset best"),
        ("conducter", "conducter conductor"),
        ("MoA", "MoA moa"),
        ("self_moa", "self_moa self-moa"),
        ("strong", "single:strong"),
        (
            "zzz",
            "zzz each single:strong single:middling single:weak random best",
        ),
        (
            "single:stron",
            "stron single:stron strong",
        ),
        ("language:gpt", "strong middling weak"),
        ("single", "single:NAME strong middling weak"),
    ],
)
async def test_the_error_for_a_misspelt_name_lists_the_nearest_and_all_names(
    stub: StubProvider, wanted: EvalRecipe, name: str, said: str
) -> None:
    async with open_runtime(load_config(Path(wanted.pool))) as runtime:
        pool, trained = live_pool(runtime, NAMED)
        with pytest.raises(ConfigError) as error:
            LiveField(Questions((), []), pool, trained=trained).lineup(["best", name])
    assert says(str(error.value), said)
    if name == "zzz":
        assert all(known in str(error.value) for known in ("conductor", "warm-start", "oracle", "ceiling", "masrouter"))


async def test_the_list_leaves_out_planners_without_weights(stub: StubProvider, wanted: EvalRecipe) -> None:
    async with open_runtime(load_config(Path(wanted.pool))) as runtime:
        pool, _ = live_pool(runtime, ())
        with pytest.raises(ConfigError) as error:
            LiveField(Questions((), []), pool).lineup(["zzz"])
    assert "conductor" not in str(error.value)
