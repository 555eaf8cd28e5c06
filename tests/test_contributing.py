"""The diffs of CONTRIBUTING.md fit the files that they change."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIFFS = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
PARTS = [part for diff in DIFFS for part in re.split(r"(?m)^(?=--- )", diff) if part]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: re.search(r"\+\+\+ b/(\S+)", part)[1])  # type: ignore[index]
def test_a_diff_applies(part: str) -> None:
    """The lines it keeps or takes away stand together in the file, in order."""
    header = re.match(r"--- a/(\S+)\n\+\+\+ b/\1\n", part)
    assert header is not None
    text = (ROOT / header[1]).read_text(encoding="utf-8")
    for hunk in part[header.end() :].split("@@\n")[1:]:
        before = "".join(line[1:] + "\n" for line in hunk.splitlines() if not line.startswith("+"))
        place = text.find(before)
        assert place >= 0, before
        text = text[place + len(before) :]


def test_every_way_in_is_shown() -> None:
    shown = {re.search(r"\+\+\+ b/(\S+)", part)[1] for part in PARTS}  # type: ignore[index]
    assert {name.rpartition("/")[2] for name in shown} >= {
        "table.py", "worker_config.py", "benchmarks.py", "messages.py", "app.py", "reward.py",
    }  # fmt: skip
