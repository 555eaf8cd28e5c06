"""`dirigent learn` and `dirigent prove`: from a table to a policy that is on only if it pays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dirigent.learn import policy_fit
from dirigent.learn.policy import Policy
from dirigent.learn.table import Table, TableWorker
from tests.cli.conftest import Run
from tests.facts import says
from tests.learn.made_tables import QUICK, two_kinds


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(*, seed: int) -> policy_fit.PolicySettings:
        return msgspec.structs.replace(QUICK, seed=seed)

    monkeypatch.setattr(policy_fit, "PolicySettings", settings)


@pytest.fixture
def learned(run: Run, own_place: Path) -> Path:
    two_kinds(300).save(own_place / "table")
    done = run("learn", str(own_place / "table"), "--out", str(own_place / "policy"))
    assert done.code == 0, done.err
    assert says(done.out, "switched on")
    assert "●" in done.out
    return own_place / "policy"


def test_a_policy_is_learned_switched_rolled_back_and_proved(run: Run, learned: Path, own_place: Path) -> None:
    assert (learned / "front.svg").read_text().startswith("<svg")
    off = run("learn", "switch", "off", str(learned), "--json").object
    assert (off["on"], off["version"]) == (False, 2)
    assert run("learn", "rollback", str(learned), "--json").object["active"] == "same"
    two_kinds(60, seed=7).save(own_place / "new")
    proof = run("prove", str(learned), "--on", str(own_place / "new"), "--json").object
    assert proof["best_single"]["name"] == "dear"
    rows = [row for row in proof["front"] if row["planner"] == "learned"]
    assert len(rows) == len(QUICK.prices)
    assert set(rows[0]) == {"planner", "price", "accuracy", "cost", "calls", "diff", "low", "high"}
    assert all(0 <= row["accuracy"] <= 1 and row["low"] <= row["diff"] <= row["high"] for row in rows)
    assert proof["oracle"]["accuracy"] >= max(row["accuracy"] for row in rows) - 1e-9
    page = own_place / "proof.html"
    shown = run("prove", str(learned), "--on", str(own_place / "new"), "--limit", "40", "--page", str(page))
    assert says(shown.out, "40 questions")
    assert "<svg" in page.read_text()


def test_questions_that_were_learned_from_prove_nothing(run: Run, learned: Path, own_place: Path) -> None:
    refused = run("prove", str(learned), "--on", str(own_place / "table"))
    assert refused.code == 2
    assert says(refused.err, "learned from every question")


def test_a_worker_that_misses_half_its_rows_is_named_and_nothing_is_switched_on_by_it(
    run: Run, own_place: Path
) -> None:
    table = two_kinds(300)
    half = {question.id for question in table.questions[:150]}
    answers = tuple(a for a in table.answers if a.worker != "dear" or a.question in half)
    msgspec.structs.replace(table, answers=answers).save(own_place / "table")
    told = run("learn", str(own_place / "table"), "--out", str(own_place / "policy"))
    assert told.code == 0, told.err
    assert says(told.err, "dear answered 150 of 300 takes no part calibrate")
    assert Policy.load(own_place / "policy").workers == ("cheap",)


def test_learning_again_keeps_the_version_before(run: Run, learned: Path, own_place: Path) -> None:
    again = run("learn", str(own_place / "table"), "--out", str(learned), "--at", "best", "--json").object
    assert again["version"] == 2
    assert run("learn", "rollback", str(learned), "--json").object["version"] == 1


@pytest.mark.parametrize("count", [10, 40])
def test_with_too_little_evidence_the_number_of_labels_needed_is_named(run: Run, own_place: Path, count: int) -> None:
    two_kinds(count).save(own_place / "table")
    output = run("learn", str(own_place / "table"), "--out", str(own_place / "policy"))
    assert output.code == 0
    assert says(output.out, "not switched on")
    assert says(output.out, "more graded questions")
    assert not Policy.load(own_place / "policy").on
    refused = run("learn", "switch", "same", str(own_place / "policy"))
    assert refused.code == 2


def other_pool(table: Table) -> Table:
    answers = tuple(msgspec.structs.replace(a, worker="x" if a.worker == "cheap" else "y") for a in table.answers)
    return msgspec.structs.replace(table, workers=(TableWorker("x"), TableWorker("y")), answers=answers)


def all_right(table: Table) -> Table:
    return msgspec.structs.replace(table, answers=tuple(msgspec.structs.replace(a, right=1.0) for a in table.answers))


def all_wrong(table: Table) -> Table:
    return msgspec.structs.replace(table, answers=tuple(msgspec.structs.replace(a, right=0.0) for a in table.answers))


def one_worker(table: Table) -> Table:
    answers = tuple(a for a in table.answers if a.worker == "dear")
    return Table((TableWorker("dear"),), table.questions, answers, table.unit)


@pytest.mark.parametrize(
    ("spoil", "fact"),
    [
        (all_right, "every answer is right"),
        (all_wrong, "every answer is wrong"),
        (one_worker, "nothing to choose"),
    ],
    ids=["all right", "all wrong", "one worker"],
)
def test_a_table_that_teaches_nothing_is_refused_in_one_line(
    run: Run, own_place: Path, spoil: Callable[[Table], Table], fact: str
) -> None:
    spoil(two_kinds(40)).save(own_place / "table")
    refused = run("learn", str(own_place / "table"), "--out", str(own_place / "policy"))
    assert refused.code == 2
    assert says(refused.err, fact)
    assert not (own_place / "policy").exists()


@pytest.mark.parametrize(
    ("made", "fact"),
    [
        (lambda: other_pool(two_kinds(40, seed=3)), "another pool"),
        (lambda: two_kinds(40, seed=3, fingerprint="f9"), "cheap"),
    ],
)
def test_a_table_of_another_pool_proves_nothing(
    run: Run, learned: Path, own_place: Path, made: Callable[[], Any], fact: str
) -> None:
    made().save(own_place / "other")
    refused = run("prove", str(learned), "--on", str(own_place / "other"))
    assert refused.code == 2
    assert says(refused.err, fact)


def test_an_operating_point_that_does_not_exist_is_named(run: Run, learned: Path) -> None:
    refused = run("learn", "switch", "fastest", str(learned))
    assert refused.code == 2
    assert says(refused.err, "'fastest'")


def test_the_error_for_a_folder_without_policy_or_table_names_the_command(run: Run, own_place: Path) -> None:
    two_kinds(4).save(own_place / "table")
    assert says(run("prove", str(own_place), "--on", str(own_place / "table")).err, "dirigent learn")
    assert says(run("learn", str(own_place), "--out", str(own_place / "p")).err, "dirigent calibrate")
    assert says(run("learn", "rollback", str(own_place)).err, "no earlier version")
