"""A table fits the terminal: the least important columns are left out first, and a line names them."""

from __future__ import annotations

import pytest

from dirigent.evals.tables import in_blocks, laid_out
from tests.facts import Saying

HEADER = ("planner", "accuracy", "calls", "p95")
ROWS = [("best", "50.0", "1.00", "3 ms"), ("vote", "55.0", "5.00", "40 ms")]
EXPENDABLE = ("calls", "p95")


def lines_of(width: int, **notes: str) -> list[str]:
    return laid_out(HEADER, ROWS, width=width, expendable=EXPENDABLE, notes=notes)


def test_where_there_is_room_every_column_is_shown_and_figures_stand_under_one_another() -> None:
    assert lines_of(40) == [
        "planner  accuracy  calls    p95",
        "best         50.0   1.00   3 ms",
        "vote         55.0   5.00  40 ms",
    ]


@pytest.mark.parametrize(("width", "gone"), [(31, []), (30, ["calls"]), (24, ["calls"]), (23, ["calls", "p95"])])
def test_a_narrow_terminal_leaves_out_the_least_important_columns_and_names_them(width: int, gone: list[str]) -> None:
    head, best, vote, *said = lines_of(width)
    assert head.split() == [title for title in HEADER if title not in gone]
    assert max(map(len, (head, best, vote))) <= width
    assert said == ([Saying(f"{width} {' '.join(gone)}")] if gone else [])


def test_names_and_necessary_columns_stay_at_any_width() -> None:
    assert lines_of(5)[0] == "planner  accuracy"


def test_a_note_is_beside_the_name_if_it_fits_and_below_otherwise() -> None:
    head, best, vote, below = lines_of(36, best="a", vote="five samples of a")
    assert head == "planner    accuracy  calls    p95"
    assert best.startswith("best  (a)      50.0")
    assert vote.startswith("vote           55.0")
    assert below == "vote: five samples of a"


def test_a_note_never_pushes_a_column_out() -> None:
    assert lines_of(31, best="as wide as the table is, or wider")[0].split() == list(HEADER)


def test_where_every_column_counts_they_come_in_blocks_that_fit() -> None:
    assert in_blocks(HEADER, ROWS, width=31) == lines_of(31)
    assert in_blocks(HEADER, ROWS, width=30) == [
        "planner  accuracy  calls",
        "best         50.0   1.00",
        "vote         55.0   5.00",
        "planner    p95",
        "best      3 ms",
        "vote     40 ms",
    ]


@pytest.mark.parametrize("width", [17, 5])
def test_a_block_has_one_column_at_least_however_narrow_it_is(width: int) -> None:
    assert in_blocks(HEADER, ROWS, width=width)[::3] == ["planner  accuracy", "planner  calls", "planner    p95"]
