"""Markup: HTML and SVG elements whose text is always escaped.

What a model wrote may stand in any place of a page: a question, an answer, a worker's name. So there is one way to make
an element, and only what it made itself passes unescaped. Knows nothing of reports.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

VOID = frozenset({"meta", "br", "circle", "line", "rect", "polyline"})
"""Elements without an end tag in HTML, or drawn without content in SVG."""

UNSEEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters: no page can show them, and some cannot stand in one."""


class Markup(str):
    """Text that is markup already. Only `tag` and `joined` make it, and a page's own constants."""

    __slots__ = ()


Child = str | Markup | None


def tag(name: str, /, *children: Child, **attributes: str | float | None) -> Markup:
    """An element. `class_` is `class`, `stroke_width` is `stroke-width`; an attribute that is None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """Children one after the other; what is not markup is escaped."""
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
