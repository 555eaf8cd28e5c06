"""Checkpoints that are whole or do not count: a marker file is written last, after everything else is on the disk.

A run may be killed at any instant, so a folder without the marker was cut while it was written and is passed over. One
that has the marker but no longer every file it names, at its size, is another matter: it was whole and was damaged
since. Neither counts; `damage` tells them apart, for whoever goes on with a run.

Knows nothing of what is kept: trainers write their files, `seal` makes them count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec

MARKER = "COMPLETE.json"
PREFIX = "checkpoint-"


class Marker(msgspec.Struct, frozen=True):
    step: int
    bytes_by_file: dict[str, int]


def seal(folder: Path, *, step: int) -> None:
    """Bring every file of the folder to the disk, and the names that lead there, then say so."""
    inside = sorted(folder.rglob("*"))
    files = [path for path in inside if path.is_file() and path.name != MARKER]
    for path in files:
        _sync(path)
    for place in (*(path for path in inside if path.is_dir()), folder, folder.parent):
        _sync(place)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    write_durably(folder / MARKER, msgspec.json.encode(Marker(step, sizes)))


def write_durably(path: Path, data: bytes) -> None:
    """Write a file so that after a crash it is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def sealed_step(folder: Path) -> int | None:
    """The step a folder was sealed at, or None if it does not count."""
    try:
        marker = _marker(folder)
    except (OSError, msgspec.DecodeError):
        return None
    return None if marker is None or damage(folder) else marker.step


def damage(folder: Path) -> tuple[str, ...]:
    """What a sealed folder has lost since, a phrase a file. Nothing where it is whole or never was sealed."""
    try:
        marker = _marker(folder)
    except (OSError, msgspec.DecodeError):
        return (f"{MARKER} cannot be read",)
    if marker is None:
        return ()
    sizes = [(name, size, _size(folder / name)) for name, size in marker.bytes_by_file.items()]
    return tuple(
        f"{name} is missing" if found is None else f"{name} has {found} bytes, not {size}"
        for name, size, found in sizes
        if found != size
    )


def latest(out: Path) -> tuple[Path, int] | None:
    """The newest checkpoint of a run that counts, and its step."""
    whole = _whole(out)
    if not whole:
        return None
    step, folder = whole[-1]
    return folder, step


def damaged(out: Path, *, after_step: int = 0) -> dict[Path, tuple[str, ...]]:
    """The damaged checkpoints of later steps than this, each with what it lost; the newest first."""
    later = sorted((number, folder) for number, folder in _numbered(out) if number > after_step)
    return {folder: lost for _, folder in reversed(later) if (lost := damage(folder))}


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that the run can write one of its name and nothing of it is lost."""
    names = (f"damaged-{folder.name}" + (f"-{n}" if n else "") for n in count())
    aside = next(path for name in names if not (path := folder.with_name(name)).exists())
    return folder.rename(aside)


def prune(out: Path, *, keep: int) -> None:
    """Delete all but the newest whole checkpoints, and what was cut before them. Damaged ones are left to a person."""
    whole = _whole(out)
    for _, folder in whole[:-keep]:
        # The marker first: whatever a kill leaves of the folder then counts as cut, not as damaged.
        (folder / MARKER).unlink()
    newest = whole[-1][0] if whole else 0
    for number, folder in _numbered(out):
        if number < newest and not (folder / MARKER).exists():
            shutil.rmtree(folder)


def _whole(out: Path) -> list[tuple[int, Path]]:
    """Steps and folders of the checkpoints that count, in order."""
    return sorted((step, folder) for _, folder in _numbered(out) if (step := sealed_step(folder)) is not None)


def _numbered(out: Path) -> Iterator[tuple[int, Path]]:
    """The checkpoints' folders, by the numbers in their names; copies under other names are nobody's."""
    for folder in out.glob(f"{PREFIX}*"):
        number = folder.name.removeprefix(PREFIX)
        if number.isdecimal():
            yield int(number), folder


def _marker(folder: Path) -> Marker | None:
    try:
        text = (folder / MARKER).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return msgspec.json.decode(text, type=Marker)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
