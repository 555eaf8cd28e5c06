"""The time that a busy machine takes from a process, so that the process is not blamed for it.

Linux counts for every thread how long it could have run and had no processor. What a promise in seconds is judged
by is the time on the clock less that: on a quiet machine the two are the same. Where the kernel does not count,
nothing is taken off, and the clock alone is judged.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def waited_s(pid: int) -> float:
    """Seconds that the threads of a process have waited for a processor since they began, all together."""
    return sum(_thread_waited_ns(task) for task in _tasks(pid)) / 1e9


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []  # another system, or the process has ended


def _thread_waited_ns(task: Path) -> int:
    """The second of three numbers: on a processor, waiting for one, turns."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((task / "schedstat").read_bytes().split()[1])
    return 0
