"""What Alembic runs: migrate over the connection that `upgrade` hands in, inside its transaction."""

from __future__ import annotations

from alembic import context

from dirigent.store.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
