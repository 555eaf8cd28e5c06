"""Limits of one process, which it can lower but never raise again."""

from __future__ import annotations

import resource
import sys


def limit(most: dict[str, int]) -> None:
    """Sets these limits. A system other than Linux may lack one or refuse it."""
    for name, value in most.items():
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        except (AttributeError, ValueError, OSError):
            if sys.platform == "linux" and name != "MSGQUEUE":  # which some builds of Python do not name
                raise
