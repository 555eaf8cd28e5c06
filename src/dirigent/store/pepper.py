"""The pepper: the server's own secret, under which keys are hashed. It never lies in the database.

`DIRIGENT_PEPPER`, where set; else a file under DIRIGENT_HOME that its owner alone may read, made with the first
key. Servers that share a store must share the pepper too: give them the same variable.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dirigent.errors import ConfigError
from dirigent.paths import home

PEPPER_FILE = "pepper"
PEPPER_VARIABLE = "DIRIGENT_PEPPER"
SHORTEST = 32
"""Characters. Less than this could be guessed by whoever holds the tables."""


class Pepper:
    """Digests texts. Does not show its value, in a traceback or anywhere else."""

    def __init__(self, value: str) -> None:
        self._value = value.encode()
        self.id = self.digest("which pepper is this?")[:16]
        """Tells two peppers apart, and nothing else of them."""

    def digest(self, text: str) -> str:
        return hmac.new(self._value, text.encode(errors="replace"), hashlib.sha256).hexdigest()


def find_pepper(environ: Mapping[str, str] = os.environ) -> Pepper | None:
    """The pepper of this place, if it has one."""
    if value := environ.get(PEPPER_VARIABLE, ""):
        if len(value) < SHORTEST:
            raise ConfigError(
                f"{PEPPER_VARIABLE} has {len(value)} characters and needs {SHORTEST} or more; `openssl rand -hex 32`"
            )
        return Pepper(value)
    path = home(environ) / PEPPER_FILE
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"others may read the keys' pepper; chmod 600 {path}")
        value = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys' pepper {path} cannot be read: {error}") from None
    if len(value) < SHORTEST:
        raise ConfigError(f"the keys' pepper {path} is cut short; restore it from a backup")
    return Pepper(value)


def make_pepper(environ: Mapping[str, str] = os.environ) -> Pepper:
    """The pepper of this place, made where there is none."""
    found = find_pepper(environ)
    if found is not None:
        return found
    path = home(environ) / PEPPER_FILE
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_whole(path, secrets.token_hex(32))
    except OSError as error:
        raise ConfigError(f"cannot keep the keys' pepper in {path}: {error.strerror}; set {PEPPER_VARIABLE}") from None
    made = find_pepper(environ)
    assert made is not None  # it was written just now
    return made


def _write_whole(path: Path, text: str) -> None:
    """Written elsewhere and then linked: nobody sees half of it, and of two makers at once the first one wins."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".pepper-")  # 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        Path(draft).unlink()
