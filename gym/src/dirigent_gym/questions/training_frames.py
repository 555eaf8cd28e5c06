"""Frames that only training and development use: `training_frames.toml`, read into leads, sequences, fans and decoys.

A conductor that met only a few frames takes new words for a step of their own ("Then stop."); a conductor that met many
looks for the request. The frames are apart from those that the test shares, because more of them must not change the
test. Each table of the file belongs to one split, so the file shows which frames only development uses. frames.py and
phrasing.py fill the frames.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from dirigent.errors import ConfigError

FILE = Path(__file__).with_name("training_frames.toml")

Mood = Literal["noun", "order", "ask"]


class Leads(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words before a noun phrase, by the mood that they give it."""

    orders: tuple[str, ...]
    asks: tuple[str, ...]


class ClauseFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frame for clauses one after another. `{c}` is a clause with a small first letter, `{C}` one with a capital.

    A clause of the mood `order` or `ask` is a sentence of its own. A clause of the mood `noun` is inserted unchanged:
    the frame has the verb, `{c}` and never `{C}`, and the mark that ends the sentence ("Next, find {c}.").
    """

    opening_mood: Mood
    opening: str
    later_mood: Mood
    later: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    closing: str = ""


class Frames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    leads: Leads
    sequences: tuple[ClauseFrame, ...]
    fans: tuple[str, ...]
    """With `{a}` and `{b}`, the two independent parts."""
    decoys: tuple[str, ...]
    """With `{w}`, a skill that the question does not need, or `{W}`, the same with a capital."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    train: Frames
    dev: Frames


@cache
def training_frames() -> Mapping[Literal["train", "dev"], Frames]:
    """The shipped frames, by the splits that use them."""
    return read_frames(FILE)


def read_frames(file: Path) -> dict[Literal["train", "dev"], Frames]:
    """Read such a file. Each frame must have the slots of its kind and must give a whole sentence."""
    try:
        found = msgspec.toml.decode(file.read_bytes(), type=_File)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file.name} is not a file of frames: {error}") from None
    for frames in (found.train, found.dev):
        for text, wanted in _wanted_slots(frames):
            if fault := _fault(text, wanted):
                raise ConfigError(f"{file.name}: {text!r} {fault}")
    return {"train": found.train, "dev": found.dev}


_CLAUSE, _PHRASE, _BOTH, _WORDS, _NONE = r"\{[cC]\}", r"\{c\}", r"\{a\}\{b\}", r"\{[wW]\}", ""
_SLOT_WORDS = {
    _CLAUSE: "{c} or {C}",
    _PHRASE: "{c} (a noun phrase gets no capital; the mood order or ask may have {C})",
    _BOTH: "{a} and then {b}",
    _WORDS: "{w} or {W}",
    _NONE: "none",
}


def _wanted_slots(frames: Frames) -> Iterator[tuple[str, str]]:
    """Every text of the frames, each with the pattern that its joined slots must match."""
    for sequence in frames.sequences:
        yield sequence.opening, _PHRASE if sequence.opening_mood == "noun" else _CLAUSE
        yield from ((text, _PHRASE if sequence.later_mood == "noun" else _CLAUSE) for text in sequence.later)
        yield sequence.closing, _NONE
    yield from ((text, _BOTH) for text in frames.fans)
    yield from ((text, _WORDS) for text in frames.decoys)
    yield from ((text, _NONE) for text in (*frames.leads.orders, *frames.leads.asks))


def _fault(text: str, wanted: str) -> str:
    """Returns the fault of a text and its fix, or an empty string."""
    slot = r"\{.*?\}"
    if not re.fullmatch(wanted, slots := "".join(re.findall(slot, text))):
        return f"has the slots {slots!r} where {_SLOT_WORDS[wanted]} should be"
    if stray := re.search(r"[{}]", re.sub(slot, "", text)):
        return f"has a stray {stray[0]!r}, but braces are for slots alone; remove it"
    if wanted == _PHRASE and not text.endswith((".", "!", "?")):
        return "does not end its sentence, nor does the noun phrase in it; end it with a mark, or take the mood order"
    return ""
