"""Attack the sandbox before it grades anything."""

from __future__ import annotations

from collections.abc import Sequence
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
    return await _through(sandbox, sandbox.attacks)


async def attack_at_once(sandbox: Runner) -> list[str]:
    """The same with few processes: attacks that exhaust nothing go one after the other in one program.

    It is for a start that must not take long: about a tenth of the time. An attack without a clear result there is
    tried again alone, since a busy host may have ended the program early; it is through if it does not hold then.
    """
    brief = [attack for attack in sandbox.attacks if not attack.exhausts]
    single = [attack for attack in sandbox.attacks if attack.exhausts]

    async def try_brief() -> list[str]:
        ran = await sandbox.run(joined(brief))
        results = _results(ran.stdout.decode(errors="replace"))
        return await _through(sandbox, [a for number, a in enumerate(brief) if results.get(number) != {"held"}])

    of_brief, of_single = await gather_or_cancel([try_brief(), _through(sandbox, single)])
    return of_brief + of_single


async def _through(sandbox: Runner, attacks: Sequence[Attack]) -> list[str]:
    held = await gather_or_cancel(withstands(sandbox, attack) for attack in attacks)
    return [attack.name for attack, stood in zip(attacks, held, strict=True) if not stood]


def _results(said: str) -> dict[int, set[str]]:
    """Returns the words behind each attack's number."""
    results: dict[int, set[str]] = {}
    number = -1
    for word in said.split():
        if word.isdigit():
            number = int(word)
        else:
            results.setdefault(number, set()).add(word)
    return results


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
