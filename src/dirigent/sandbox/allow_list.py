"""The system-call filter of a sandbox without namespaces: an allow list, since everything else here is the host's own.

Without bubblewrap a program shares the host's processes, sockets and files with its user. Landlock closes files, but
not what changes them without opening them (`chmod`, `utime`, extended attributes), not Unix sockets, and on older
kernels no signals. So this filter lets a program compute, use its scratch folder, and start threads. It cannot start a
process or another program, open a socket, send a signal, or change an owner, a mode or another process.

The numbers come from the kernel's headers, for both architectures that `seccomp.py` knows.
"""

from __future__ import annotations

import errno
import platform

from dirigent.sandbox.seccomp import (
    AF_UNIX,
    ALLOW,
    ANY_BIT,
    CLONE,
    EQUAL,
    ERRNO,
    IOCTL,
    MISSING,
    NEW_NAMESPACES,
    Architecture,
    architecture_of,
    foreign,
    give,
    jump,
    load_arg,
    when,
)

CLONE_THREAD = 0x00010000
SOCK_STREAM, SOCK_NONBLOCK, SOCK_CLOEXEC = 1, 0o4000, 0o2000000

# name: (x86_64, aarch64); None if the architecture has no such call.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # files: landlock says which
    "read": (0, 63),
    "write": (1, 64),
    "open": (2, None),
    "openat": (257, 56),
    "creat": (85, None),
    "close": (3, 57),
    "close_range": (436, 436),
    "stat": (4, None),
    "lstat": (6, None),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "lseek": (8, 62),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "link": (86, None),
    "linkat": (265, 37),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "fadvise64": (221, 223),
    "flock": (73, 32),
    "umask": (95, 166),
    "copy_file_range": (326, 285),
    "sendfile": (40, 71),
    # memory
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "brk": (12, 214),
    "madvise": (28, 233),
    "msync": (26, 227),
    # waiting, and a loop's own pair of sockets
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87),
    "recvfrom": (45, 207),
    "sendto": (44, 206),
    "shutdown": (48, 210),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    "getsockopt": (55, 209),
    # signals of its own
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132),
    "signalfd4": (289, 74),
    "pause": (34, None),
    "restart_syscall": (219, 128),
    # time
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "alarm": (37, None),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    # itself
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getgroups": (115, 158),
    "getpgrp": (111, None),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "setrlimit": (160, 164),
    "sched_getaffinity": (204, 123),
    "getcpu": (309, 168),
    "arch_prctl": (158, None),
    "getrandom": (318, 278),
    # threads
    "sched_yield": (24, 124),
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "set_tid_address": (218, 96),
    "rseq": (334, 293),
    "membarrier": (324, 283),
    "wait4": (61, 260),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
SOCKETPAIR: tuple[int | None, int | None] = (53, 199)
FCNTL: tuple[int | None, int | None] = (72, 25)
PRCTL: tuple[int | None, int | None] = (157, 167)
PRLIMIT: tuple[int | None, int | None] = (302, 261)

FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)
"""Copies of descriptors, their flags, and locks; not F_SETOWN and F_SETSIG, by which a pipe could send signals."""
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
PRCTLS = (15, 16)
"""PR_SET_NAME and PR_GET_NAME; not PR_SET_PDEATHSIG, which ends the program with its parent."""


def allow_list_program(machine: str | None = None) -> bytes:
    """Returns the filter for this machine (or the named one); every call that is not on the list fails with EPERM."""
    machine = machine or platform.machine()
    architecture = architecture_of(machine)
    column = architecture.column
    code = foreign(architecture, machine)
    for numbers in ALLOWED.values():
        code += when(numbers[column], [give(ALLOW)])
    for numbers in MISSING.values():
        code += when(numbers[column], [give(ERRNO | errno.ENOSYS)])
    code += _with_arguments(architecture)
    return b"".join([*code, give(ERRNO | errno.EPERM)])


def _with_arguments(architecture: Architecture) -> list[bytes]:
    """Returns the calls that are allowed for some arguments only."""
    column = architecture.column
    pair_types = [SOCK_STREAM | flags for flags in (0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC)]
    of_streams = _if_one_of(1, pair_types)
    code = when(SOCKETPAIR[column], [load_arg(0), jump(EQUAL, AF_UNIX, yes=1, no=0), _refuse(), *of_streams])
    code += when(FCNTL[column], _if_one_of(1, FCNTL_COMMANDS))
    code += when(IOCTL[column], _if_one_of(1, IOCTLS))
    code += when(PRCTL[column], _if_one_of(0, PRCTLS))
    code += when(PRLIMIT[column], _if_one_of(0, [0]))  # of itself alone
    thread = [load_arg(0), jump(ANY_BIT, NEW_NAMESPACES, yes=1, no=0), jump(ANY_BIT, CLONE_THREAD, yes=1, no=0)]
    return code + when(CLONE[column], [*thread, _refuse(), give(ALLOW)])


def _if_one_of(argument: int, values: list[int] | tuple[int, ...]) -> list[bytes]:
    """Allows the call if this argument has one of the values, and refuses it otherwise."""
    code = [load_arg(argument)]
    for left, value in zip(range(len(values) - 1, -1, -1), values, strict=True):
        code.append(jump(EQUAL, value, yes=left + 1, no=0))
    return [*code, _refuse(), give(ALLOW)]


def _refuse() -> bytes:
    return give(ERRNO | errno.EPERM)
