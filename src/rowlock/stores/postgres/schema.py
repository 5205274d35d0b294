"""Creates the queue's tables in a PostgreSQL database, and brings them from one version to the next.

Created on first use under a lock that ends with its transaction; changed only by `upgrade`, additively.
"""

from __future__ import annotations

from importlib.resources import files

import psycopg
from psycopg.rows import TupleRow

from rowlock.errors import StoreMissing
from rowlock.stores.queries import qualified
from rowlock.stores.versions import Migration, migrations_in

VERSION = 1
_LOCK = 7_160_932_547_115_003  # any number, the same in every version: who creates or upgrades holds it
# Not to_regclass: it may answer from before the lock was had, and two processes would both create the tables.
_THERE = """
SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'rowlock_meta'
  AND (n.nspname = %(schema)s::name OR %(schema)s::name IS NULL AND n.nspname = ANY (current_schemas(false)))
"""

Server = psycopg.Connection[TupleRow]


def ddl(schema: str | None) -> str:
    """What creates the queue's tables, for an administrator to run."""
    text = files("rowlock.stores.postgres").joinpath("schema.sql").read_text(encoding="utf-8")
    if schema is None:
        return text
    return f'CREATE SCHEMA IF NOT EXISTS "{schema}";\nSET LOCAL search_path TO "{schema}";\n\n{text}'


def meta(server: Server, schema: str | None) -> dict[str, str] | None:
    """The queue's own facts, or None if its tables are not there."""
    if server.execute(_THERE, {"schema": schema}).fetchone() is None:
        return None
    return dict(server.execute(qualified("SELECT key, value FROM rowlock_meta", schema)).fetchall())


def create(server: Server, schema: str | None) -> None:
    """Create the tables, unless another process was faster; one transaction."""
    with server.transaction():
        server.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if meta(server, schema) is None:
            server.execute(ddl(schema))


def upgrade(server: Server, schema: str | None, steps: list[Migration] | None = None) -> tuple[int, int]:
    """Apply the migrations that are still missing, all or none; returns the version before and after."""
    with server.transaction():
        server.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        facts = meta(server, schema)
        if facts is None:
            raise StoreMissing("there is no queue to upgrade: run `rowlock init`")
        before = after = int(facts["version"])
        if schema is not None:
            server.execute(f'SET LOCAL search_path TO "{schema}"')
        for version, text in migrations_in("rowlock.stores.postgres") if steps is None else steps:
            if version > after:
                server.execute(text)
                server.execute("UPDATE rowlock_meta SET value = %s WHERE key = 'version'", (str(version),))
                after = version
    return before, after
