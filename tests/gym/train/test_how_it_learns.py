"""The page on learning agrees with the code: its example runs, its links work, its figures are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.facts import says

from dirigent_gym.questions.handwritten import handwritten
from dirigent_gym.questions.reasoning import FAMILIES, read_sample
from dirigent_gym.train.claims import Claim, as_table
from dirigent_gym.train.dataset import DEFAULT_ROWS
from dirigent_gym.train.folder import MAY_CHANGE
from dirigent_gym.train.metrics import DEFAULT_WATCH, Collapse
from dirigent_gym.train.reward import DEFAULT_LAMBDA, DEFAULT_REWARDS

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "how-it-learns.md").read_text(encoding="utf-8")
GYM = (DOCS / "gym.md").read_text(encoding="utf-8")


def test_the_hand_worked_numbers_are_the_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL).groups()  # type: ignore[union-attr]
    exec(code, {})
    assert capsys.readouterr().out == shown


def test_the_page_states_the_actual_settings() -> None:
    assert (DEFAULT_REWARDS.invalid, DEFAULT_REWARDS.wrong, DEFAULT_REWARDS.right) == (0.0, 0.1, 1.0)
    assert says(PAGE, f"{DEFAULT_LAMBDA.from_share:.0%}")
    assert says(PAGE, f"{DEFAULT_LAMBDA.most:g}")
    assert says(PAGE, f"{DEFAULT_ROWS.next_stage_at:.0%}")
    assert f"{DEFAULT_ROWS.small_pool[0]} to {DEFAULT_ROWS.small_pool[1]} " in " ".join(PAGE.split())
    assert says(PAGE, f"{DEFAULT_ROWS.large_pool[1]}")
    assert DEFAULT_WATCH.patience == 3


def test_the_page_names_the_settings_that_a_resumed_run_takes_other_values_of() -> None:
    named = [
        sorted(re.findall(r"`(\w+\.[\w*]+)`", "".join(line for line in section.splitlines() if line.startswith("|"))))
        for section in PAGE.split("\n## ")
    ]
    assert sorted(MAY_CHANGE) in named


def test_the_message_of_a_collapse_leads_to_its_section() -> None:
    watch = Collapse()
    said = [watch.update({"accuracy": 0.1, "worker_entropy": 0.0}) for _ in range(DEFAULT_WATCH.patience)][-1]
    assert said is not None
    page, _, anchor = said.rpartition(" ")[2].partition("#")
    assert (DOCS.parent / page).read_text(encoding="utf-8").casefold().count(f"\n## {anchor}\n") == 1


def test_links_between_the_two_pages_lead_to_headings() -> None:
    for anchor in re.findall(r"gym\.md#([\w-]+)", PAGE):
        assert f"\n## {anchor.replace('-', ' ')}\n" in GYM.casefold()


def test_places_for_results_are_marked_and_take_a_table() -> None:
    for name in ("claims", "curves", "shortfalls"):
        assert len(re.findall(rf"<!-- {name} -->\n.*?<!-- /{name} -->", PAGE, re.DOTALL)) == 1
    assert as_table([Claim("x")]).startswith("| | figure |")


def test_the_gyms_page_counts_the_questions_from_elsewhere() -> None:
    tasks = handwritten()
    depths = [sum(task.depth == depth for task in tasks) for depth in (1, 2, 3, 4)]
    assert says(GYM, f"{len(tasks)}")
    assert f"{depths[0]}, {depths[1]}, {depths[2]} and {depths[3]} " in GYM
    shapes = {shape: sum(task.tags["shape"] == shape for task in tasks) for shape in ("fan", "check")}
    assert says(GYM, f"{shapes['fan']} {shapes['check']}")
    sample, entries = read_sample()
    assert says(GYM, f"{len(entries)} {sample.version}")
    assert all(f"`{family}`" in GYM for family in FAMILIES)
