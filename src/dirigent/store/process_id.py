"""The name of a process, by which other processes can check later whether it still lives.

Numbers of processes are used again, so a name has the start time of the process; and they mean nothing in another
container or on another machine, so it has the place as well. Nothing is known about a process elsewhere.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from pathlib import Path

NOBODY = ""
"""The name of no process: the work was handed over or left."""


def own_name() -> str:
    """`PLACE/PID/START` of this process."""
    return _name(os.getpid())


def is_dead(name: str) -> bool:
    """Returns whether a process of this place is gone. False if it lives or if that cannot be known from here."""
    place, _, rest = name.partition("/")
    pid, _, started = rest.partition("/")
    if place != _place() or not pid.isdecimal():
        return False
    return _started(int(pid)) != started


@functools.cache
def _name(pid: int) -> str:  # by its number, since a forked child inherits the cache
    return f"{_place()}/{pid}/{_started(pid)}"


@functools.cache
def _place() -> str:
    """A machine since it was last started, and the numbering of processes within it."""
    parts = [platform.node()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        pass  # not Linux: one numbering for the whole machine
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _started(pid: int) -> str | None:
    """Returns the start of a process in the kernel's ticks; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # a zombie has ended; field 22 of proc(5), less the first two
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "0"
