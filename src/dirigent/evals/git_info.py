"""Which source made a figure: the commit that the package stands in, marked where files have changed since."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dirigent


async def source_commit() -> str:
    """The commit, with `+changes` where the tree has some; empty for an installed package or without git."""
    package = Path(dirigent.__file__).parent
    # A package installed into some other project's tree must not claim that project's commit.
    if await _git(package, "ls-files", "--error-unmatch", "version.py") is None:
        return ""
    commit = await _git(package, "rev-parse", "HEAD")
    changed = await _git(package, "status", "--porcelain", "--untracked-files=no", ".")
    return (commit or "") + ("+changes" if commit and changed else "")


async def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it is missing or refuses."""
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            "-C",
            str(folder),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    output, _ = await process.communicate()
    return output.decode().strip() if process.returncode == 0 else None
