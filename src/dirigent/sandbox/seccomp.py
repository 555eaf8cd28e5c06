"""The system-call filter: a deny list, assembled into classic BPF by the few lines below.

We have our own assembler, not pyseccomp, because a deny list over two architectures needs only four instructions (load,
jump if equal, jump if set, return). pyseccomp would add a native library that must be found at run time, and only a run
could test its output. Ours is a pure function from an architecture to bytes, which tests interpret.

The filter denies: tracing and reading other processes, mounts, new namespaces, kernel modules and key rings, BPF, perf,
io_uring, userfaultfd, file handles, clocks, every socket that is not AF_UNIX, typing into a terminal, and memory that
no limit counts (memfd, System V segments and queues). It also denies what the sandbox's mounts, namespaces and limits
already stop, because each wall is tested alone.
"""

from __future__ import annotations

import errno
import platform
import struct

import msgspec

from dirigent.errors import ConfigError

ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
ERRNO = 0x00050000

AF_UNIX = 1
TIOCSTI = 0x5412
TIOCLINUX = 0x541C
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

_LOAD, EQUAL, AT_LEAST, ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16
_X32_BIT = 0x40000000


class Architecture(msgspec.Struct, frozen=True):
    audit: int
    """AUDIT_ARCH_*: the kernel's number of the calling convention."""
    column: int
    """The column of its numbers in the tables."""


ARCHITECTURES = {"x86_64": Architecture(0xC000003E, 0), "aarch64": Architecture(0xC00000B7, 1)}

# name: (x86_64, aarch64); None if the architecture has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "fanotify_init": (300, 262),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
}
MISSING: dict[str, tuple[int | None, int | None]] = {
    # ENOSYS makes libc fall back to clone, whose flags a filter can read.
    "clone3": (435, 435),
}
SOCKETS: dict[str, tuple[int | None, int | None]] = {"socket": (41, 198), "socketpair": (53, 199)}
CLONE: tuple[int | None, int | None] = (56, 220)
IOCTL: tuple[int | None, int | None] = (16, 29)


def seccomp_program(machine: str | None = None) -> bytes:
    """Returns the filter for this machine (or the named one), in the format of `bwrap --seccomp`."""
    machine = machine or platform.machine()
    architecture = architecture_of(machine)
    return b"".join(foreign(architecture, machine) + _denials(architecture) + [give(ALLOW)])


def architecture_of(machine: str) -> Architecture:
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        raise ConfigError(
            f"no system-call filter for {machine!r}: the sandbox runs on {' and '.join(ARCHITECTURES)} only"
        )
    return architecture


def foreign(architecture: Architecture, machine: str) -> list[bytes]:
    """Ends programs of another calling convention, because its call numbers have other meanings."""
    code = [load(_OFFSET_ARCH), jump(EQUAL, architecture.audit, yes=1, no=0), give(KILL_PROCESS), load(_OFFSET_NR)]
    if machine == "x86_64":
        code += [jump(AT_LEAST, _X32_BIT, yes=0, no=1), give(ERRNO | errno.ENOSYS)]
    return code


def _denials(architecture: Architecture) -> list[bytes]:
    code: list[bytes] = []
    column = architecture.column
    for table, error in ((DENIED, errno.EPERM), (MISSING, errno.ENOSYS)):
        for numbers in table.values():
            code += when(numbers[column], [give(ERRNO | error)])
    for numbers in SOCKETS.values():
        code += when(
            numbers[column],
            [load_arg(0), jump(EQUAL, AF_UNIX, yes=1, no=0), give(ERRNO | errno.EPERM), give(ALLOW)],
        )
    code += when(
        CLONE[column],
        [load_arg(0), jump(ANY_BIT, NEW_NAMESPACES, yes=0, no=1), give(ERRNO | errno.EPERM), give(ALLOW)],
    )
    code += when(
        IOCTL[column],
        [
            load_arg(1),
            jump(EQUAL, TIOCSTI, yes=1, no=0),
            jump(EQUAL, TIOCLINUX, yes=0, no=1),
            give(ERRNO | errno.EPERM),
            give(ALLOW),
        ],
    )
    return code


def when(number: int | None, body: list[bytes]) -> list[bytes]:
    """Applies `body` to this call only. It must end in a return, because it unloads the call's number."""
    return [] if number is None else [jump(EQUAL, number, yes=0, no=len(body)), *body]


def load(offset: int) -> bytes:
    return struct.pack("<HBBI", _LOAD, 0, 0, offset)


def load_arg(index: int) -> bytes:
    """Loads the lower half of an argument (both architectures are little-endian): an int is no longer than it."""
    return load(_OFFSET_ARGS + 8 * index)


def jump(kind: int, value: int, *, yes: int, no: int) -> bytes:
    return struct.pack("<HBBI", kind, yes, no, value)


def give(action: int) -> bytes:
    return struct.pack("<HBBI", _RETURN, 0, 0, action)
