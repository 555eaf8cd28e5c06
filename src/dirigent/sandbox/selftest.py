"""Attack the sandbox before it grades anything."""

from __future__ import annotations

from typing import Protocol

import msgspec

from dirigent.concurrency import gather_or_cancel
from dirigent.sandbox.attacks import Attack, joined
from dirigent.sandbox.launch import Ran
from dirigent.sandbox.profile import Profile


class Runner(Protocol):
    """Anything that runs programs behind walls."""

    @property
    def attacks(self) -> tuple[Attack, ...]:
        """The attacks that its walls must contain."""
        ...

    async def run(self, source: str, *, stdin: bytes = b"", profile: Profile | None = None) -> Ran: ...


async def attack_all(sandbox: Runner) -> list[str]:
    """Returns the names of the attacks that got through. With any name, nothing may be graded."""
    held = await gather_or_cancel(withstands(sandbox, attack) for attack in sandbox.attacks)
    return [attack.name for attack, stood in zip(sandbox.attacks, held, strict=True) if not stood]


async def attack_at_once(sandbox: Runner) -> list[str]:
    """The same with few processes: attacks that exhaust nothing go one after the other in one program.

    It is for a start that must not take long: about a tenth of the time. A result that is missing counts as through.
    """
    brief = [attack for attack in sandbox.attacks if not attack.exhausts]
    others = [attack for attack in sandbox.attacks if attack.exhausts]
    said, *held = await gather_or_cancel([_said(sandbox, joined(brief)), *(_stood(sandbox, a) for a in others)])
    through = [attack.name for attack, stood in zip(others, held, strict=True) if stood != "held"]
    results: dict[int, list[str]] = {}
    number = -1
    for line in said.split():
        if line.isdigit():
            number = int(line)
        else:
            results.setdefault(number, []).append(line)
    return [
        *(a.name for n, a in enumerate(brief) if not results.get(n) or set(results[n]) != {"held"}),
        *through,
    ]


async def _said(sandbox: Runner, source: str) -> str:
    return (await sandbox.run(source)).stdout.decode(errors="replace")


async def _stood(sandbox: Runner, attack: Attack) -> str:
    return "held" if await withstands(sandbox, attack) else "through"


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
