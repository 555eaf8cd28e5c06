"""The program that grades known programs: it fails on a wrong verdict, and on a rate that is too low."""

from __future__ import annotations

import sys

import pytest
from benchmarks import grader as program


@pytest.mark.parametrize(
    ("whole", "programs_per_s", "options", "code"),
    [
        (True, 17.7, [], 0),
        (True, 12.0, [], 0),
        (True, 11.9, [], 1),
        (True, 11.9, ["--least", "0"], 0),
        (True, 17.7, ["--least", "20"], 1),
        (False, 17.7, [], 1),
        (False, 17.7, ["--least", "0"], 1),
    ],
)
def test_its_exit_code_says_whether_verdicts_and_rate_are_as_they_must_be(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    whole: bool,
    programs_per_s: float,
    options: list[str],
    code: int,
) -> None:
    async def measured(*given: object, **settings: object) -> dict[str, object]:
        return {"whole": whole, "programs_per_s": programs_per_s}

    monkeypatch.setattr(program, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["grader.py", "--data", "nowhere", *options])
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == code
    assert ("too slow" in capsys.readouterr().err) is (whole and code == 1)
