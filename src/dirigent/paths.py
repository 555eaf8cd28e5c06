"""The folder in which Dirigent keeps weights, caches and the store.

`DIRIGENT_HOME` names it; the default is a `dirigent` folder in the user's cache. This module creates nothing: code that
writes creates the folder that it writes to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """`$DIRIGENT_HOME`, else `$XDG_CACHE_HOME/dirigent`, else `~/.cache/dirigent`."""
    if chosen := environ.get("DIRIGENT_HOME"):
        return Path(chosen).expanduser()
    cache = environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is invalid and is to be ignored.
    base = Path(cache) if Path(cache).is_absolute() else Path("~/.cache").expanduser()
    return base / "dirigent"
