"""Which Python runs inside: one that a user without any rights can read.

The interpreter this program runs under is often in someone's home, closed to others; the system's is not.
"""

from __future__ import annotations

import shutil
import stat
import sys
from pathlib import Path

from dirigent.errors import ConfigError
from dirigent.sandbox.profile import SYSTEM_TREE


def find_interpreter() -> tuple[Path, tuple[Path, ...]]:
    """The interpreter, and the folders besides the system tree that it needs."""
    system = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin")
    if system:
        return Path(system).resolve(), ()
    own, home = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    if open_to_all(own) and open_to_all(home):
        return own, () if any(home.is_relative_to(root) for root in SYSTEM_TREE) else (home,)
    raise ConfigError(
        f"no Python that an unprivileged user can read: {own} is closed to others and there is no /usr/bin/python3; "
        "install the system's python3"
    )


def open_to_all(path: Path) -> bool:
    """Whether everyone may reach and read it."""
    if not path.stat().st_mode & stat.S_IROTH:
        return False
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
