"""Open the store for commands that need no worker, no provider's key and no discovery."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dirigent.store import Store


def configured_store(config: Path | None) -> AbstractAsyncContextManager[Store]:
    """Opens the store that the configuration names, else the one under DIRIGENT_HOME."""
    from dirigent.config.file import Config, config_path, load_config
    from dirigent.config.runtime import open_store

    path = config_path(config)
    return open_store(load_config(path).config if path is not None else Config())
