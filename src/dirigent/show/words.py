"""Words and figures for a terminal: short, and harmless for any text of a model.

A terminal obeys some characters instead of showing them, and bidirectional marks can make a text look like another one.
This module replaces both by escapes, so that drawings need not handle them.
"""

from __future__ import annotations

import re
import unicodedata

ELLIPSIS = "…"
_LONGEST_LOOK = 4000
"""Characters of a text that are read to fill a line."""

_JOINERS = frozenset("\u200c\u200d")
"""Format characters that ordinary writing needs (Persian, emoji); they hide nothing."""

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\x1b"}


def escape(text: str) -> str:
    """Returns the text with its lines and tabs, and with escapes for everything that a terminal would obey."""
    return "".join(c if c in "\n\t" or _is_shown(c) else _written_out(c) for c in text)


def one_line(text: str, cells: int | None = None) -> str:
    """Returns the text on one line of at most `cells` cells: white space is collapsed, the end is cut off."""
    looked_at = text if cells is None else text[:_LONGEST_LOOK]
    words = re.sub(r"[ \t\r\n]+", " ", looked_at).strip()
    line = "".join(c if _is_shown(c) else _written_out(c) for c in words)
    if cells is None:
        return line
    if len(looked_at) < len(text):
        line += ELLIPSIS
    return _cut(line, cells)


def seconds_text(seconds: float) -> str:
    """Returns 37 ms, 1.5 s, 2 m 05 s"""
    if seconds < 0.0995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest:02} s"


def usd_text(usd: float) -> str:
    """Returns $0, $0.021, $1.53; below a tenth of a cent, two significant figures."""
    if usd == 0:
        return "$0"
    if usd >= 0.9995:
        return f"${usd:,.2f}"
    if usd >= 0.001:
        return f"${usd:.3f}"
    return f"${usd:.12f}"[: 3 + _zeros_after_point(usd) + 2].rstrip("0").rstrip(".")


def count_text(count: int, noun: str) -> str:
    """Returns 1 call, 3 calls"""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _is_shown(c: str) -> bool:
    # Cc controls, Cf invisible marks, Cs halves of characters, Zl and Zp other kinds of line breaks.
    return c in _JOINERS or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _written_out(c: str) -> str:
    code = ord(c)
    if c in _SHORT:
        return _SHORT[c]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(line: str, cells: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(line) <= cells:
        return line
    return set_cell_size(line, max(cells - 1, 0)).rstrip() + ELLIPSIS


def _zeros_after_point(usd: float) -> int:
    digits = f"{usd:.12f}"[2:]
    return len(digits) - len(digits.lstrip("0"))
