"""What a program in the sandbox may use and see, as data and as the command that holds it to that.

Pure: nothing here starts anything. The order of the walls is told in `launch.py`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

MIB = 1024 * 1024

FIRST_UID = 1_900_000_000
"""Above every range that login users, services and containers are given."""

NOBODY = 65534

INSIDE = "dirigent.sandbox.inside"
"""The package of what runs inside."""


class Profile(msgspec.Struct, frozen=True):
    """The limits of one program. Two of them run for each graded answer: the answer and its tests."""

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_bytes: int = 512 * MIB
    """Of all its processes together, where a memory group can be had."""
    address_space_bytes: int = 448 * MIB
    """Of each process; less than the memory, so that Python raises MemoryError before the kernel kills."""
    file_bytes: int = 64 * MIB
    open_files: int = 64
    processes: int = 32
    ungrouped_processes: int = 8
    """In place of `processes` where no memory group can be had: then address space times processes is the bound."""
    scratch_bytes: int = 64 * MIB
    output_bytes: int = 1 * MIB
    """Of stdout and of stderr; more ends the program."""


class Fds(msgspec.Struct, frozen=True):
    """What bubblewrap is handed besides the program's own three."""

    info: int
    """It writes who the program is here..."""
    gate: int
    """... and waits here until it has been looked at and put into its group."""
    filter: int
    """The system-call filter."""


class Seen(msgspec.Struct, frozen=True):
    """The files a program can see: the system tree, an interpreter, and our few files, all read-only."""

    interpreter: Path
    inside: Path
    """Holds the package of programs that run inside."""
    also: tuple[Path, ...] = ()
    """The interpreter's home, where that is not in the system tree."""


SYSTEM_TREE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")


def drop_command(uid: int | None) -> list[str]:
    """Become nobody *before* bubblewrap: started by root, its `--uid` would only hide that the kernel still sees 0."""
    if uid is None:
        return []
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--"]


def limit_command(profile: Profile) -> list[str]:
    """Limits of each process; they can be lowered without rights, and never raised again."""
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
    """Run `main()` of one of our inside modules in fresh namespaces, with nothing writable but its scratch folder."""
    walls = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    walls += ["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv", "--hostname", "box"]
    walls += ["--info-fd", str(fds.info), "--block-fd", str(fds.gate), "--seccomp", str(fds.filter)]
    # The tmpfs bubblewrap makes for / and /dev has no size limit: both are closed once they are furnished.
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
    """Only what programs and libraries are: no /etc but the loader's cache, no /home, /var, /sys or /run."""
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
    return flags


def _confinement(seen: Seen, landlock_abi: int) -> str:
    """Puts up landlock, where there is one: from inside, since bubblewrap itself could mount nothing behind it."""
    if not landlock_abi:
        return ""
    programs = [*SYSTEM_TREE, *map(str, seen.also)]
    return f"from {INSIDE}.landlock import restrict; restrict({landlock_abi}, programs={programs!r}); "


def _start(module: str, *, processes: int, confinement: str) -> str:
    """The first line of Python. It is ours, and limits the number of processes: from Linux 5.14 on they are counted for
    each user namespace, so only from inside is this sandbox counted alone, not all of its user's programs."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes}))"
    return f"{limit}; import sys; sys.path.append('/box'); {confinement}from {module} import main; main()"
