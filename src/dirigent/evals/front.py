"""Front: accuracy against cost, as SVG and as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def svg_front(learned: Sequence[Mark], others: Sequence[Mark], *, title: str, unit: str) -> str:
    """The learned points joined by a line with their intervals, the others as single marks."""
    every = [*learned, *others]
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
        f'font-family="system-ui, sans-serif" font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="14" font-weight="600">{escape(title)}</text>',
    ]
    for step in range(6):
        share = bottom + (top - bottom) * step / 5
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y(share) + 4:.1f}" text-anchor="end" fill="#444">{100 * share:.0f}%</text>'
        )
    for cost in _ticks(min(costs), max(costs)):
        parts.append(
            f'<text x="{x(cost):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#444">{cost:g}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle" fill="#444">'
        f"cost of a question ({escape(unit)}, logarithmic)</text>"
    )
    ordered = sorted(learned, key=lambda mark: mark.cost)
    line = " ".join(f"{x(mark.cost):.1f},{y(mark.accuracy):.1f}" for mark in ordered)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1a5fb4" stroke-width="2"/>')
    for mark in ordered:
        at = f"{x(mark.cost):.1f}"
        if mark.low is not None and mark.high is not None:
            parts.append(f'<line x1="{at}" x2="{at}" y1="{y(mark.low):.1f}" y2="{y(mark.high):.1f}" stroke="#99c1f1"/>')
        parts.append(f'<circle cx="{at}" cy="{y(mark.accuracy):.1f}" r="3.5" fill="#1a5fb4"/>')
    for mark in others:
        parts.append(
            f'<circle cx="{x(mark.cost):.1f}" cy="{y(mark.accuracy):.1f}" r="4" fill="#fff" stroke="#c64600"/>'
            f'<text x="{x(mark.cost) + 7:.1f}" y="{y(mark.accuracy) + 4:.1f}" fill="#c64600">{escape(mark.name)}</text>'
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
