"""The filter works as listed: the tests interpret its bytes as the kernel would."""

from __future__ import annotations

import errno
import struct

import pytest
from tests.facts import facts

from dirigent.errors import ConfigError
from dirigent.sandbox.seccomp import (
    ALLOW,
    ARCHITECTURES,
    CLONE,
    DENIED,
    ERRNO,
    IOCTL,
    KILL_PROCESS,
    SOCKETS,
    seccomp_program,
)

MACHINES = list(ARCHITECTURES)
READ = {"x86_64": 0, "aarch64": 63}


def decision(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """The filter's decision on one system call."""
    return interpret(seccomp_program(machine), machine, number, *arguments, audit=audit)


def interpret(program: bytes, machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """Any filter's decision on one system call."""
    audit = ARCHITECTURES[machine].audit if audit is None else audit
    data = struct.pack("<IIQ6Q", number, audit, 0, *(list(arguments) + [0] * 6)[:6])
    code = list(struct.iter_unpack("<HBBI", program))
    at = accumulator = 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        match kind:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x06:
                return int(value)
            case 0x15:
                at += yes if accumulator == value else no
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x45:
                at += yes if accumulator & value else no
            case _:
                pytest.fail(f"no such instruction: {kind:#x}")


def column(machine: str, numbers: tuple[int | None, int | None]) -> int:
    found = numbers[ARCHITECTURES[machine].column]
    assert found is not None
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_list_is_denied_and_ordinary_ones_are_not(machine: str) -> None:
    for name, numbers in DENIED.items():
        number = numbers[ARCHITECTURES[machine].column]
        if number is not None:
            assert decision(machine, number) == ERRNO | errno.EPERM, name
    assert decision(machine, READ[machine]) == ALLOW
    assert decision(machine, 435) == ERRNO | errno.ENOSYS, "clone3 must look missing, so that libc uses clone"


@pytest.mark.parametrize("machine", MACHINES)
def test_the_calls_of_landlock_are_allowed_since_it_is_put_up_behind_the_filter(machine: str) -> None:
    assert {decision(machine, number) for number in (444, 445, 446)} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_only_unix_sockets_are_allowed(machine: str) -> None:
    for numbers in SOCKETS.values():
        verdicts = {family: decision(machine, column(machine, numbers), family) for family in range(46)}
        assert [family for family, verdict in verdicts.items() if verdict == ALLOW] == [1]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("flags", "allowed"),
    [(17, True), (0x003D0F00, True), (0x10000000 | 17, False), (0x20000, False), (0x40000000, False)],
)
def test_clone_makes_threads_and_processes_but_no_namespaces(machine: str, flags: int, allowed: bool) -> None:
    assert decision(machine, column(machine, CLONE), flags) == (ALLOW if allowed else ERRNO | errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("request_", "allowed"), [(0x5401, True), (0x5412, False), (0x541C, False), (1 << 32 | 0x5412, False)]
)
def test_no_terminal_is_typed_into(machine: str, request_: int, allowed: bool) -> None:
    assert decision(machine, column(machine, IOCTL), 0, request_) == (ALLOW if allowed else ERRNO | errno.EPERM)


def test_another_calling_convention_is_not_read_by_our_numbers() -> None:
    assert decision("x86_64", READ["x86_64"], audit=0x40000003) == KILL_PROCESS
    assert decision("x86_64", 0x40000000 | 101) == ERRNO | errno.ENOSYS
    assert decision("aarch64", READ["aarch64"], audit=0x40000028) == KILL_PROCESS


def test_an_unknown_machine_has_no_filter_and_so_no_sandbox() -> None:
    with pytest.raises(ConfigError, match=facts("riscv64 x86_64 aarch64")):
        seccomp_program("riscv64")
