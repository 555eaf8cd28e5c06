"""Several processes of one run end together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dirigent.train.grpo import agreed

ONE_OF_TWO = """
import json, sys
from torch import distributed
from dirigent.train.grpo import agreed

rank, meeting, *reasons = sys.argv[1:]
distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
print(json.dumps([agreed(reason) for reason in reasons]))
distributed.destroy_process_group()
"""


def test_a_process_alone_has_its_own_reason() -> None:
    assert [agreed("out of time"), agreed("")] == ["out of time", ""]


def test_two_processes_end_for_the_reason_of_either(tmp_path: Path) -> None:
    """Step by step: neither has one, the second has one, both have one."""
    said = (["", "", "collapsed"], ["", "out of time", "interrupted"])
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_TWO, str(rank), str(tmp_path / "meeting"), *reasons],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, reasons in enumerate(said)
    ]
    heard = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert heard == [["", "out of time", "collapsed"]] * 2
