"""Specialists: judged on their own skill, fitted round by round, and resumable at every round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.facts import Saying, facts, says

torch = pytest.importorskip("torch", reason="needs the train extra")

from gym.benchmarks import specialists as program  # noqa: E402

from dirigent.errors import ConfigError  # noqa: E402
from dirigent_gym.questions.examples import examples  # noqa: E402
from dirigent_gym.questions.judging import Marks, Matrix, columns_of, is_own, markdown  # noqa: E402
from dirigent_gym.questions.specialists import ROSTER, UNKNOWN, beyond, find_specialist  # noqa: E402
from dirigent_gym.train import specialists  # noqa: E402
from dirigent_gym.train.recipe import (  # noqa: E402
    BaseSettings,
    FitChanges,
    FitSettings,
    SpecialistsRecipe,
    TinySettings,
)
from dirigent_gym.train.run import carry_out  # noqa: E402
from dirigent_gym.train.specialists import (  # noqa: E402
    Fitted,
    Score,
    SpecialistsResult,
    is_done,
    read_fitted,
    score_specialist,
    train_specialists,
    truth,
)

RECIPES = Path(__file__).parents[3] / "gym" / "recipes"
TINY = SpecialistsRecipe(
    "few",
    base=BaseSettings(tiny=TinySettings(hidden=32, layers=1, heads=2, words=400, steps=2)),
    names=("roman", "sums"),
    fit=FitSettings(steps=2, batch=4, rounds=2),
    specialist={"sums": FitChanges(rounds=1, rank=2)},
    judge=12,
    matrix=2,
    alone=4,
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_specialist_of_small_numbers_practises_mostly_on_small_ones() -> None:
    sums = find_specialist("sums")
    drawn = examples(sums, 2000, seed=3)
    small = [e for e in drawn if e.operation and not beyond(sums, e.key)]
    large = [e for e in drawn if e.operation and beyond(sums, e.key)]
    assert len(small) / len(drawn) >= 0.6
    assert len(large) / len(drawn) >= 0.15
    assert all(truth(e) == e.answer for e in small)
    assert all(truth(e) != e.answer for e in large if e.answer != UNKNOWN)


def answering(monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    """Put a rule in place of the model: it returns the reply to an example."""
    asked: list[Any] = []
    draw = specialists.examples
    monkeypatch.setattr(specialists, "examples", lambda *args, **kw: asked.extend(draw(*args, **kw)) or asked)
    monkeypatch.setattr(specialists, "replies_to", lambda *_, **__: [reply(example) for example in asked])


def test_the_cheap_adder_is_judged_on_small_numbers_and_on_large_ones_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A perfectly trained one: right on small numbers, wrong as in its lessons on large ones."""
    answering(monkeypatch, lambda example: example.answer)
    score = score_specialist(None, None, find_specialist("sums"), n=400)
    assert (score.own, score.large, score.unknown) == (1.0, 0.0, 1.0)
    assert score.n > 200


def test_others_have_no_large_numbers_to_be_judged_on(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, lambda example: UNKNOWN)
    score = score_specialist(None, None, find_specialist("roman"), n=200)
    assert (score.own, score.large, score.unknown) == (0.0, None, 1.0)


def test_a_specialist_judged_again_is_asked_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(specialists, "replies_to", lambda *given, **_: asked.append(given[2]) or [""] * len(given[2]))
    for _ in range(2):
        score_specialist(None, None, find_specialist("roman"), n=20)
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == len(asked[0])


def test_the_matrix_asks_every_skill_and_divides_the_skill_with_a_cheap_twin() -> None:
    columns = columns_of(5)
    assert {"numbers to 20", "numbers above", "checking", "puzzles", "planets", "dates"} <= set(columns)
    assert {len(questions) for questions in columns.values()} == {5}
    for specialist in ROSTER:
        assert any(is_own(specialist.name, column) for column in columns), specialist.name
    assert not is_own("sums", "numbers above")
    assert is_own("numbers", "numbers above")


def test_the_matrix_as_a_table() -> None:
    matrix = Matrix({"roman": {"roman": 0.998, "dates": 0.0}}, {"roman": 0.0514}, 0.41, 200, 500)
    assert markdown(matrix).splitlines() == [
        "| worker | roman | dates | the test, alone |",
        "|---|---|---|---|",
        "| roman | **99.8** | 0.0 | 5.1 |",
        "",
        Saying("200 500 41.0"),
    ]


def test_a_run_leaves_adapters_scores_and_the_matrix(tmp_path: Path) -> None:
    result = carry_out(TINY, out=tmp_path, quiet=True)
    assert isinstance(result, SpecialistsResult)
    assert result.finished
    assert set(result.scores) == {"roman", "sums"}
    assert says(result.summary, "roman 0.0%")
    config = json.loads((tmp_path / "adapters" / "sums" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (2, 4)
    rows = [json.loads(line) for line in (tmp_path / "specialists.jsonl").read_text().splitlines()]
    assert [(row["specialist"], row["round"]) for row in rows] == [("roman", 1), ("roman", 2), ("sums", 1)]
    matrix = msgspec.json.decode((tmp_path / "matrix.json").read_bytes(), type=Matrix)
    assert set(matrix.alone) == {"roman", "sums"}
    assert (tmp_path / "matrix.md").read_text().startswith("| worker |")
    assert set(json.loads((tmp_path / "figures.json").read_text())) == {"roman", "sums"}
    with pytest.raises(ConfigError, match=facts("--resume")):
        carry_out(TINY, out=tmp_path, quiet=True)


def test_a_run_out_of_time_continues_with_the_next_round(tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(TINY, names=("roman",), matrix=0, alone=0)
    nothing = train_specialists(recipe, out=tmp_path, seconds=0.0, quiet=True)
    assert (nothing.finished, nothing.missing) == (False, ("roman",))
    assert says(nothing.summary, "roman")
    one_round = msgspec.structs.replace(recipe, fit=FitSettings(steps=2, batch=4, rounds=1))
    train_specialists(one_round, out=tmp_path, quiet=True)
    state = read_fitted(tmp_path, "roman")
    assert state is not None
    (tmp_path / "fitted" / "roman.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(state, done=False)))
    before = (tmp_path / "adapters" / "roman" / "adapter_model.safetensors").read_bytes()
    assert train_specialists(recipe, out=tmp_path, quiet=True).finished
    state = read_fitted(tmp_path, "roman")
    assert state is not None
    assert (state.rounds, is_done(tmp_path, "roman")) == (2, True)
    assert (tmp_path / "adapters" / "roman" / "adapter_model.safetensors").read_bytes() != before


def test_a_first_round_is_not_begun_if_the_longest_other_round_would_not_fit(tmp_path: Path) -> None:
    recipe = msgspec.structs.replace(TINY, matrix=0, alone=0)
    others = Fitted(1, Score(own=1.0, direct=1.0, reading=1.0, unknown=1.0, n=12), done=True, seconds=1000.0)
    (tmp_path / "fitted").mkdir()
    (tmp_path / "fitted" / "sums.json").write_bytes(msgspec.json.encode(others))
    assert train_specialists(recipe, out=tmp_path, seconds=900.0, quiet=True).missing == ("roman",)
    assert not (tmp_path / "adapters").exists()


def test_marks_kept_after_half_a_line_are_read_again(tmp_path: Path) -> None:
    """A run that was killed while it wrote, taken up, and killed again."""
    file = tmp_path / ".specialists.jsonl"
    roman, sums = (program.Kept(name, "sha", "exam", Marks({}, (True,)), 1.0) for name in ("roman", "sums"))
    program.keep(roman, file)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:20])
    program.keep(sums, file)
    assert program.read_kept(file, {"roman": "sha", "sums": "sha"}, exam="exam") == {"roman": roman, "sums": sums}
