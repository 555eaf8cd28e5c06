"""Alone: run a program behind walls that it builds itself, if bubblewrap is missing.

The program runs as the same user, without capabilities, in a process of its own that can start no other. Landlock
leaves it Python, a few packages and one scratch folder; an allow list of system calls leaves it no socket, no signal to
others and no change of modes or owners; limits bound its time, memory and files. What it can still learn is the names
and sizes of files whose path it guesses, and that other processes exist. So grading, which must also keep a program
from its tests, still wants bubblewrap (`box.py`).

`confined=False` leaves the limits and nothing else. It is for users who say so in their configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from dirigent.sandbox.allow_list import allow_list_program
from dirigent.sandbox.attacks import Attack, attacks_alone
from dirigent.sandbox.furniture import frame, furnish, package_folders
from dirigent.sandbox.groups import Group
from dirigent.sandbox.inside import landlock
from dirigent.sandbox.launch import Child, Ran, SandboxError, finished
from dirigent.sandbox.profile import INSIDE, SYSTEM_TREE, Profile

WATCH_S = 0.1
"""Between two looks at the scratch folder. It is on the host's disk, and no limit of a process bounds its sum.

A program can write more than `scratch_bytes` between two looks. It gains nothing by that: the folder is looked at once
more when the program has ended, a program that wrote too much has no output, and the folder is deleted."""
MOST_FILES = 1000


@contextlib.asynccontextmanager
async def open_alone(
    *, confined: bool = True, packages: tuple[str, ...] = (), slots: int | None = None
) -> AsyncIterator[Alone]:
    """Opens the runner; raises `SandboxError` if the kernel cannot confine. It has not been attacked yet."""
    abi = landlock.usable_abi(landlock.OLDEST_ALONE_ABI) if confined else 0
    if confined and not abi:
        raise SandboxError(
            "this kernel cannot confine a program by itself: that takes Linux 6.2 or newer with landlock, on x86_64 or "
            "aarch64"
        )
    with tempfile.TemporaryDirectory(prefix="dirigent-programs-") as name:
        folder = Path(name)
        there = package_folders(packages)
        furnish(folder, call_filter=allow_list_program() if confined else b"")
        for package, place in there.items():
            (folder / "box" / "packages" / package).symlink_to(place)
        yield Alone(folder, abi=abi, readable=tuple(there.values()), slots=slots or os.cpu_count() or 1)


class Alone:
    """Runs a limited number of programs at once, each in a scratch folder of its own."""

    def __init__(self, folder: Path, *, abi: int, readable: tuple[Path, ...], slots: int) -> None:
        self.slots = slots
        self.landlock_abi = abi
        self.level = "landlock" if abi else "unconfined"
        self.folder = folder
        self._readable = readable
        self._free = asyncio.Semaphore(slots)

    @property
    def attacks(self) -> tuple[Attack, ...]:
        return attacks_alone()

    @property
    def stamp(self) -> str:
        """Returns one line that names the walls around every program."""
        if not self.landlock_abi:
            return "unconfined: limits of time and memory alone, by the user's word"
        return f"landlock ABI {self.landlock_abi}, seccomp (allow list), limits; no bubblewrap"

    async def run(self, source: str, *, stdin: bytes = b"", profile: Profile | None = None) -> Ran:
        """Runs a whole program: bytes in, bytes out."""
        profile = profile or Profile()
        async with self._free:
            scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="dirigent-scratch-"))
            try:
                return await self._run(source, stdin, profile, scratch)
            finally:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    async def _run(self, source: str, stdin: bytes, profile: Profile, scratch: Path) -> Ran:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self._command(profile, scratch),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            cwd=scratch,
            env={"HOME": str(scratch), "TMPDIR": str(scratch), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        )
        child = Child(process, Group(()))
        watch = asyncio.create_task(_watch(scratch, profile, process))
        try:
            ran = await finished(child, profile=profile, stdin=frame(source) + stdin)
        finally:
            watch.cancel()
            await asyncio.shield(child.end())
        if await asyncio.to_thread(_overfull, scratch, profile):
            return msgspec.structs.replace(ran, ended="flooded", code=-1, stdout=b"", stderr=b"")
        return ran

    def _command(self, profile: Profile, scratch: Path) -> list[str]:
        box = self.folder / "box"
        walls = ""
        if self.landlock_abi:
            readable = [*SYSTEM_TREE, str(Path(sys.base_prefix).resolve()), str(box), *map(str, self._readable)]
            walls = (
                f"from {INSIDE}.confine import confine; confine({self.landlock_abi}, "
                f"filter_path={str(self.folder / 'filter.bpf')!r}, readable={readable!r}, work={str(scratch)!r}, "
                f"parent={os.getpid()}); "
            )
        first = (
            f"import sys; sys.path += [{str(box)!r}, {str(box / 'packages')!r}]; "
            f"from {INSIDE}.limits import limit; limit({_limits(profile)!r}); {walls}"
            f"from {INSIDE}.program import main; main()"
        )
        return [str(Path(sys.executable).resolve()), "-I", "-S", "-B", "-c", first]


def _limits(profile: Profile) -> dict[str, int]:
    return {
        "CPU": profile.cpu_s + 1,
        "AS": profile.address_space_bytes,
        "FSIZE": profile.file_bytes,
        "NOFILE": profile.open_files,
        "CORE": 0,
        "MSGQUEUE": 0,
        "MEMLOCK": 0,
    }


async def _watch(scratch: Path, profile: Profile, process: asyncio.subprocess.Process) -> None:
    """Ends the program when its scratch folder holds too much."""
    while True:
        await asyncio.sleep(WATCH_S)
        if await asyncio.to_thread(_overfull, scratch, profile):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return


def _overfull(folder: Path, profile: Profile) -> bool:
    """Returns whether the files below a folder are too large together, or too many."""
    size = count = 0
    for root, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            with contextlib.suppress(OSError):
                size += (Path(root) / name).lstat().st_blocks * 512
        if size > profile.scratch_bytes or count > MOST_FILES:
            return True
    return False
