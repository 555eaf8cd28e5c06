"""Curves over the steps of a training run, as SVG files for the page on learning.

Several runs of the same figure share a colour, one line each. Every file has a title and its last figures in words; it
brings its own light and dark colours, because an image does not see the style of the page around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dirigent.evals.plots import Markup, tag

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 176, 26, 34
DASHES = ("", "6 3", "2 3", "9 3 2 3", "1 2")
"""Dashes, so that the lines also differ without colour."""

Line = Sequence[tuple[float, float]]
"""Pairs of a step and a figure."""

STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1a1a1a}.grid{stroke:#d5d5d5}polyline{fill:none;stroke-width:1.6}"
    ".c0{stroke:#2f6fb5}.c1{stroke:#b5502f}.c2{stroke:#3f8f4f}.c3{stroke:#8a5fb0}.c4{stroke:#a8851f}.end{text-anchor:end}"
    "@media (prefers-color-scheme:dark){text{fill:#e8e8e6}.grid{stroke:#3a3d42}.c0{stroke:#7fb3ea}.c1{stroke:#e8967a}"
    ".c2{stroke:#84cc93}.c3{stroke:#c3a0e6}.c4{stroke:#dcc06a}}"
)


def curves(figures: Mapping[str, Sequence[Line]], *, title: str) -> str:
    """Returns one SVG file: a colour for each figure, a line for each run. Empty without figures."""
    known = {name: [line for line in lines if line] for name, lines in figures.items()}
    known = {name: lines for name, lines in known.items() if lines}
    points = [point for lines in known.values() for line in lines for point in line]
    if not points:
        return ""
    last_step = max(step for step, _ in points) or 1.0
    top = _round_up(max(value for _, value in points))

    def at(step: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / last_step
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    drawn: list[Markup] = [tag("text", title, x=LEFT, y=15)]
    for i in range(5):
        x, y = at(last_step * i / 4, top * i / 4)
        drawn.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        drawn.append(tag("text", f"{top * i / 4:g}", x=LEFT - 6, y=y + 4, class_="end"))
        drawn.append(tag("text", f"{last_step * i / 4:.0f}", x=x, y=HEIGHT - 12, class_="end" if i == 4 else ""))
    for number, (name, lines) in enumerate(known.items()):
        drawn += _figure(number, name, [[at(*point) for point in line] for line in lines])
    said = "; ".join(f"{name} ends at {', '.join(f'{line[-1][1]:.2f}' for line in known[name])}" for name in known)
    return _file(drawn, title=title, said=f"By step, up to {last_step:.0f}: {said}.")


def _figure(number: int, name: str, lines: Sequence[Sequence[tuple[float, float]]]) -> list[Markup]:
    """The lines of a figure and its entry in the legend."""
    colour, dash = f"c{number % 5}", DASHES[number % len(DASHES)]
    drawn = [_line(line, colour, dash) for line in lines]
    x, y = WIDTH - RIGHT + 14, TOP + 10 + 20 * number
    drawn.append(_line([(x, y - 4), (x + 26, y - 4)], colour, dash))
    return [*drawn, tag("text", name, x=x + 32, y=y)]


def _line(points: Sequence[tuple[float, float]], colour: str, dash: str) -> Markup:
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("polyline", points=where, class_=colour, stroke_dasharray=dash or "none")


def _round_up(value: float) -> float:
    """1 for shares; otherwise the next whole or half number."""
    return 1.0 if value <= 1.0 else math.ceil(value * 2) / 2


def _file(drawn: Sequence[Markup], *, title: str, said: str) -> str:
    return (
        tag(
            "svg",
            tag("title", title),
            tag("desc", said),
            tag("style", Markup(STYLE)),
            *drawn,
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            width=WIDTH,
            height=HEIGHT,
            role="img",
            xmlns="http://www.w3.org/2000/svg",
        )
        + "\n"
    )
