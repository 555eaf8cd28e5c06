"""Cards have measured figures, and planners read them as long as the worker has not changed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dirigent.config.file import parse_config
from dirigent.config.runtime import open_runtime
from dirigent.errors import ConfigError
from dirigent.learn.cards import FILE, cards_of, read_cards, write_cards
from dirigent.learn.table import Answer, Question, Table, TableWorker
from tests.calibration.conftest import adder, calibrated, sums
from tests.facts import says

POOL = """\
[[worker]]
name = "a"
kind = "scripted"
replies = ["The answer is 2."]
about = "sums"

[[worker]]
name = "b"
kind = "scripted"
replies = ["The answer is 3."]

[cards]
table = "t"
"""


def table(right: dict[str, list[float | None]], **fields: object) -> Table:
    """A table of workers with these grades, the even questions of one kind and the odd ones of another."""
    count = max(map(len, right.values()))
    return Table(
        workers=tuple(TableWorker(name, fingerprint=f"{name}0") for name in right),
        questions=tuple(Question(f"q{i}", "?", kind="dates" if i % 2 == 0 else "units") for i in range(count)),
        answers=tuple(
            Answer(f"q{i}", name, same=0, right=value, cost=0.002, seconds=1.5, output_tokens=30, **fields)  # type: ignore[arg-type]
            for name, grades in right.items()
            for i, value in enumerate(grades)
        ),
    )


def test_a_card_has_the_share_of_right_answers_with_its_interval_price_and_speed() -> None:
    (card,) = cards_of(table({"a": [1.0, 0.0] * 20}))
    assert card.right is not None
    assert (card.right.right, card.right.questions) == (0.5, 40)
    assert card.right.low == pytest.approx(0.352, abs=0.001)
    assert [(kind.kind, kind.right, kind.questions) for kind in card.kinds] == [("dates", 1.0, 20), ("units", 0.0, 20)]
    assert (card.cost, card.seconds, card.tokens_per_s) == (pytest.approx(0.002), 1.5, pytest.approx(20))
    assert says(card.about, "measured 50% right 40 questions dates (100%) units (0%) $2 per 1,000 1.5 s")


def test_a_kind_is_named_only_where_its_interval_shows_it() -> None:
    (card,) = cards_of(table({"a": [1.0] * 19 + [0.0]}))
    assert "strong" not in card.about
    assert "weak" not in card.about


def test_samples_of_one_question_count_as_one() -> None:
    found = table({"a": [1.0] * 10})
    twice = tuple(msgspec.structs.replace(answer, k=1) for answer in found.answers)
    (once,), (both,) = (
        cards_of(one) for one in (found, msgspec.structs.replace(found, answers=(*found.answers, *twice)))
    )
    assert once.right == both.right


def test_labels_go_before_estimates_and_estimates_say_so() -> None:
    (card,) = cards_of(table({"a": [1.0] * 12}, estimated=True))
    assert card.estimated
    assert card.about.startswith("estimated: 100%")
    labelled = table({"a": [0.0] * 12})
    mixed = table({"a": [1.0] * 12}, estimated=True, k=1)
    (card,) = cards_of(msgspec.structs.replace(labelled, answers=(*labelled.answers, *mixed.answers)))
    assert not card.estimated
    assert card.right is not None
    assert card.right.right == 0.0


def test_a_worker_of_whom_nothing_is_known_has_a_price_and_a_speed_alone() -> None:
    (card,) = cards_of(table({"a": [None] * 3}))
    assert card.right is None
    assert card.about == "$2 per 1,000 answers; 1.5 s an answer"


def test_cards_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    cards = cards_of(table({"a": [1.0] * 12, "b": [0.0] * 12}))
    write_cards(tmp_path, cards)
    assert tuple(read_cards(tmp_path).values()) == cards


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "dirigent calibrate"), ("{}", "no cards"), ('{"format": 9, "cards": []}', "format 9")],
)
def test_cards_that_cannot_be_read_are_an_error_with_its_fix(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / FILE).write_text(content)
    with pytest.raises(ConfigError) as error:
        read_cards(tmp_path)
    assert says(str(error.value), words)


async def test_planners_read_the_figures_of_unchanged_workers(tmp_path: Path) -> None:
    file = tmp_path / "dirigent.toml"
    async with open_runtime(parse_config(POOL, path=file), cards={}) as runtime:
        done = await calibrated(sums(12), list(runtime.pool.values()))
        assert runtime.pool["a"].info.about == "sums"
    done.table.save(tmp_path / "t")
    write_cards(tmp_path / "t", cards_of(done.table))
    async with open_runtime(parse_config(POOL, path=file)) as runtime:
        assert says(runtime.pool["a"].info.about, "sums measured 8% right 12 questions")
        assert runtime.pool["b"].info.about.startswith("measured: 0%")
        assert set(runtime.cards) == {"a", "b"}
    changed = POOL.replace("The answer is 3.", "The answer is 5.")
    async with open_runtime(parse_config(changed, path=file)) as runtime:
        assert set(runtime.cards) == {"a"}
        assert runtime.pool["b"].info.about == ""


async def test_the_folder_of_a_policy_may_hold_the_cards(tmp_path: Path) -> None:
    write_cards(tmp_path, cards_of((await calibrated(sums(12), [adder("x")])).table))
    text = POOL.partition("[cards]")[0] + '[profile.mini]\nplanner = "learned"\npolicy = "."\n'
    async with open_runtime(parse_config(text, path=tmp_path / "dirigent.toml")) as runtime:
        assert runtime.cards == {}  # of another pool


async def test_cards_that_the_file_names_and_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dirigent calibrate"):
        async with open_runtime(parse_config(POOL, path=tmp_path / "dirigent.toml")):
            pass
