"""Bring a database to the schema that `tables.py` describes.

Alembic is imported only if there is work: a look at the version table first saves its start-up time on every other run.
Several processes may open a new store at once: one upgrades, the others wait for it.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, inspect, text

from dirigent.errors import StoreError
from dirigent.store.engine import where, writing
from dirigent.store.postgres_timeouts import patiently
from dirigent.store.tables import REVISIONS, VERSION_TABLE

_LOCK = 0x0D121963


def upgrade(engine: Engine) -> None:
    """Runs the missing migrations. Refuses a schema of a newer Dirigent."""
    with engine.connect() as connection:
        found = current_revision(connection)
    if found == REVISIONS[-1]:
        return
    if found is not None and found not in REVISIONS:
        raise StoreError(
            f"the store {where(engine)} has schema {found}, this Dirigent knows up to {REVISIONS[-1]}: "
            "it was written by a newer one; pip install --upgrade dirigent"
        )
    with writing(engine).begin() as connection, patiently(connection):
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        _run_alembic(connection)


def current_revision(connection: Connection) -> str | None:
    """Returns the schema version of a database; None if it has no schema of ours."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def _run_alembic(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "dirigent.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
