"""Control groups: the kernel's limits on the memory and processes of a whole sandbox.

A group is made only if this process is at the top of a hierarchy (in a container: the top of its own namespace). Deeper
groups belong to their maker, usually a service manager, and a second writer there would break the rule such programs
rely on. Without groups, per-process limits and fewer processes bound the same resources.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from pathlib import Path

import msgspec

from dirigent.sandbox.profile import Profile

_COUNTER = itertools.count()

_V1_FILES = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
_V2_FILES = {"memory": "memory.max", "pids": "pids.max"}


class Hierarchy(msgspec.Struct, frozen=True):
    """A folder in which this process may make groups."""

    folder: Path
    files: dict[str, str]
    """Controller -> the file that takes its limit."""


def hierarchies(
    own: str | None = None, mounts: str | None = None, *, writable: bool | None = None
) -> tuple[Hierarchy, ...]:
    """Returns the hierarchies for groups of memory and processes; empty if this process may use no such hierarchy."""
    own = Path("/proc/self/cgroup").read_text() if own is None else own
    mounts = Path("/proc/self/mountinfo").read_text() if mounts is None else mounts
    at_top = _controllers_at_top(own)
    found: dict[str, Hierarchy] = {}
    for folder, kind, options in _cgroup_mounts(mounts):
        files = _V1_FILES if kind == "cgroup" else _V2_FILES
        offered = options if kind == "cgroup" else _enabled(folder) if "" in at_top else frozenset()
        usable = {name for name in files if name in offered and (kind == "cgroup2" or name in at_top)}
        if usable - found.keys() and (os.access(folder, os.W_OK) if writable is None else writable):
            here = Hierarchy(folder, {name: files[name] for name in sorted(usable - found.keys())})
            found |= dict.fromkeys(here.files, here)
    return tuple({str(h.folder): h for h in found.values()}.values())


class Group:
    """The groups of one sandbox, one under each hierarchy. Without folders every method does nothing."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders

    def join(self, pid: int) -> None:
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    async def remove(self) -> None:
        """Removes the groups. The kernel keeps a group until its last process is reaped, a moment after its end."""
        for folder in self._folders:
            for _ in range(200):
                with contextlib.suppress(FileNotFoundError):
                    try:
                        folder.rmdir()
                    except OSError:
                        await asyncio.sleep(0.005)
                        continue
                break


def make_group(where: tuple[Hierarchy, ...], profile: Profile) -> Group:
    limits = {"memory": profile.memory_bytes, "pids": profile.processes + 4}  # 4 for bubblewrap and the setup
    folders = []
    for hierarchy in where:
        folder = hierarchy.folder / f"dirigent-{os.getpid()}-{next(_COUNTER)}"
        folder.mkdir()
        folders.append(folder)
        for controller, file in hierarchy.files.items():
            (folder / file).write_text(str(limits[controller]))
    return Group(tuple(folders))


def counts_memory(where: tuple[Hierarchy, ...]) -> bool:
    return any("memory" in hierarchy.files for hierarchy in where)


def _controllers_at_top(own: str) -> set[str]:
    """Reads /proc/self/cgroup: the controllers of hierarchies whose top is ours; "" is the unified hierarchy."""
    top: set[str] = set()
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        if path == "/":
            top |= set(controllers.split(","))
    return top


def _cgroup_mounts(mounts: str) -> list[tuple[Path, str, frozenset[str]]]:
    """Reads /proc/self/mountinfo: folder, kind and options of each mount (in version 1 the controllers)."""
    found = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            found.append((Path(before.split(" ")[4]), kind, frozenset(options.split(","))))
    return found


def _enabled(folder: Path) -> frozenset[str]:
    """Returns the usable controllers: version 2 passes on only those that the parent enabled for its children."""
    try:
        return frozenset((folder / "cgroup.subtree_control").read_text().split())
    except OSError:
        return frozenset()
