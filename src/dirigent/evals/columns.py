"""Columns: a table laid out for a terminal of some width.

Where it is too narrow for all columns, those that matter least are left out, and the table says which; never so the
names and what stands first. Where every column counts, they come in blocks below one another instead. What stands
behind a name is told beside it where there is room, else below. Knows nothing of what the columns mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GAP = 2


def laid_out(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int,
    expendable: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
) -> list[str]:
    """The table's lines. `expendable` are the columns that may go, the least important first; `notes` is what stands
    behind the name of a row."""
    left_out = _left_out(header, rows, width=width, expendable=expendable)
    kept = [i for i, title in enumerate(header) if title not in left_out]
    table = [[row[i] for i in kept] for row in (header, *rows)]
    room = width - sum(w + GAP for w in _widths(table)[1:])
    labels = {name: f"{name}  ({note})" for name, note in (notes or {}).items()}
    shown = {name: label for name, label in labels.items() if len(label) <= room}
    table = [[shown.get(name, name), *cells] for name, *cells in table]
    widths = _widths(table)
    return [
        *(_line(row, widths) for row in table),
        *([f"not shown, as {width} characters are too few: {', '.join(left_out)}"] if left_out else []),
        *(f"{name}: {note}" for name, note in (notes or {}).items() if name not in shown),
    ]


def in_blocks(header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int) -> list[str]:
    """The table's lines, with all its columns: as many blocks below one another as the width takes, each with the
    names of the rows."""
    name_width, *widths = _widths([header, *rows])
    blocks: list[list[int]] = []
    room = 0
    for i, column in enumerate(widths, start=1):
        if not blocks or room < column + GAP:
            blocks.append([0])
            room = width - name_width
        blocks[-1].append(i)
        room -= column + GAP
    return [line for kept in blocks for line in laid_out([header[i] for i in kept], _only(rows, kept), width=width)]


def _only(rows: Sequence[Sequence[str]], kept: Sequence[int]) -> list[list[str]]:
    return [[row[i] for i in kept] for row in rows]


def _left_out(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, expendable: Sequence[str]
) -> list[str]:
    """As many of the expendable columns, in their order, as make the rest fit."""
    widths = dict(zip(header, _widths([header, *rows]), strict=True))
    gone: list[str] = []
    for title in expendable:
        if sum(widths.values()) + GAP * (len(widths) - 1) <= width:
            break
        del widths[title]
        gone.append(title)
    return gone


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*table, strict=True)]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return (" " * GAP).join([row[0].ljust(widths[0]), *cells]).rstrip()
