"""Furniture: the files of ours that a sandboxed program needs, copied to a folder that it can read.

These are the programs of `inside/`, the system-call filter, and a place for the few packages that programs may import.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import shutil
import stat
from pathlib import Path

from dirigent.sandbox.inside import literals
from dirigent.sandbox.profile import INSIDE


def furnish(folder: Path, *, call_filter: bytes) -> None:
    """Fills the folder: `box/` with our programs and an empty `box/packages/`, and the filter beside it."""
    package = folder / "box" / Path(*INSIDE.split("."))
    package.mkdir(parents=True)
    for source in Path(literals.__file__).parent.glob("*.py"):
        if source.name != "__init__.py":  # without it a folder is a namespace package and imports nothing above it
            shutil.copyfile(source, package / source.name)
    compileall.compile_dir(package, quiet=2)  # helps if the Python inside has our own version
    (folder / "box" / "packages").mkdir()
    (folder / "filter.bpf").write_bytes(call_filter)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def package_folders(names: tuple[str, ...]) -> dict[str, Path]:
    """Returns the folders of those packages that are installed here as plain folders."""
    found = {}
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[name] = Path(next(iter(spec.submodule_search_locations))).resolve()
    return found


def frame(text: str) -> bytes:
    """Returns a text as a program on the inside reads it: its length, then its bytes."""
    data = text.encode(errors="replace")
    return len(data).to_bytes(8, "big") + data


def open_to_all(path: Path) -> bool:
    """Returns whether a user without rights can read this path."""
    if not path.stat().st_mode & stat.S_IROTH:
        return False
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)


def readable_inside(path: Path) -> bool:
    """Returns whether a sandboxed program can read this path: root's programs become a user without rights."""
    return os.getuid() != 0 or open_to_all(path)
