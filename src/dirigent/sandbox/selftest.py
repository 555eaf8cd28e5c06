"""Attack the sandbox before it grades anything."""

from __future__ import annotations

from typing import Protocol

import msgspec

from dirigent.concurrency import gather_or_cancel
from dirigent.sandbox.attacks import Attack, attacks_on
from dirigent.sandbox.launch import Ran
from dirigent.sandbox.profile import Profile


class Runner(Protocol):
    slots: int

    @property
    def landlock_abi(self) -> int: ...

    async def run(self, source: str, *, stdin: bytes = b"", profile: Profile | None = None) -> Ran: ...


async def attack_all(sandbox: Runner) -> list[str]:
    """Returns the names of the attacks that got through. With any name, nothing may be graded."""
    attacks = attacks_on(sandbox.landlock_abi)
    held = await gather_or_cancel(withstands(sandbox, attack) for attack in attacks)
    return [attack.name for attack, stood in zip(attacks, held, strict=True) if not stood]


async def withstands(sandbox: Runner, attack: Attack) -> bool:
    """Returns whether the sandbox contained one attack.

    An attack that ends prints "held" or "through". An attack that exhausts a resource may be ended from outside or die
    of its limits without a word. Silence of any other attack counts as a failure, because perhaps it never ran.
    """
    ran = await sandbox.run(attack.source, profile=msgspec.structs.replace(Profile(), **attack.limits))
    said = ran.stdout.decode(errors="replace").split()
    if "through" in said:
        return False
    if attack.exhausts:
        return "began" in said or ran.ended != "exited"
    return said[-1:] == ["held"]
