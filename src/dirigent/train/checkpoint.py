"""Checkpoints that are whole or do not count: a marker file is written last, after everything else is on the disk.

A run may be killed at any instant. Whatever folder lacks the marker, or differs in size from what the marker says, is
passed over. Knows nothing of what is kept: trainers write their files, `seal` makes them count.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

MARKER = "COMPLETE.json"
PREFIX = "checkpoint-"


class Marker(msgspec.Struct, frozen=True):
    step: int
    bytes_by_file: dict[str, int]


def seal(folder: Path, *, step: int) -> None:
    """Bring every file of the folder to the disk, then say so."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    for path in files:
        _sync(path)
    for inner in {path.parent for path in files} | {folder}:
        _sync(inner)
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
        marker = msgspec.json.decode((folder / MARKER).read_bytes(), type=Marker)
    except (OSError, msgspec.DecodeError):
        return None
    whole = all(_size(folder / name) == size for name, size in marker.bytes_by_file.items())
    return marker.step if whole else None


def latest(out: Path) -> tuple[Path, int] | None:
    """The newest checkpoint of a run that counts, and its step."""
    found = [(step, folder) for folder in out.glob(f"{PREFIX}*") if (step := sealed_step(folder)) is not None]
    if not found:
        return None
    step, folder = max(found)
    return folder, step


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
