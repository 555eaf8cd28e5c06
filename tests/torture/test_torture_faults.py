"""A handful of cases of each fault row. The counts: `python -m tests.torture`."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.stub_provider import FAULTS
from tests.torture.journals import Sent
from tests.torture.rows_faults import BATCH, ROWS, Case, _cases, _wrong, one_dead
from tests.torture.upstream import answer_of, marker_of

SMOKE = {"F1": 42, "F3": 12, "F9": 8, "F12": 1}


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in SMOKE], ids=lambda row: row.name)
async def test_a_few_cases_of_each_fault_row_end_as_they_should(row):
    result = await row.run(SMOKE[row.name], 7)
    assert result.faults == ()
    assert result.done == result.wanted > 0


async def test_with_one_worker_of_three_dead_everybody_is_answered():
    result = await one_dead(30, 7, recovery=False)
    assert result.faults == ()
    assert result.done == 30


def test_the_cases_of_f1_hold_every_mode_as_often_in_every_shape():
    cases = _cases(18 * len(FAULTS), random.Random(1))
    assert set(Counter(case.mode.removesuffix("-retry-after") for case in cases).values()) == {18}
    shapes = {(case.shape, case.stream, case.wire) for case in cases if case.mode == "500"}
    assert len(shapes) == 3 * 2 * 3
    assert len({case.number for case in cases}) == len(cases)
    assert BATCH % len(FAULTS) == 0


@pytest.mark.parametrize(
    ("sent", "shape"),
    [
        (Sent(marker_of(1), 0, 1, "cut", status=200, text="torture-0000001: w31"), "passing"),
        (Sent(marker_of(1), 0, 1, "answer", status=200, text="torture-0000001: w31"), "passing"),
        (Sent(marker_of(1), 0, 1, "lost", code="TimeoutError"), "passing"),
        (Sent(marker_of(1), 0, 1, "error", status=500, code="bug"), "passing"),
        (Sent(marker_of(1), 0, 1, "error", status=503, code="worker_failed"), "passing"),  # no Retry-After
        (Sent(marker_of(1), 0, 1, "answer", status=200, text=answer_of(marker_of(1))), "alone"),
    ],
    ids=["half a stream", "half an answer", "no reply", "a bug", "nothing about when to come again", "by nobody"],
)
def test_f1_notices_forbidden_outcomes(sent, shape):
    assert _wrong(Case(1, "500", shape, stream=True, wire="openai"), sent)


@pytest.mark.parametrize(
    "sent",
    [
        Sent(marker_of(1), 0, 1, "answer", status=200, text=answer_of(marker_of(1))),
        Sent(marker_of(1), 0, 1, "error", status=503, code="worker_failed", retry_after="1"),
        Sent(marker_of(1), 0, 1, "error", status=200, code="answer_cut", text="torture"),
    ],
    ids=["the answer", "a refusal", "an error in the stream"],
)
def test_f1_is_content_with_an_answer_or_a_documented_error(sent):
    assert _wrong(Case(1, "500", "passing", stream=True, wire="openai"), sent) == ""
