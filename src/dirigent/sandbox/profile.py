"""The limits and the view of a sandboxed program, as data and as the command that enforces them.

The module is pure: it starts nothing. `launch.py` explains the order of the walls.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

MIB = 1024 * 1024

FIRST_UID = 1_900_000_000
"""Above every range of uids that login users, services and containers get."""

NOBODY = 65534

INSIDE = "dirigent.sandbox.inside"
"""The package of the programs that run inside."""


class Profile(msgspec.Struct, frozen=True):
    """The limits of one program. Each graded answer runs two programs: the answer and its tests."""

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 512 * MIB
    """Of all processes of the program together, if the host has a memory group."""
    address_space_bytes: int = 448 * MIB
    """Of each process. It is less than the memory, so that Python raises MemoryError before the kernel kills."""
    file_bytes: int = 64 * MIB
    open_files: int = 64
    processes: int = 32
    ungrouped_processes: int = 8
    """Replaces `processes` on a host without a memory group: there address space times processes is the bound."""
    scratch_bytes: int = 64 * MIB
    output_bytes: int = 1 * MIB
    """Of stdout and of stderr. A program that writes more is ended."""


class Fds(msgspec.Struct, frozen=True):
    """The descriptors that bubblewrap gets besides the program's own three."""

    info: int
    """Bubblewrap writes the program's pid here..."""
    gate: int
    """... and waits here until the program has been checked and put into its group."""
    filter: int
    """The system-call filter."""


class Seen(msgspec.Struct, frozen=True):
    """The files that a program can see, all read-only: the system tree, an interpreter, and our few files."""

    interpreter: Path
    inside: Path
    """The folder with the package of programs that run inside."""
    also: tuple[Path, ...] = ()
    """The interpreter's home, if it is not in the system tree."""
    packages: dict[str, Path] = {}
    """Packages that programs may import, by name. They have a place of their own inside, because their folder on the
    host may lie below /tmp, which is the scratch folder inside."""


SYSTEM_TREE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")


def drop_command(uid: int | None) -> list[str]:
    """Drops root *before* bubblewrap: its own `--uid` would only hide that the kernel still sees user 0."""
    if uid is None:
        return []
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--"]


def limit_command(profile: Profile) -> list[str]:
    """Sets limits of each process. A process without rights can lower them but never raise them again."""
    limits = {
        "cpu": profile.cpu_s + 1,
        "as": profile.address_space_bytes,
        "fsize": profile.file_bytes,
        "nofile": profile.open_files,
        "core": 0,
        "msgqueue": 0,
        "memlock": 0,
    }
    return ["prlimit", *(f"--{name}={value}" for name, value in limits.items()), "--"]


def box_command(profile: Profile, seen: Seen, *, fds: Fds, module: str, processes: int, landlock_abi: int) -> list[str]:
    """Runs `main()` of an inside module in fresh namespaces; only the scratch folder is writable."""
    walls = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    walls += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv", "--hostname", "box"]
    walls += ["--info-fd", str(fds.info), "--block-fd", str(fds.gate), "--seccomp", str(fds.filter)]
    # bubblewrap's tmpfs for / and /dev has no size limit, so both become read-only after they are filled.
    mounts = [*_system_tree(), *_read_only(seen), "--proc", "/proc", "--dev", "/dev"]
    mounts += ["--size", str(profile.scratch_bytes), "--tmpfs", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
    place = [
        "--chdir",
        "/tmp",
        "--setenv",
        "HOME",
        "/tmp",
        "--setenv",
        "PATH",
        "/usr/bin:/bin",
        "--setenv",
        "LANG",
        "C.UTF-8",
    ]
    first = _start(module, processes=processes, confinement=_confinement(seen, landlock_abi))
    return ["bwrap", *walls, *mounts, *place, str(seen.interpreter), "-I", "-S", "-B", "-c", first]


def _system_tree() -> list[str]:
    """Mounts only programs and libraries: no /etc but the loader's cache, no /home, /var, /sys or /run."""
    flags: list[str] = []
    for name in SYSTEM_TREE:
        path = Path(name)
        if path.is_symlink():
            flags += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            flags += ["--ro-bind", name, name]
    return [*flags, "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]


def _read_only(seen: Seen) -> list[str]:
    flags = ["--ro-bind", str(seen.inside), "/box"]
    for path in seen.also:
        flags += ["--ro-bind", str(path), str(path)]
    for name, path in seen.packages.items():
        flags += ["--ro-bind", str(path), f"/box/packages/{name}"]
    return flags


def _confinement(seen: Seen, landlock_abi: int) -> str:
    """Returns the line that puts up landlock, if usable. It runs inside: bubblewrap could mount nothing after it."""
    if not landlock_abi:
        return ""
    programs = [*SYSTEM_TREE, *map(str, seen.also)]
    return f"from {INSIDE}.landlock import restrict; restrict({landlock_abi}, programs={programs!r}); "


def _start(module: str, *, processes: int, confinement: str) -> str:
    """Returns the first line of Python, which is ours. It limits the number of processes from inside, because Linux
    counts them for each user namespace from 5.14 on: outside, the count would include all programs of the user."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes}))"
    return f"{limit}; import sys; sys.path += ['/box', '/box/packages']; {confinement}from {module} import main; main()"
