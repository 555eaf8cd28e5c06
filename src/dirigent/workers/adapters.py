"""Adapters that installed distributions ship: LoRA files in GGUF, with a card for each.

An adapter is `NAME.gguf` in the folder of a plugin of the group `dirigent.weights`; `cards.toml` beside it says what it
was trained on and how well it does. This module finds adapters and reads cards. It does not know what a worker is.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from dirigent import plugins
from dirigent.toml import decode

CARDS = "cards.toml"

Role = Literal["specialist", "conductor", "warm-start"]

MAX_BYTES: dict[Role, int] = {"specialist": 4_000_000, "conductor": 10_000_000, "warm-start": 10_000_000}
MAX_TOTAL_BYTES = 50_000_000
"""The most bytes of weights that one distribution may ship."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a reader needs before trusting an adapter."""

    role: Role
    base: str
    """Name of the weights that the adapter changes."""
    data: str
    """One sentence about the training data."""
    recipe: str
    commit: str
    """Commit of this repository at the time of training."""
    date: str = ""
    """Day of the training, as 2026-11-15. The server offers the model under that day too."""
    rank: int
    alpha: float
    size_bytes: int
    sha256: str
    figures: dict[str, int | float] = {}
    """Figures measured after export, by name."""
    licence: str = "Apache-2.0"
    claims: str = ""
    """A limit on the claims of the figures, as a predicate behind the adapter's name. Reports print it under their
    tables."""


class Cards(msgspec.Struct, frozen=True):
    adapter: dict[str, Card] = {}


def folders() -> list[Path]:
    """The folders of all installed adapters. No module of a plugin runs but the `__init__` of its package."""
    found = []
    for entry in plugins.entries("weights").values():
        folder = files(entry.value)
        if isinstance(folder, Path):
            found.append(folder)
    return found


def packaged(folder: Path | None = None) -> dict[str, Path]:
    """The adapters in a folder, by name; without a folder, all that are installed."""
    chosen = folders() if folder is None else [folder]
    return {path.stem: path for one in chosen for path in sorted(one.glob("*.gguf"))}


def read_cards(folder: Path | None = None) -> dict[str, Card]:
    """The cards in a folder, by adapter; without a folder, those of all installed adapters."""
    cards: dict[str, Card] = {}
    for one in folders() if folder is None else [folder]:
        path = one / CARDS
        if path.is_file():
            cards |= decode(path.read_text(encoding="utf-8"), Cards, file=CARDS).adapter
    return cards


def faults(folder: Path) -> list[str]:
    """Every fault of a folder of adapters, in words; empty if the folder may ship."""
    adapters, cards = packaged(folder), read_cards(folder)
    found = [f"{name}: has a card but no file" for name in cards if name not in adapters]
    for name, path in adapters.items():
        card = cards.get(name)
        if card is None:
            found.append(f"{name}: has no card in {CARDS}")
            continue
        size_bytes = path.stat().st_size
        if size_bytes > MAX_BYTES[card.role]:
            found.append(f"{name}: {size_bytes:,} bytes; a {card.role} may have {MAX_BYTES[card.role]:,}")
        if hashlib.sha256(path.read_bytes()).hexdigest() != card.sha256 or size_bytes != card.size_bytes:
            found.append(f"{name}: is not the file of its card (sha256 {card.sha256[:12]}…)")
    total_bytes = sum(path.stat().st_size for path in adapters.values())
    if total_bytes > MAX_TOTAL_BYTES:
        found.append(f"together {total_bytes:,} bytes; at most {MAX_TOTAL_BYTES:,} may ship")
    return found
