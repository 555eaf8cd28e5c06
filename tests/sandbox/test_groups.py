"""Groups are made if this process is at the top of its hierarchy, and not otherwise."""

from __future__ import annotations

from pathlib import Path

from dirigent.sandbox.groups import counts_memory, hierarchies, make_group
from dirigent.sandbox.profile import Profile

MOUNTS = """\
30 20 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 20 0:27 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
32 20 0:28 / /proc rw,relatime - proc proc rw
"""


def test_controllers_at_the_top_are_used() -> None:
    found = hierarchies("4:memory:/\n8:pids:/\n", MOUNTS, writable=True)
    assert [(str(h.folder), list(h.files)) for h in found] == [
        ("/sys/fs/cgroup/memory", ["memory"]),
        ("/sys/fs/cgroup/pids", ["pids"]),
    ]
    assert counts_memory(found)


def test_a_group_of_another_program_is_left_alone() -> None:
    found = hierarchies("4:memory:/system.slice/other.service\n8:pids:/\n", MOUNTS, writable=True)
    assert [list(h.files) for h in found] == [["pids"]]
    assert not counts_memory(found)


def test_a_hierarchy_that_cannot_be_written_is_not_used() -> None:
    assert hierarchies("4:memory:/\n8:pids:/\n", MOUNTS, writable=False) == ()


def test_the_unified_hierarchy_offers_controllers_enabled_for_children(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    mounts = f"33 20 0:29 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    (found,) = hierarchies("0::/\n", mounts, writable=True)
    assert found.files == {"memory": "memory.max", "pids": "pids.max"}
    assert hierarchies("0::/user.slice\n", mounts, writable=True) == ()


def test_a_group_carries_the_limits_of_the_profile(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("memory pids")
    where = hierarchies("0::/\n", f"33 20 0:29 / {tmp_path} rw - cgroup2 cgroup2 rw\n", writable=True)
    make_group(where, Profile(memory_bytes=1000, processes=5)).join(42)
    (folder,) = tmp_path.glob("dirigent-*")
    files = {path.name: path.read_text() for path in folder.iterdir()}
    assert files == {"memory.max": "1000", "pids.max": "9", "cgroup.procs": "42"}


async def test_without_any_hierarchy_a_group_does_nothing() -> None:
    group = make_group((), Profile())
    group.join(42)
    await group.remove()
