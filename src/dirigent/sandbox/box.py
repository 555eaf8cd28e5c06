"""Sandbox: run programs that models wrote, or refuse if the machine cannot do so safely.

    async with open_sandbox() as sandbox:
        ran = await sandbox.run("print(input()[::-1])", stdin=b"abc")
        verdict = await sandbox.judge(source, tests="assert add(1, 2) == 3", names=("add",))

`open_sandbox` runs every attack of `attacks.py`. It raises a `SandboxError` if an attack gets through, or if bubblewrap
or user namespaces are missing. No code path runs a program unprotected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from dirigent.errors import ConfigError
from dirigent.sandbox.attacks import Attack, attacks_on
from dirigent.sandbox.furniture import frame, furnish, open_to_all, package_folders, readable_inside
from dirigent.sandbox.groups import hierarchies
from dirigent.sandbox.inside import landlock, literals
from dirigent.sandbox.launch import Child, Ran, SandboxError, Walls, finished, launched, stamp
from dirigent.sandbox.profile import FIRST_UID, INSIDE, SYSTEM_TREE, Profile, Seen
from dirigent.sandbox.seccomp import seccomp_program
from dirigent.sandbox.selftest import attack_all

log = logging.getLogger(__name__)


class Verdict(msgspec.Struct, frozen=True):
    passed: bool
    why: str = ""
    """The first failure, for people. No code decides on it."""
    lost: bool = False
    """The answer never started, so the verdict says nothing about it."""


@contextlib.asynccontextmanager
async def open_sandbox(
    profile: Profile | None = None, *, slots: int | None = None, packages: tuple[str, ...] = ()
) -> AsyncIterator[Sandbox]:
    """Opens a sandbox that has just withstood every known attack on this machine."""
    async with open_untested(profile, slots=slots, packages=packages) as sandbox:
        through = await attack_all(sandbox)
        if through:
            raise SandboxError(
                f"the sandbox does not hold on this machine: {', '.join(through)} got through; nothing was graded. "
                "Use a host with bubblewrap 0.8 or newer, user namespaces and Linux 5.14 or newer"
            )
        log.log(logging.INFO if sandbox.landlock_abi else logging.WARNING, "sandbox: %s", sandbox.stamp)
        yield sandbox


@contextlib.asynccontextmanager
async def open_untested(
    profile: Profile | None = None, *, slots: int | None = None, packages: tuple[str, ...] = ()
) -> AsyncIterator[Sandbox]:
    """Opens a sandbox without the attacks, for tests, which run the attacks one by one.

    Programs may import `packages` if they are installed here.
    """
    _need_programs()
    interpreter, also, there = _interpreter_with(packages)
    with tempfile.TemporaryDirectory(prefix="dirigent-sandbox-") as name:
        folder = Path(name)
        furnish(folder, call_filter=seccomp_program())
        for package in there:
            (folder / "box" / "packages" / package).mkdir(mode=0o755)
        walls = Walls(
            profile=profile or Profile(),
            seen=Seen(interpreter, folder / "box", also, there),
            filter_path=folder / "filter.bpf",
            groups=hierarchies(),
            landlock_abi=landlock.usable_abi(),
        )
        yield Sandbox(walls, slots=slots or len(os.sched_getaffinity(0)))


class Sandbox:
    """Runs a limited number of programs at once, each in walls of its own. A judged answer takes two."""

    def __init__(self, walls: Walls, *, slots: int) -> None:
        self.walls = walls
        self.slots = slots
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(slots):
            self._free.put_nowait(slot)

    level = "bubblewrap"

    @property
    def landlock_abi(self) -> int:
        return self.walls.landlock_abi

    @property
    def attacks(self) -> tuple[Attack, ...]:
        return attacks_on(self.landlock_abi)

    @property
    def stamp(self) -> str:
        """Returns one line that names the walls around every program, for results to carry."""
        return stamp(self.walls)

    async def run(self, source: str, *, stdin: bytes = b"", profile: Profile | None = None) -> Ran:
        """Runs a whole program: bytes in, bytes out. The caller compares the output."""
        walls = msgspec.structs.replace(self.walls, profile=profile or self.walls.profile)
        async with self._slot() as slot:
            pipe = asyncio.subprocess.PIPE
            uid = _uid(2 * slot)
            async with launched(walls, f"{INSIDE}.program", uid=uid, stderr=pipe) as child:
                return await finished(child, profile=walls.profile, stdin=frame(source) + stdin)

    async def judge(self, source: str, *, tests: str, names: tuple[str, ...], preamble: str = "") -> Verdict:
        """Runs `tests` against `source`. The source has a sandbox of its own and cannot see the tests.

        `names` are the functions that the tests call; `preamble` is defined on the tests' side before they run.
        """
        if len(tests) > literals.MAX_JOB_BYTES // 2:  # a literal is longer than its text
            raise SandboxError(f"nothing was graded: {len(tests):,} characters of tests are too many for a sandbox")
        async with self._slot() as slot:
            return await self._judge(slot, source, tests=tests, names=names, preamble=preamble)

    async def _judge(self, slot: int, source: str, *, tests: str, names: tuple[str, ...], preamble: str) -> Verdict:
        calls_read, calls_write = os.pipe()
        replies_read, replies_write = os.pipe()
        job: dict[str, object] = {"source": source, "tests": tests, "preamble": preamble, "names": list(names)}
        job |= {"calls": calls_write, "replies": replies_read}
        left = [calls_read, calls_write, replies_read, replies_write]
        answer = launched(self.walls, f"{INSIDE}.answer", uid=_uid(2 * slot), stdin=calls_read, stdout=replies_write)
        judging = launched(
            self.walls,
            f"{INSIDE}.tests",
            uid=_uid(2 * slot + 1),
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(calls_write, replies_read),
        )
        try:
            async with _both(answer, judging) as (_, child):
                # From here on only the two sandboxes hold the pipes, so each notices when the other one dies.
                while left:
                    os.close(left.pop())
                ran = await finished(child, profile=self.walls.profile, stdin=frame(_literal(job)))
        finally:
            for fd in left:
                os.close(fd)
        verdict = _verdict(ran)
        if verdict.lost:
            raise SandboxError(f"nothing was graded: {verdict.why}")
        return verdict

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[int]:
        slot = await self._free.get()
        try:
            yield slot
        finally:
            self._free.put_nowait(slot)


@contextlib.asynccontextmanager
async def _both(
    one: contextlib.AbstractAsyncContextManager[Child], two: contextlib.AbstractAsyncContextManager[Child]
) -> AsyncIterator[tuple[Child, Child]]:
    """Starts both at the same time."""
    async with contextlib.AsyncExitStack() as stack:
        started = await asyncio.gather(
            stack.enter_async_context(one), stack.enter_async_context(two), return_exceptions=True
        )
        first, second = started
        if isinstance(first, BaseException):
            raise first
        if isinstance(second, BaseException):
            raise second
        yield first, second


def _verdict(ran: Ran) -> Verdict:
    if ran.ended == "timeout":
        return Verdict(False, f"no verdict after {ran.seconds:.0f} s")
    try:
        return msgspec.convert(literals.decode(ran.stdout[8:].decode(), kept=literals.Handle), type=Verdict)
    except (literals.Malformed, msgspec.ValidationError, UnicodeDecodeError):
        return Verdict(False, f"the tests gave no verdict (code {ran.code})")


def _literal(value: object) -> str:
    return literals.encode(value, keep=_no_handle)


def _no_handle(value: object) -> int:
    raise TypeError(f"{type(value).__name__} has no literal")


def _uid(index: int) -> int | None:
    """Returns a separate user for each program at a time, or None without root: then our own user must do."""
    return FIRST_UID + index if os.getuid() == 0 else None


def _need_programs() -> None:
    for program, package in {"bwrap": "bubblewrap", "prlimit": "util-linux", "setpriv": "util-linux"}.items():
        if shutil.which(program) is None:
            raise SandboxError(f"grading code needs {program!r}: install {package} (Debian: apt install {package})")


def _interpreter_with(packages: tuple[str, ...]) -> tuple[Path, tuple[Path, ...], dict[str, Path]]:
    """Returns a Python, the folders outside the system tree that it needs, and the packages that it can import.

    The packages are pure Python, so the system's interpreter can import them too where ours is closed to others.
    """
    own, home = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    there = {name: path for name, path in package_folders(packages).items() if readable_inside(path)}
    if there and readable_inside(own) and readable_inside(home):
        return own, () if _in_system_tree(home) else (home,), there
    return *_interpreter(), there


def _interpreter() -> tuple[Path, tuple[Path, ...]]:
    """Returns a Python that a user without rights can read, and the folders outside the system tree that it needs.

    The interpreter of this program is often in a user's home, closed to others; the system's interpreter is not.
    """
    system = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")
    if system:
        return Path(system).resolve(), ()
    own, home = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    if open_to_all(own) and open_to_all(home):
        return own, () if _in_system_tree(home) else (home,)
    raise ConfigError(
        f"no Python here can be read by an unprivileged user: {own} is closed to others and /usr/bin/python3 is "
        "missing; install the system's python3"
    )


def _in_system_tree(path: Path) -> bool:
    return any(path.is_relative_to(root) for root in SYSTEM_TREE)
