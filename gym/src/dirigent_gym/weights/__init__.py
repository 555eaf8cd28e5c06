"""Adapters that ship in the package: the gym's specialists, the trained conductor and its warm start.

Each is one LoRA file in GGUF, `NAME.gguf`, on the base that `workers/weights.py` fetches; `cards.toml` is their model
card: what they were trained on, how, and how well they do. This module finds them and reads the cards; it does not know
what a worker is. `dirigent_gym/train/pack.py` fills the folder.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from dirigent.toml import decode

FOLDER = Path(__file__).parent
CARDS = "cards.toml"

Role = Literal["specialist", "conductor", "warm-start"]

MAX_BYTES: dict[Role, int] = {"specialist": 4_000_000, "conductor": 10_000_000, "warm-start": 10_000_000}
MAX_TOTAL_BYTES = 50_000_000
"""What a download of the package may carry in weights."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader must know of an adapter before trusting it."""

    role: Role
    base: str
    """Name of the weights it stands on."""
    data: str
    """What it was trained on, in a sentence."""
    recipe: str
    commit: str
    """Of this repository, when it was trained."""
    date: str = ""
    """The day it was made, as 2026-11-15: the server offers it under that day too."""
    rank: int
    alpha: float
    size_bytes: int
    sha256: str
    figures: dict[str, int | float] = {}
    """Measured after export, by name."""
    licence: str = "Apache-2.0"
    claims: str = ""
    """What its figures may claim where that is less than they seem to say, worded so that its name can stand before it:
    reports say it under their tables."""


class Cards(msgspec.Struct, frozen=True):
    adapter: dict[str, Card] = {}


def packaged(folder: Path | None = None) -> dict[str, Path]:
    """The adapters that are here, by name."""
    return {path.stem: path for path in sorted((folder or FOLDER).glob("*.gguf"))}


def read_cards(folder: Path | None = None) -> dict[str, Card]:
    path = (folder or FOLDER) / CARDS
    if not path.is_file():
        return {}
    return decode(path.read_text(encoding="utf-8"), Cards, file=CARDS).adapter


def faults(folder: Path | None = None) -> list[str]:
    """Whatever is wrong with a folder of adapters, in words; nothing for one that may ship."""
    files, cards = packaged(folder), read_cards(folder)
    found = [f"{name}: has a card but no file" for name in cards if name not in files]
    for name, path in files.items():
        card = cards.get(name)
        if card is None:
            found.append(f"{name}: has no card in {CARDS}")
            continue
        size_bytes = path.stat().st_size
        if size_bytes > MAX_BYTES[card.role]:
            found.append(f"{name}: {size_bytes:,} bytes; a {card.role} may have {MAX_BYTES[card.role]:,}")
        if hashlib.sha256(path.read_bytes()).hexdigest() != card.sha256 or size_bytes != card.size_bytes:
            found.append(f"{name}: is not the file of its card (sha256 {card.sha256[:12]}…)")
    total_bytes = sum(path.stat().st_size for path in files.values())
    if total_bytes > MAX_TOTAL_BYTES:
        found.append(f"together {total_bytes:,} bytes; at most {MAX_TOTAL_BYTES:,} may ship")
    return found
