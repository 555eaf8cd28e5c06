"""Plots of a report as inline SVG (accuracy against cost, and shares as stacked bars), and the markup that makes them.

Drawn by hand so that a page needs no other file: no script, no font, no address. Colours come from the page's own
style, so that light and dark both work. Every plot has a title and a description for people who do not see it, and no
meaning depends on colour alone: points carry their names, bars their figures.

Any place of a page may hold a model's text: a question, an answer, a worker's name. So there is one way to make an
element, `tag`, and only the results of `tag` pass unescaped.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from dirigent.show.words import usd_text

# ---- markup ----------------------------------------------------------------------------------------------


VOID = frozenset({"meta", "br", "circle", "line", "rect", "polyline"})
"""Elements without an end tag in HTML, or drawn without content in SVG."""

UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters: a page can show none of them and may not contain some of them."""


class Markup(str):
    """Text that is markup already. Only `tag`, `joined` and a page's own constants make it."""

    __slots__ = ()


Child = str | Markup | None


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. `class_` becomes `class`, `stroke_width` becomes `stroke-width`; an attribute that is None is left
    out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """Joins children; text that is not markup is escaped."""
    return Markup("".join(c if isinstance(c, Markup) else escaped(c) for c in children if c is not None))


def escaped(text: str) -> Markup:
    return Markup(html.escape(UNSEEN.sub("�", text), quote=True))


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, caption: str = "") -> Markup:
    """A table whose first column names the row."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    title = tag("caption", caption) if caption else None
    return tag("div", tag("table", title, tag("thead", head), tag("tbody", *body)), class_="wide", tabindex="0")


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 24, 48
BAR, GAP, LABEL, ABOVE = 22, 6, 150, 6
COLOURS = 8
LOG_FROM = 20.0
"""The ratio of costs from which the axis is logarithmic."""


Height = Callable[[float], float]
"""A share to pixels."""


class Point(msgspec.Struct, frozen=True):
    name: str
    cost_usd: float
    """The cost of one question."""
    accuracy: float
    interval: tuple[float, float]
    reference: bool = False
    """A reference, drawn hollow."""


def scatter(points: Sequence[Point], front: Sequence[str], *, title: str) -> Markup:
    """Accuracy against cost; the line joins the points that no other beats at the same cost or less."""
    if not points:
        return tag("p", "Nothing was measured.")
    x, ticks = _cost_axis([point.cost_usd for point in points])
    low = max(0.0, math.floor(min(p.interval[0] for p in points) * 10) / 10)
    high = min(1.0, math.ceil(max(p.interval[1] for p in points) * 10) / 10)

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (share - low) / max(high - low, 1e-9))

    drawn = [_axes(ticks, [low + (high - low) * i / 5 for i in range(6)], y)]
    by_name = {point.name: point for point in points}
    line = " ".join(f"{x(by_name[n].cost_usd):.1f},{y(by_name[n].accuracy):.1f}" for n in front if n in by_name)
    drawn.append(tag("polyline", points=line, class_="front"))
    heights = _spread([y(point.accuracy) for point in points])
    named = list(zip(points, heights, strict=True))
    drawn += [_lead(x(point.cost_usd), y(point.accuracy), height) for point, height in named]  # under every dot
    for number, (point, height) in enumerate(named):
        drawn.append(_mark(point, x(point.cost_usd), y, label_y=height, colour=number % COLOURS))
    said = "; ".join(f"{p.name}: {p.accuracy:.1%} at {usd_text(p.cost_usd)}" for p in points)
    return _figure(drawn, width=WIDTH, height=HEIGHT, title=title, said=f"{said}. Pareto front: {', '.join(front)}.")


def stacked_bars(rows: Mapping[str, Mapping[str, float]], *, title: str, series: Sequence[str] = ()) -> Markup:
    """One bar for each row, its parts as shares of their sum. `series` fixes the order and the colours of all possible
    parts, so that several plots agree; without it, parts are in the order in which they occur."""
    there = dict.fromkeys(name for parts in rows.values() for name, part in parts.items() if part > 0)
    if not there:
        return tag("p", "Nothing was measured.")
    names = list(dict.fromkeys([*series, *there]))
    colours = {name: _colour(number) for number, name in enumerate(names) if name in there}
    shares = {label: _shares(parts, order=list(colours)) for label, parts in rows.items()}
    drawn = [
        _bar(label, parts, colours, top=ABOVE + line * (BAR + GAP))
        for line, (label, parts) in enumerate(shares.items())
    ]
    legend, height = _legend(colours, top=ABOVE + len(rows) * (BAR + GAP) + 8)
    said = "; ".join(f"{label}: {_said(parts)}" for label, parts in shares.items())
    return _figure([*drawn, legend], width=WIDTH, height=height, title=title, said=said)


def _shares(parts: Mapping[str, float], *, order: Sequence[str]) -> dict[str, float]:
    total = sum(parts.values()) or 1.0
    return {name: parts[name] / total for name in order if parts.get(name, 0.0) > 0}


def _bar(label: str, shares: Mapping[str, float], colours: Mapping[str, str], *, top: float) -> Markup:
    """A row: its name, and a piece for each part, with the share if there is room."""
    drawn = [tag("text", _cut(label), x=LABEL - 8, y=top + BAR * 0.7, class_="label end")]
    left = float(LABEL)
    for name, share in shares.items():
        width = (WIDTH - LABEL - 16) * share
        note = tag("title", f"{label}: {name} {share:.0%}")
        drawn.append(tag("rect", note, x=left, y=top, width=width, height=BAR, class_=colours[name]))
        if width > 34:
            kind = "label" if "pale" in colours[name] else "inside"  # light words cannot be read on a pale part
            drawn.append(tag("text", f"{share:.0%}", x=left + 5, y=top + BAR * 0.7, class_=kind))
        left += width
    if not shares:
        drawn.append(tag("text", "no valid plan", x=LABEL, y=top + BAR * 0.7, class_="label"))
    return joined(*drawn)


def _said(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items()) or "no valid plan"


def _cost_axis(costs: Sequence[float]) -> tuple[_Scale, list[tuple[float, str]]]:
    """The position of a cost, and the labels along the axis."""
    positive = [cost for cost in costs if cost > 0]
    low, high = (min(positive), max(positive)) if positive else (0.0, 1.0)
    scale = _Scale(low, high, logarithmic=bool(positive) and high / low > LOG_FROM, has_zero=min(costs) <= 0)
    marks = [scale.low, (scale.low + scale.high) / 2, scale.high]
    if scale.logarithmic:
        marks = [scale.low, math.sqrt(scale.low * scale.high), scale.high]
    written = [(scale(mark), usd_text(mark)) for mark in dict.fromkeys(marks)]
    return scale, [(scale(0.0), usd_text(0.0)), *written] if scale.logarithmic and scale.has_zero else written


class _Scale:
    """Converts dollars to pixels. On a logarithmic axis a free planner is at the left edge, before all others."""

    def __init__(self, low: float, high: float, *, logarithmic: bool, has_zero: bool) -> None:
        self.logarithmic = logarithmic
        self.has_zero = has_zero
        self.low = low if logarithmic else 0.0
        self.high = high if high > self.low else self.low + 1.0

    def __call__(self, cost_usd: float) -> float:
        begin, across = LEFT + 14.0, WIDTH - LEFT - RIGHT - 28.0
        if not self.logarithmic:
            return begin + across * (cost_usd - self.low) / (self.high - self.low)
        free = 50.0 if self.has_zero else 0.0
        if cost_usd <= 0:
            return begin
        share = math.log(cost_usd / self.low) / math.log(self.high / self.low)
        return begin + free + (across - free) * share


def _axes(costs: Sequence[tuple[float, str]], shares: Sequence[float], y: Height) -> Markup:
    bottom = HEIGHT - BOTTOM
    parts = [tag("line", x1=LEFT, y1=bottom, x2=WIDTH - RIGHT, y2=bottom, class_="axis")]
    for share in shares:
        parts.append(tag("line", x1=LEFT, y1=y(share), x2=WIDTH - RIGHT, y2=y(share), class_="grid"))
        parts.append(tag("text", f"{share:.0%}", x=LEFT - 6, y=y(share) + 4, class_="label end"))
    for place, written in costs:
        parts.append(tag("text", written, x=place, y=bottom + 18, class_="label middle"))
    parts.append(tag("text", "cost of a question", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 8, class_="label middle"))
    return joined(*parts)


def _lead(x: float, y: float, label_y: float) -> Markup:
    """A line from a dot to its name."""
    return tag("line", x1=x + 6, y1=y, x2=WIDTH - RIGHT + 6, y2=label_y, class_="lead")


def _mark(point: Point, x: float, y: Height, *, label_y: float, colour: int) -> Markup:
    low, high = point.interval
    note = tag(
        "title", f"{point.name}: {point.accuracy:.1%} [{low:.1%}–{high:.1%}], {usd_text(point.cost_usd)} a question"
    )
    kind = f"dot c{colour}" + (" reference" if point.reference else "")
    return tag(
        "g",
        note,
        tag("line", x1=x, y1=y(low), x2=x, y2=y(high), class_="whisker"),
        tag("circle", cx=x, cy=y(point.accuracy), r=5, class_=kind),
        tag("text", _cut(point.name), x=WIDTH - RIGHT + 10, y=label_y + 4, class_="label"),
    )


def _spread(heights: Sequence[float], *, apart: float = 15.0) -> list[float]:
    """The heights of labels, moved down and then up again until no label covers another; their order stays."""
    apart = min(apart, (HEIGHT - BOTTOM - TOP) / max(len(heights), 1))
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = list(heights)
    last = -math.inf
    for i in order:
        placed[i] = last = max(heights[i], last + apart)
    lowest = HEIGHT - BOTTOM - 4.0
    for i in reversed(order):
        placed[i] = min(placed[i], lowest)
        lowest = placed[i] - apart
    return placed


def _legend(colours: Mapping[str, str], *, top: float) -> tuple[Markup, float]:
    parts, x, y = [], 8.0, top
    for name, colour in colours.items():
        written = _cut(name)
        width = 26 + 7.2 * len(written)
        if x + width > WIDTH:
            x, y = 8.0, y + 20
        parts.append(tag("rect", x=x, y=y, width=12, height=12, class_=colour))
        parts.append(tag("text", written, x=x + 17, y=y + 11, class_="label"))
        x += width
    return joined(*parts), y + 24


def _figure(drawn: Sequence[Markup], *, width: float, height: float, title: str, said: str) -> Markup:
    """The drawing with its title and its description in words."""
    svg = tag(
        "svg",
        tag("title", title),
        tag("desc", said),
        *drawn,
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=title,
        xmlns="http://www.w3.org/2000/svg",
    )
    return tag("figure", svg, tag("figcaption", title))


def _colour(number: int) -> str:
    """One of eight colours, then the same eight in pale."""
    return f"part c{number % COLOURS}" + (" pale" if number // COLOURS % 2 else "")


def _cut(name: str) -> str:
    return name if len(name) <= 22 else name[:21] + "…"
