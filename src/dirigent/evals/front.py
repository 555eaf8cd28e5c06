"""Front: accuracy against cost, as SVG and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import msgspec

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 64, 150, 24, 48
COLUMNS, ROWS = 48, 10


class Mark(msgspec.Struct, frozen=True):
    """A measured point: a planner at a price, or a single worker."""

    name: str
    cost: float
    accuracy: float
    low: float | None = None
    high: float | None = None


STYLE = """\
svg{background:#fff}text{fill:#333}.grid{stroke:#ddd}.learned{stroke:#1a5fb4;fill:none}.dot{fill:#1a5fb4}
.reach{stroke:#99c1f1}.line{stroke:#777;fill:none;stroke-dasharray:4 3}
.other{fill:#fff;stroke:#c64600}.name{fill:#c64600}
@media (prefers-color-scheme:dark){svg{background:#0d1117}text{fill:#d0d7de}.grid{stroke:#30363d}
.learned{stroke:#62a0ea}.dot{fill:#62a0ea}.reach{stroke:#26527f}.line{stroke:#8b949e}
.other{fill:#0d1117;stroke:#ffa348}.name{fill:#ffa348}}
"""
"""Both colour schemes of a reader."""


def svg_front(
    learned: Sequence[Mark],
    others: Sequence[Mark],
    *,
    title: str,
    unit: str,
    rivals: Mapping[str, Sequence[Mark]] | None = None,
) -> str:
    """The learned points joined by a line with their intervals, the others as single marks.

    Each of `rivals` is a broken line with its name at the end.
    """
    rivals = rivals or {}
    every = [*learned, *others, *(mark for marks in rivals.values() for mark in marks)]
    costs = [max(mark.cost, 1e-12) for mark in every]
    lows = [mark.accuracy if mark.low is None else mark.low for mark in every]
    highs = [mark.accuracy if mark.high is None else mark.high for mark in every]
    bottom, top = math.floor(min(lows) * 20) / 20, math.ceil(max(highs) * 20) / 20
    first, last = math.log10(min(costs)), math.log10(max(costs))

    def x(cost: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(max(cost, 1e-12)) - first) / max(last - first, 1e-9)

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (share - bottom) / max(top - bottom, 1e-9))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12"><title>{escape(title)}</title><style>{STYLE}</style>',
        f'<text x="{LEFT}" y="14" font-weight="600">{escape(title)}</text>',
    ]
    for step in range(6):
        share = bottom + (top - bottom) * step / 5
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}" class="grid"/>'
            f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f}%</text>'
        )
    for cost in _ticks(min(costs), max(costs)):
        parts.append(f'<text x="{x(cost):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{cost:g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"cost of a question ({escape(unit)}, logarithmic)</text>"
    )
    ordered = sorted(learned, key=lambda mark: mark.cost)
    line = " ".join(f"{x(mark.cost):.1f},{y(mark.accuracy):.1f}" for mark in ordered)
    for name, marks in rivals.items():
        through = sorted(marks, key=lambda mark: mark.cost)
        path = " ".join(f"{x(mark.cost):.1f},{y(mark.accuracy):.1f}" for mark in through)
        end = through[-1]
        parts.append(
            f'<polyline points="{path}" class="line" stroke-width="1.5"/>'
            f'<text x="{x(end.cost) + 7:.1f}" y="{y(end.accuracy) + 12:.1f}">{escape(name)}</text>'
        )
    parts.append(f'<polyline points="{line}" class="learned" stroke-width="2"/>')
    for mark in ordered:
        at = f"{x(mark.cost):.1f}"
        if mark.low is not None and mark.high is not None:
            parts.append(f'<line x1="{at}" x2="{at}" y1="{y(mark.low):.1f}" y2="{y(mark.high):.1f}" class="reach"/>')
        parts.append(f'<circle cx="{at}" cy="{y(mark.accuracy):.1f}" r="3.5" class="dot"/>')
    for mark in others:
        parts.append(
            f'<circle cx="{x(mark.cost):.1f}" cy="{y(mark.accuracy):.1f}" r="4" class="other"/>'
            f'<text x="{x(mark.cost) + 7:.1f}" y="{y(mark.accuracy) + 4:.1f}" class="name">{escape(mark.name)}</text>'
        )
    return "".join(parts) + "</svg>\n"


def text_front(learned: Sequence[Mark], others: Sequence[Mark], *, notes: Sequence[str] = ()) -> str:
    """The front for a terminal: `●` a learned point, `○` a single worker; `notes` stand beside it."""
    every = [*learned, *others]
    costs = [math.log10(max(mark.cost, 1e-12)) for mark in every]
    shares = [mark.accuracy for mark in every]
    first, last, bottom, top = min(costs), max(costs), min(shares), max(shares)

    def place(mark: Mark) -> tuple[int, int]:
        column = round((COLUMNS - 1) * (math.log10(max(mark.cost, 1e-12)) - first) / max(last - first, 1e-9))
        return round((ROWS - 1) * (top - mark.accuracy) / max(top - bottom, 1e-9)), column

    grid = [[" "] * COLUMNS for _ in range(ROWS)]
    for sign, marks in (("○", others), ("●", learned)):
        for mark in marks:
            row, column = place(mark)
            grid[row][column] = sign
    for mark in others:
        row, column = place(mark)
        word = f" {mark.name}"
        room = grid[row][column + 1 : column + 1 + len(word)]
        if len(room) == len(word) and not any(sign in "●○" for sign in room):
            grid[row][column + 1 : column + 1 + len(word)] = list(word)
    lines = ["accuracy"]
    for number, cells in enumerate(grid):
        share = top - (top - bottom) * number / (ROWS - 1)
        note = notes[number] if number < len(notes) else ""
        lines.append(f"{100 * share:5.1f} ┤{''.join(cells)}  {note}".rstrip())
    low, high = f"{10**first:.3g}", f"{10**last:.3g}"
    lines.append("      └" + "─" * COLUMNS)
    lines.append("       " + low + "cost".center(COLUMNS - len(low) - len(high)) + high)
    return "\n".join(lines)


def _ticks(low: float, high: float) -> list[float]:
    """Round costs between the least and the greatest, at most about six."""
    found = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for factor in (1, 2, 5)
    ]
    inside = [cost for cost in found if low * 0.999 <= cost <= high * 1.001]
    while len(inside) > 7:
        inside = inside[::2]
    return [float(f"{cost:.6g}") for cost in inside]
