"""Origins: where the row of a trained planner comes from, and what it may claim.

Two things a table must say of such a row. Its weights have a card, which may say what their figures can claim. And the
row itself may be of an earlier report: weights that are no longer there cannot be asked again. Knows no report, only
the parts that its sentences are about; putting an earlier row into a report is `beside.py`'s part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from dirigent.planners.spec import kinds_of


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Whose figures they are: a trained adapter, as its card says."""

    recipe: str
    commit: str
    """Of this repository, when it was trained."""
    sha256: str
    claims: str = ""
    """What its figures may claim, said so that its name can stand before it."""


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """When a row was measured that is not of this evaluation."""

    commit: str
    date: str


NOT_AGAIN = (
    "{names} {was} not asked again: times are of that run, and paired differences, which need the outcomes of each "
    "question, are left empty."
)


def origins_note(planners: Collection[str], weights: Mapping[str, Weights], earlier: Mapping[str, Earlier]) -> str:
    """What must stand under a table with these planners; nothing where no card claims anything and all were asked."""
    kinds = kinds_of(planners)
    then = [name for name in kinds if name in earlier]
    now = [name for name in kinds if name not in earlier]
    claims = {name: weights[name].claims.rstrip(". ") for name in (*then, *now) if name in weights}
    parts = [_measured(name, earlier[name], claims.get(name, "")) for name in then]
    for number, name in enumerate(now):
        if claimed := claims.get(name):
            said_before = claimed in (claims.get(other) for other in now[:number])
            parts.append(f"`{name}` {'likewise' if said_before else claimed}")
    if not parts:
        return ""
    said = "; ".join(parts) + "."
    names = " and ".join(f"`{name}`" for name in then)
    return f"{said} {NOT_AGAIN.format(names=names, was='was' if len(then) == 1 else 'were')}" if then else said


def _measured(name: str, when: Earlier, claimed: str) -> str:
    said = f"`{name}` was measured at commit `{when.commit[:7] or 'unknown'}`, on {when.date or 'an unknown day'}"
    return f"{said}: it {claimed}" if claimed else said
