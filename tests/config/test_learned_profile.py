"""A profile with a learned policy: from a table to a run, and the faults that disable a policy."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.facts import facts

from dirigent.cli.doctor import examine
from dirigent.cli.setup import policy_fits
from dirigent.config.file import Loaded, load_config
from dirigent.config.fingerprint import fingerprint
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError, PlanError
from dirigent.learn.policy import Policy
from dirigent.learn.policy_fit import PolicySettings, fit_policy
from dirigent.learn.selector import SelectorSettings
from dirigent.learn.table import Answer, Question, Table, TableWorker
from dirigent.messages import Request, Result
from dirigent.plan.plan import Plan, Step, check_plan
from dirigent.serve.service import open_service

WORKERS = """
[[worker]]
name = "quick"
kind = "scripted"
replies = ["The answer is 1."]
price = { input = 1, output = 1 }

[[worker]]
name = "strong"
kind = "scripted"
replies = ["The answer is 1."]
price = { input = 10, output = 10 }
"""
LEARNED = """
[profile.mini]
planner = "learned"
policy = "policy"
operating_point = "price 0.05"
max_steps = 11
"""
SUM = "What is 1 plus 4? Add the two numbers."


def recorded(loaded: Loaded) -> Table:
    """Sums, at which `quick` is nearly always right, and rivers, at which it is mostly wrong."""
    rng = random.Random(1)
    questions, answers = [], []
    for i in range(40):
        text = f"What is {i} plus {i + 3}? Add the two numbers." if i % 2 else f"Which river flows through city {i}?"
        questions.append(Question(f"q{i}", text, answer="1"))
        finals: list[str] = []
        for worker, chance, cost in (("quick", 0.95 if i % 2 else 0.3, 0.001), ("strong", 0.9, 0.02)):
            right = rng.random() < chance
            final = "1" if right else str(rng.randint(2, 9))
            finals += [final] if final not in finals else []
            same = finals.index(final)
            said = Answer(f"q{i}", worker, text=f"It is {final}.", final=final, same=same, right=float(right))
            answers.append(msgspec.structs.replace(said, cost=cost))
    workers = [TableWorker(w.name, fingerprint=fingerprint(w, folder=loaded.folder)) for w in loaded.config.worker]
    return Table(tuple(workers), tuple(questions), tuple(answers))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy over `quick` and `strong`, fitted in seconds."""
    folder = tmp_path_factory.mktemp("fitted")
    (folder / "dirigent.toml").write_text(WORKERS)
    loaded = load_config(folder / "dirigent.toml")
    small = SelectorSettings(subsets=2, trees=4, rows=200)
    settings = PolicySettings(folds=3, prices=(0.0, 0.05), coarse=2, fine=2, selector=small)
    found = fit_policy(recorded(loaded), where="the table", settings=settings)
    # So few questions leave most others unlike them; here every question counts as known.
    msgspec.structs.replace(found.policy, novel_above=(99.0, 99.0)).save(folder / "policy", found.selector)
    return folder / "policy"


@pytest.fixture
def configured(tmp_path: Path, fitted: Path) -> Callable[[str], Loaded]:
    """A configuration beside the fitted policy."""
    (tmp_path / "policy").symlink_to(fitted)

    def write(text: str) -> Loaded:
        (tmp_path / "dirigent.toml").write_text(text)
        return load_config(tmp_path / "dirigent.toml")

    return write


async def test_a_learned_profile_plans_runs_and_says_why(configured: Callable[[str], Loaded], fitted: Path) -> None:
    async with open_runtime(configured(WORKERS + LEARNED)) as runtime:
        conductor = runtime.conductor("mini")
        assert conductor.pool.names == ("quick", "strong", "vote", "select")
        trace = await conductor.run(SUM)
    assert (trace.status, trace.answer) == ("done", "The answer is 1.")
    assert trace.reason is not None
    assert trace.reason.baseline == "strong"
    assert "kind" in trace.reason.why
    assert set(trace.reason.chosen) <= {"quick", "strong"}


async def test_another_planner_of_the_profile_plans_for_questions_unlike_all_that_was_measured(
    tmp_path: Path, fitted: Path
) -> None:
    shutil.copytree(fitted, tmp_path / "policy")
    new = '\n[[worker]]\nname = "plain"\nkind = "scripted"\nreplies = ["Hello."]\nprice = { input = 1, output = 1 }\n'
    (tmp_path / "dirigent.toml").write_text(WORKERS + new + LEARNED + 'unlike = "single"\nplanner_worker = "plain"\n')
    async with open_runtime(load_config(tmp_path / "dirigent.toml")) as runtime:
        known = await runtime.conductor("mini").run(SUM)
        assert "plain" not in [step.worker for step in known.steps]
        assert runtime.left_out() == {}  # the other planner may ask a worker that was not measured
        policy = msgspec.structs.replace(Policy.load(tmp_path / "policy"), novel_above=(0.0, 0.0))
        policy.save(tmp_path / "policy")
        novel = await runtime.conductor("mini").run(SUM)
        assert [step.worker for step in novel.steps] == ["plain"]


@pytest.mark.parametrize("planner", ["learned", "language", "nobody"])
async def test_only_a_fixed_planner_can_plan_in_a_policys_place(
    configured: Callable[[str], Loaded], planner: str
) -> None:
    with pytest.raises(ConfigError, match=facts(f"unlike [profile.mini] fixed {planner}")):
        configured(f'{WORKERS}{LEARNED}unlike = "{planner}"\n')


async def test_a_worker_that_changed_since_it_was_measured_is_out_and_named(
    configured: Callable[[str], Loaded],
) -> None:
    changed = WORKERS.replace('name = "quick"', 'name = "quick"\ntemperature = 0.5')
    async with open_runtime(configured(changed + LEARNED)) as runtime:
        trace = await runtime.conductor("mini").run(SUM)
        assert list(runtime.left_out()) == ["quick"]
    assert [step.worker for step in trace.steps] == ["strong"]
    assert trace.reason is not None
    assert "quick has changed" in trace.reason.left_out[0]


async def test_a_new_worker_is_not_used_until_it_was_measured(configured: Callable[[str], Loaded]) -> None:
    new = '[[worker]]\nname = "new"\nkind = "scripted"\nreplies = ["?"]\nprice = { input = 0, output = 0 }\n'
    async with open_runtime(configured(WORKERS + new + LEARNED)) as runtime:
        trace = await runtime.conductor("mini").run(SUM)
        assert runtime.left_out() == {"new": "new was not measured; `dirigent calibrate` measures it"}
    assert "new" not in [step.worker for step in trace.steps]


async def test_an_operating_point_without_evidence_is_refused_before_any_request(
    configured: Callable[[str], Loaded],
) -> None:
    async with open_runtime(configured(WORKERS + LEARNED.replace("price 0.05", "cheap"))) as runtime:
        with pytest.raises(ConfigError, match=facts("cheap same best price")):
            runtime.conductor("mini")


async def test_a_folder_without_a_policy_says_how_one_is_made(configured: Callable[[str], Loaded]) -> None:
    text = WORKERS + LEARNED.replace('"policy"', '"nowhere"')
    async with open_runtime(configured(text)) as runtime:
        with pytest.raises(ConfigError, match=facts("nowhere dirigent learn")):
            runtime.conductor("mini")


async def test_a_policy_that_is_off_asks_the_best_single_worker(configured: Callable[[str], Loaded]) -> None:
    async with open_runtime(configured(WORKERS + LEARNED.replace("price 0.05", "off"))) as runtime:
        trace = await runtime.conductor("mini").run(SUM)
    assert [step.worker for step in trace.steps] == ["strong"]


async def test_a_policy_that_was_fitted_again_is_read_again(tmp_path: Path, fitted: Path) -> None:
    (tmp_path / "dirigent.toml").write_text(WORKERS + LEARNED.replace("price 0.05", ""))
    policy = Policy.load(fitted)
    policy.switched("price 0.0").save(tmp_path / "policy")
    for name in ("selector.npz", "policy.npz"):
        (tmp_path / "policy" / name).write_bytes((fitted / name).read_bytes())
    loaded = load_config(tmp_path / "dirigent.toml")
    async with open_runtime(loaded) as runtime:
        before = await runtime.conductor("mini").run(SUM)
        again = runtime.policy(loaded.config.profile["mini"])
        assert runtime.policy(loaded.config.profile["mini"]) is again, "read once"
        policy.switched("off").save(tmp_path / "policy")
        after = await runtime.conductor("mini").run(SUM)
    assert before.reason is not None
    assert after.reason is not None
    assert before.reason.why != after.reason.why
    assert [step.worker for step in after.steps] == ["strong"]


async def test_a_pools_own_selector_chooses_with_the_policys_and_ends_a_plan_with_until(
    configured: Callable[[str], Loaded],
) -> None:
    text = WORKERS + '[[worker]]\nname = "select"\nkind = "select"\npath = "policy"\n'
    async with open_runtime(configured(text + LEARNED)) as runtime:
        assert runtime.conductor("mini").pool.names == ("quick", "strong", "select", "vote", "policy-select")
        plan = Plan((Step("quick", "a"), Step("strong", "b"), Step("select", "pick", (0, 1))), until=0.5)
        assert check_plan(plan, runtime.pool).until == 0.5
        results = (Result(0, "quick", "a", "It is 1."), Result(1, "strong", "b", "It is 1."))
        reply = await runtime.pool["select"].ask(Request((), question=SUM, results=results))
    assert reply.text == "It is 1."
    assert reply.confidence is not None
    assert 0 < reply.confidence < 1


async def test_a_selector_without_a_policy_takes_a_vote_and_no_plan_stops_by_it(
    configured: Callable[[str], Loaded],
) -> None:
    async with open_runtime(configured(WORKERS + '[[worker]]\nname = "select"\nkind = "select"\n')) as runtime:
        plan = Plan((Step("quick", "a"), Step("select", "pick", (0,))), until=0.5)
        with pytest.raises(PlanError, match="no worker of this pool does"):
            check_plan(plan, runtime.pool)
        results = tuple(Result(i, "w", "a", f"The answer is {text}.") for i, text in enumerate("122"))
        reply = await runtime.pool["select"].ask(Request((), question=SUM, results=results))
    assert (reply.text, reply.confidence) == ("The answer is 2.", None)
    assert reply.chosen is not None
    assert (reply.chosen.votes, reply.chosen.of) == (2, 3)


async def test_doctor_names_workers_that_a_policy_does_not_use(configured: Callable[[str], Loaded]) -> None:
    changed = WORKERS.replace('name = "quick"', 'name = "quick"\ntemperature = 0.5')
    loaded = configured(changed + LEARNED)
    checks = [check for check in await examine(loaded.path) if check.what == "policy"]
    assert [(check.ok, check.needed) for check in checks] == [(True, True), (False, False)]
    assert "quick has changed" in checks[1].found
    missing = configured(WORKERS + LEARNED.replace('"policy"', '"nowhere"'))
    (bad,) = [check for check in await examine(missing.path) if check.what == "policy"]
    assert not bad.ok
    assert "nowhere" in bad.found


async def test_a_plan_of_ones_own_may_end_in_the_policys_selector(configured: Callable[[str], Loaded]) -> None:
    plan = Plan((Step("quick", "a"), Step("strong", "b"), Step("select", "pick", (0, 1))), until=0.01)
    async with open_runtime(configured(WORKERS + LEARNED)) as runtime:
        trace = await runtime.conductor("mini", plan=plan).run(SUM)
    assert [step.status for step in trace.steps] == ["done", "skipped", "done"]


async def test_a_server_reads_its_policies_before_the_first_request(
    configured: Callable[[str], Loaded], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    store = f'[store]\nurl = "{tmp_path}/served.db"\n'
    changed = WORKERS.replace('name = "quick"', 'name = "quick"\ntemperature = 0.5')
    async with open_service(configured(changed + LEARNED + store)):
        assert "quick has changed since it was measured" in caplog.text
    with pytest.raises(ConfigError, match=facts("nowhere dirigent learn")):
        async with open_service(configured(WORKERS + LEARNED.replace('"policy"', '"nowhere"') + store)):
            pass


async def test_init_takes_a_policy_that_is_on_and_fits_the_pool(
    tmp_path: Path, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(fitted, tmp_path / "policy")

    async def fits(text: str) -> bool:
        (tmp_path / "dirigent.toml").write_text(text)
        return await policy_fits(load_config(tmp_path / "dirigent.toml"))

    policy = Policy.load(tmp_path / "policy")
    policy.switched("price 0.05").save(tmp_path / "policy")
    assert await fits(WORKERS)
    assert not await fits(WORKERS.replace('name = "quick"', 'name = "quick"\ntemperature = 0.5'))
    assert "fitted on other workers (quick)" in capsys.readouterr().err
    policy.switched("off").save(tmp_path / "policy")
    assert not await fits(WORKERS)
    assert "is off" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "policy")
    assert not await fits(WORKERS)
