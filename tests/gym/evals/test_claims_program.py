"""The program behind the table of claims: a conductor with right plans meets every claim about plans."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gym.benchmarks import claims as program
from gym.benchmarks import claims_table as tables
from gym.benchmarks.claims_evidence import Bench, Sizes, _samples, gather
from tests.facts import facts, says

from dirigent.errors import ConfigError
from dirigent.evals.stats import wilson
from dirigent.plan.plan import format_plan
from dirigent.planners.examples import MAX_SAMPLES
from dirigent.workers.adapters import packaged
from dirigent_gym.questions.probe import probe_accuracy
from dirigent_gym.questions.split import generate
from dirigent_gym.questions.warmstart import LANGUAGE_SHARE
from dirigent_gym.train.claims import (
    KNOW_NO_OTHERS,
    OTHER_SETS,
    PLACED,
    START_SAMPLED,
    Claim,
    Evidence,
    Run,
    as_table,
    claims,
    file_claims,
    scores,
)
from dirigent_gym.train.controls import Share
from dirigent_gym.train.dataset import Row, held_rows
from dirigent_gym.train.recipe import load_conductor
from dirigent_gym.train.rows import right_plan

ROOT = Path(__file__).parents[3]
RECIPE = load_conductor(ROOT / "gym" / "recipes" / "gym-gpu.toml")
SIZES = Sizes(test=40, sampled=6, choosing=30, noise_seeds=2, novel=8, rounds=6, probes=8)


class Scholar(Bench):
    """Writes every row's right plan, accepts every second round, and as warm start writes nonsense."""

    @property
    def adapters(self) -> tuple[str, ...]:
        return ("conductor", "warm-start", "shuffled", "direct")

    def write(
        self, adapter: str, rows: Sequence[Row], *, group: int = 1, seed: int | None = None
    ) -> tuple[list[Row], list[str]]:
        many = [row for row in rows for _ in range(group)]
        return many, [self._plan(adapter, row) for row in many]

    def texts(
        self, adapter: str, conversations: Sequence[Any], *, group: int = 1, seed: int | None = None
    ) -> list[str]:
        return ["42" if len(conversation) < 3 else "accept" for conversation in conversations]

    def _plan(self, adapter: str, row: Row) -> str:
        plan = right_plan(row)
        if adapter != "conductor":
            return "I would ask around."
        return format_plan(plan, row.names, dialect="lines") if plan else "nobody can"


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Scholar(RECIPE, None, {})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def evidence(bench: Bench) -> Evidence:
    return gather(bench, SIZES, say=lambda text: None)


@pytest.fixture(scope="module")
def lines(evidence: Evidence) -> dict[str, Claim]:
    return {claim.name: claim for claim in claims(evidence)}


def test_right_plans_reach_the_ceiling_and_beat_every_worker_alone(lines: dict[str, Claim]) -> None:
    assert lines["share of the ceiling"].value == pytest.approx(1.0, abs=0.12)  # the guesser's luck
    assert lines["depth 1, share of its ceiling"].value == 1.0
    assert lines["depth 2 and more, over the oracle choice of one worker"].verdict == "met"
    assert lines["steps over minimal, correct answers"].value == 1.0
    assert lines["reworded cards, over seen ones"].value == pytest.approx(1.0, abs=0.1)
    assert lines["a skill and a worker never seen in RL"].n == 8
    assert lines["(e) and follows the name instead"].value == 1.0  # it knows every worker by name and reads no card
    for name, said in PLACED.items():
        assert (lines[OTHER_SETS[name]].n, lines[said].n) == (8, 8)
        # A plan in the generator's words gets answers from the tables, if the pool has every worker.
        assert lines[OTHER_SETS[name]].value == pytest.approx(1.0, abs=0.3)
        assert lines[said].value == pytest.approx(1.0, abs=0.3)
        assert lines[OTHER_SETS[name]].note == KNOW_NO_OTHERS


def test_controls_and_the_warm_start_are_measured_where_they_are_given(lines: dict[str, Claim]) -> None:
    assert lines["(d) shuffled reward, gain"].value == 0.0
    assert lines["(d) format-only reward, gain"].verdict == "not measured"
    assert lines["(a) conductor over one adapter, question to answer"].value > 0.5  # type: ignore[operator]
    assert lines["(f) conductor over an equal-cost vote of the best worker"].value > 0.5  # type: ignore[operator]
    assert lines["warm start, greedy: valid plans"].value == 0.0
    assert (lines[START_SAMPLED].value, lines[START_SAMPLED].n) == (0.0, 6)
    assert lines["warm start, sampled: worker farthest from an even choice"].value == 0.0  # it chooses no worker
    assert lines["before RL, pass@16: right answer"].value == 0.0
    assert lines["after RL, pass@16: right decomposition"].n == 6


def test_the_vote_costs_as_much_as_the_conductor_with_its_invalid_plans(
    evidence: Evidence, lines: dict[str, Claim]
) -> None:
    assert not all(one.valid for one in evidence.test.scored)
    assert evidence.vote_cost_ratio == pytest.approx(1.0, abs=0.03)
    found = lines["(f) cost of that vote, over the conductor's"]
    assert (found.value, found.n) == (evidence.vote_cost_ratio, SIZES.test)


def test_samples_follow_from_the_money_and_the_cost_of_one_by_question() -> None:
    rows = held_rows("test", 10, seed=1, settings=RECIPE.rows)
    once_usd = [2.0] * 5 + [1.0] * 5
    for money_usd, samples in ((15.0, {1}), (45.0, {3}), (52.0, {3, 4}), (1e9, {MAX_SAMPLES}), (0.1, {1})):
        found = _samples(rows, once_usd, money_usd, seed=1)
        assert set(found) == samples
        if samples not in ({1}, {MAX_SAMPLES}):
            spent_usd = sum(usd * n for usd, n in zip(once_usd, found, strict=True))
            assert spent_usd == pytest.approx(money_usd, abs=1.0)  # half a sample of the dearer ones
    assert _samples(rows, [0.0] * 10, 5.0, seed=1) == [1] * 10


def test_a_second_round_that_accepts_changes_nothing(lines: dict[str, Claim]) -> None:
    assert lines["two rounds, over one"].value == 0.0
    assert lines["two rounds, over one"].n == 6


def test_without_llama_cpp_its_lines_are_not_measured(lines: dict[str, Claim]) -> None:
    assert lines["shipped files on CPU, 4-bit base, over torch"].verdict == "not measured"
    assert lines["plan on 2 CPU cores, cold, median"].verdict == "not measured"


def test_a_limit_holds_for_every_figure() -> None:
    small = Sizes().at_most(7)
    assert (small.test, small.sampled, small.choosing, small.novel, small.rounds, small.probes) == (7,) * 6
    assert small.noise_seeds == Sizes().noise_seeds


def named(**given: str) -> argparse.Namespace:
    return argparse.Namespace(**{role.replace("-", "_"): "" for role in program.ROLES} | given)


def test_a_run_brings_its_warm_start_and_a_package_its_adapters_by_name(tmp_path: Path) -> None:
    for folder in ("adapter", "warm-start/policy"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "adapter_config.json").write_text("{}")
    found = program.found_adapters(named(conductor=str(tmp_path), direct="facts"))
    assert found["conductor"] == tmp_path / "adapter"
    assert found["warm-start"] == tmp_path / "warm-start" / "policy"
    assert found["direct"].name == "facts.gguf"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "--conductor"),
        ({"conductor": "nowhere"}, "--conductor nowhere: PEFT GGUF"),
    ],
)
def test_a_file_that_is_not_an_adapter_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=facts(message)):
        program.found_adapters(named(**given))


TABLE = tables.Table(
    [Claim("share of the ceiling", value=0.8, interval=(0.7, 0.9), n=10, must=0.9)],
    workers="exact",
    adapters={"conductor": "ab"},
    commit="abc",
    date="2026-11-15",
    seconds=1.0,
    sizes={"test": 10, "seed": 1},
    device="cpu",
)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shortcut probe that is fitted in no time."""
    monkeypatch.setattr(tables, "FITTED", 200)


@pytest.mark.usefixtures("few")
def test_tables_of_several_seeds_become_one_with_its_spread(tmp_path: Path) -> None:
    line = msgspec.structs.replace(TABLE.table[0], value=1.0)
    better = msgspec.structs.replace(TABLE, table=[line], commit="", date="2026-11-16")
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file, table in zip(files, (TABLE, better), strict=True):
        file.write_bytes(msgspec.json.encode(table))
    found = tables.joined(files)
    assert (found.seeds, found.table[0].value, found.table[0].spread) == (2, pytest.approx(0.9), (0.8, 1.0))
    assert found.adapters == {"conductor 1": "ab", "conductor 2": "ab"}
    assert (found.commit, found.date) == ("abc, unknown", "2026-11-16")
    assert says(tables.as_page(found).splitlines()[0], "2")
    files[1].write_bytes(msgspec.json.encode(msgspec.structs.replace(better, workers="local")))
    with pytest.raises(ConfigError):
        tables.joined(files)


@pytest.mark.usefixtures("few")
def test_the_shortcut_probe_is_the_gyms_and_not_a_mean_over_tables(tmp_path: Path) -> None:
    old = Claim("shortcut probe: a bag of words guesses the sequence of skills", value=0.9, n=10)
    now = Claim("shortcut probe: a bag of words, fitted on 200 questions, guesses the sequence of skills", value=0.8)
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file, line in zip(files, (old, now), strict=True):
        file.write_bytes(msgspec.json.encode(msgspec.structs.replace(TABLE, table=[*TABLE.table, line])))
    table = tables.joined(files).table
    found = [line for line in table if line.name.startswith("shortcut probe")]
    tasks = generate("test", 10, seed=1)
    right = probe_accuracy(generate("train", 200, seed=1), tasks)
    assert [(line.name, line.value, line.spread, line.n) for line in found] == [(now.name, right, None, 10)]
    assert f"| {now.name} | {right:.1%} | " in as_table(table)  # and no "(1 seed)"


def test_the_probe_learns_from_as_many_questions_as_the_start_is_shown() -> None:
    n = RECIPE.warm_start.n
    assert n - round(n * LANGUAGE_SHARE) == tables.FITTED


EARLIER = [
    Claim("share of the ceiling", value=0.8, interval=(0.7, 0.9), n=10, must=0.9),
    Claim("questions written by hand, in other words", value=0.0, interval=(0.0, 0.3), n=10),
    Claim("warm start: valid plans", value=1.0, n=10, must=0.98),
    Claim("(d) shuffled reward, gain", "points", 0.01, (0.0, 0.02), n=10, must=0.03, at_most=True),
    Claim("a line that is gone", value=0.5, n=10),
]


def test_a_table_of_an_earlier_commit_gets_todays_lines_and_marks_missing_ones() -> None:
    found = tables.brought_up_to_date(msgspec.structs.replace(TABLE, table=EARLIER)).table
    lines = {line.name: line for line in found}
    empty = claims(Evidence(test=Run((), ()), ceiling={}))
    assert [line.name for line in found[: len(empty)]] == [line.name for line in empty]
    assert (lines["warm start, greedy: valid plans"].value, lines["warm start, greedy: valid plans"].n) == (1.0, 10)
    assert (lines[START_SAMPLED].verdict, lines[START_SAMPLED].must) == ("not measured", 0.98)
    assert lines[PLACED["handwritten"]].verdict == "not measured"
    assert lines[OTHER_SETS["handwritten"]].note == KNOW_NO_OTHERS
    assert found[-1] == EARLIER[-1]  # nothing is dropped in silence
    again = tables.brought_up_to_date(msgspec.structs.replace(TABLE, table=found))
    assert again.table == found
    assert KNOW_NO_OTHERS not in as_table(
        tables.brought_up_to_date(msgspec.structs.replace(TABLE, workers="local")).table
    )


def finished(run: Path, role: str, *, step: int, steps: int) -> Path:
    """The folder of a run that came so far."""
    adapter = run / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    (adapter / "adapter_model.safetensors").write_bytes(role.encode())
    (run / "result.json").write_text(json.dumps({"recipe": role, "step": step, "steps": steps}))
    return run


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 347 of 360 updates that measured its start, a control of 96 of 100, and a table without either."""
    run = finished(tmp_path / "run", "conductor", step=347, steps=360)
    start = run / "warm-start" / "policy"
    start.mkdir(parents=True)
    (start / "adapter_config.json").write_text("{}")
    (start / "adapter_model.safetensors").write_bytes(b"start")
    measured = {"valid_greedy": 1.0, "valid_sampled": 0.9715, "uneven": 0.008}
    (run / "warm-start" / "start.json").write_text(
        json.dumps(measured | {"accuracy_greedy": 0.08, "accuracy_sampled": 0.06})
    )
    finished(tmp_path / "control", "shuffled", step=96, steps=100)
    adapters = {role: sha256(text) for role, text in (("conductor",) * 2, ("warm-start", "start"), ("shuffled",) * 2)}
    table = msgspec.structs.replace(TABLE, table=EARLIER, adapters=adapters)
    (tmp_path / "table.json").write_bytes(msgspec.json.encode(table))
    return run


def test_a_table_takes_from_the_runs_folder_how_many_sampled_plans_of_its_start_were_valid(run: Path) -> None:
    found = program.added(adding(run.parent / "table.json", conductor=str(run)))
    line = next(line for line in found.table if line.name == START_SAMPLED)
    assert (line.value, line.n, line.verdict) == (0.9715, 1000, "MISSED")
    assert line.interval == wilson(971.5, 1000)
    assert says(line.note, "4")
    measured = msgspec.structs.replace(line, value=0.99, note="")
    table = msgspec.structs.replace(found, table=[measured if one.name == line.name else one for one in found.table])
    (run.parent / "table.json").write_bytes(msgspec.json.encode(table))
    again = program.added(adding(run.parent / "table.json", conductor=str(run)))
    assert measured in again.table  # the measurement on the test stays


def test_another_runs_start_is_not_taken_for_this_ones(run: Path) -> None:
    (run / "warm-start" / "policy" / "adapter_model.safetensors").write_bytes(b"another")
    found = program.added(adding(run.parent / "table.json", conductor=str(run)))
    assert next(line for line in found.table if line.name == START_SAMPLED).verdict == "not measured"


@pytest.mark.usefixtures("few")
def test_runs_that_were_cut_short_are_named_in_the_line_and_above_the_table(run: Path) -> None:
    table = run.parent / "table.json"
    found = program.added(adding(table, conductor=str(run), shuffled=str(run.parent / "control")))
    assert found.cut == {"conductor": "347 of 360 updates", "shuffled": "96 of 100 updates"}
    assert says(tables.as_page(found), "conductor 347 360 shuffled 96 100")
    assert re.search(r"\| \(d\) shuffled reward, gain \(.*96.*100.*\) \| \+1\.0 \|", tables.as_page(found))
    table.write_bytes(msgspec.json.encode(found))
    both = tables.joined([table, table])
    assert both.cut["conductor 2"] == "347 of 360 updates"
    assert re.search(r"\| \(d\) shuffled reward, gain \(.*96.*100.*\) \| \+1\.0 \(", tables.as_page(both))
    finished(run.parent / "whole", "shuffled", step=100, steps=100)
    assert (
        program.cut_short(program.found_adapters(named(conductor="conductor", shuffled=str(run.parent / "whole"))))
        == {}
    )


def with_lines(table: tables.Table, *lines: Claim) -> tables.Table:
    """The table with these lines in place of its own."""
    new = {line.name: line for line in lines}
    whole = tables.brought_up_to_date(table)
    return msgspec.structs.replace(whole, table=[new.get(line.name, line) for line in whole.table])


def test_controls_that_were_measured_later_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    direct = Claim("(a) conductor over one adapter, question to answer", "points", 0.5, n=10, note="on few questions")
    shuffled = Claim(
        "(d) shuffled reward, gain", "points", 0.01, n=10, must=0.03, at_most=True, note="96 of 100 updates"
    )
    earlier = msgspec.structs.replace(
        with_lines(TABLE, direct, shuffled),
        seeds=3,
        adapters={"conductor 1": "ab", "direct 3": "cd", "shuffled 3": "ef"},
        cut={"conductor 2": "347 of 360 updates", "shuffled 3": "96 of 100 updates"},
    )
    anew = msgspec.structs.replace(direct, value=0.4, note="")
    later = msgspec.structs.replace(
        with_lines(TABLE, anew, Claim("share of the ceiling", value=0.1, n=10)),
        adapters={"conductor": "gh", "direct": "ij"},
        commit="def",
        date="2026-11-19",
        sizes=TABLE.sizes | {"local": 0},
    )
    files = [tmp_path / "claims.json", tmp_path / "controls.json"]
    for file, table in zip(files, (earlier, later), strict=True):
        file.write_bytes(msgspec.json.encode(table))
    found = tables.with_controls(*files)
    lines = {line.name: line for line in found.table}
    assert lines[direct.name] == anew
    assert lines[shuffled.name] == shuffled  # not measured anew
    assert lines["share of the ceiling"] == earlier.table[0]  # the three seeds', not the one conductor's
    assert (found.seeds, found.commit, found.date) == (3, "abc, def", "2026-11-19")
    assert found.adapters == {
        "conductor 1": "ab",
        "shuffled 3": "ef",
        "conductor of controls": "gh",
        "direct of controls": "ij",
    }
    assert found.cut == earlier.cut
    whole = msgspec.structs.replace(
        with_lines(later, anew, msgspec.structs.replace(shuffled, note="")), adapters={"shuffled": "kl"}
    )
    files[1].write_bytes(msgspec.json.encode(whole))
    assert tables.with_controls(*files).cut == {"conductor 2": "347 of 360 updates"}
    assert "shuffled 3" not in tables.with_controls(*files).adapters


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"workers": "local"}, "claims.json controls.json"), ({}, "controls.json")],
)
def test_a_table_that_can_lend_no_control_is_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    files = [tmp_path / "claims.json", tmp_path / "controls.json"]
    files[0].write_bytes(msgspec.json.encode(TABLE))
    files[1].write_bytes(msgspec.json.encode(msgspec.structs.replace(TABLE, **changed)))
    with pytest.raises(ConfigError, match=facts(message)):
        tables.with_controls(*files)


def test_questions_from_elsewhere_join_a_table_that_lacks_their_plans(
    run: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = msgspec.json.decode((run.parent / "table.json").read_bytes(), type=tables.Table)
    sizes = {"test": 10, "seed": 1, "probes": 8}
    (run.parent / "table.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(table, sizes=sizes)))

    def opened(recipe: Any, adapters: dict[str, Path]) -> Bench:
        assert adapters == {"conductor": run / "adapter"}
        return Scholar(RECIPE, None, {})  # type: ignore[arg-type]

    monkeypatch.setattr("gym.benchmarks.claims_evidence.open_bench", opened)
    found = program.added(adding(run.parent / "table.json", conductor=str(run), elsewhere=True))
    lines = {line.name: line for line in found.table}
    for name in PLACED:
        assert lines[OTHER_SETS[name]].value == scores_of(evidence.others[name])
        assert lines[PLACED[name]].n == 8
    assert lines[OTHER_SETS["second-seed"]].verdict == "not measured"
    assert lines["share of the ceiling"] == EARLIER[0]


def scores_of(run: Run) -> float:
    found = scores(run)
    return sum(found.values()) / len(found)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A table that another machine measured of the packaged conductor: torch got every second of ten questions."""
    rows = held_rows("test", 10, seed=1, settings=RECIPE.rows)
    torch = {row.task.id: float(i % 2) for i, row in enumerate(rows)}
    table = msgspec.structs.replace(
        TABLE,
        table=[*TABLE.table, *file_claims(torch, None, None), Claim(tables.VALID_FILES)],
        adapters={"conductor": hashlib.sha256(packaged()["conductor"].read_bytes()).hexdigest()},
        sizes={"test": 10, "seed": 1, "local": 0},
        right=torch,
    )
    (tmp_path / "table.json").write_bytes(msgspec.json.encode(table))
    return tmp_path / "table.json"


def adding(table: Path, **given: Any) -> argparse.Namespace:
    roles = dict.fromkeys((role.replace("-", "_") for role in program.ROLES), "")
    asked = {
        "conductor": "conductor",
        "local": 0,
        "latency": 0,
        "elsewhere": False,
        "recipe": ROOT / "gym" / "recipes" / "gym-gpu.toml",
    }
    return argparse.Namespace(**roles | asked | {"add": table} | given)


def test_a_table_from_a_gpu_gets_the_lines_that_want_a_cpu(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def on_this_cpu(args: argparse.Namespace, _: Any, rows: Sequence[Row], conductor: Path) -> program.Files:
        assert conductor == packaged()["conductor"]
        return program.Files({row.task.id: 1.0 for row in rows[:4]}, Share(1.0, (0.5, 1.0), 4))

    monkeypatch.setattr(program, "_locally", on_this_cpu)
    found = program.added(adding(elsewhere, local=4))
    lines = {line.name: line for line in found.table}
    over = lines["shipped files on CPU, 4-bit base, over torch"]
    assert (over.value, over.n, over.verdict) == (0.5, 4, "MISSED")
    assert lines[tables.VALID_FILES].value == 1.0
    assert lines["plan on 2 CPU cores, cold, median"].value is None  # was not asked for
    assert lines["share of the ceiling"] == TABLE.table[0]
    assert found.sizes["local"] == 4


@pytest.mark.parametrize(
    ("given", "changed", "message"),
    [
        ({}, {}, "--add"),
        ({"local": 4, "conductor": "warm-start"}, {}, "table.json"),
        ({"local": 4}, {"right": {}}, "--local"),
        ({"local": 4}, {"sizes": "many"}, "sizes"),
    ],
)
def test_figures_that_do_not_fit_a_table_are_refused(
    elsewhere: Path, given: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    elsewhere.write_text(json.dumps(json.loads(elsewhere.read_bytes()) | changed))
    with pytest.raises(ConfigError, match=facts(message)):
        program.added(adding(elsewhere, **given))


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=facts("3.json")):
        tables.joined([tmp_path / "3.json"])


def test_only_the_drawn_metrics_of_a_run_are_stored() -> None:
    rows = [{"kind": "train", "step": 1, "valid": 0.123456, "loss": 3.0}, {"kind": "dev", "step": 1, "valid": 1.0}]
    kept = tables.thinned("".join(json.dumps(row) + "\n" for row in rows))
    assert kept == '{"kind": "train", "step": 1, "valid": 0.1235}\n'


def test_steps_that_a_killed_run_took_twice_are_drawn_once() -> None:
    """Killed after step 4, resumed from step 2, and at step 3 now."""
    rows = [{"kind": "train", "step": step, "valid": valid} for step, valid in enumerate((0.1, 0.2, 0.3, 0.4), 1)]
    rows.append({"kind": "train", "step": 3, "valid": 0.9})
    kept = tables.thinned("".join(json.dumps(row) + "\n" for row in rows))
    assert [(row["step"], row["valid"]) for row in map(json.loads, kept.splitlines())] == [(1, 0.1), (2, 0.2), (3, 0.9)]
