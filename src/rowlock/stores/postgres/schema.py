"""Creates the queue's tables in a PostgreSQL database, and brings them from one version to the next.

Created on first use under a lock that ends with its transaction; changed only by `upgrade`, additively.
"""

from __future__ import annotations

import re
from importlib.resources import files

import psycopg
from psycopg.rows import TupleRow

from rowlock.errors import StoreMissing
from rowlock.stores.sql.statements import qualified
from rowlock.stores.sql.versions import Migration, migrations_in, version_of

VERSION = 1
_LOCK = 7_160_932_547_115_003  # any number, the same in every version: who creates or upgrades holds it
# Not to_regclass: it may answer from before the lock was had, and two processes would both create the tables.
_THERE = """
SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'rowlock_meta'
  AND (n.nspname = %(schema)s::name OR %(schema)s::name IS NULL AND n.nspname = ANY (current_schemas(false)))
"""
_SCHEMA_THERE = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s"
_HEAD = """\
-- rowlock's tables for PostgreSQL, schema version {version}. Run this once, for example:
--     rowlock init --sql | psql --set ON_ERROR_STOP=1 DATABASE
-- Whoever runs it owns the tables, and is the one to run `rowlock upgrade` later on.
-- Another user, under whose name programs and workers connect (here: app), needs these rights:
--     GRANT USAGE ON SCHEMA {place} TO app;
--     GRANT USAGE ON SEQUENCE {sequence} TO app;
--     GRANT SELECT, INSERT, UPDATE, DELETE ON
--         {tables}
--         TO app;
-- To see the connections of all users in `rowlock doctor`, it also needs:
--     GRANT pg_read_all_stats TO app;
"""

Server = psycopg.Connection[TupleRow]


def ddl(schema: str | None) -> str:
    """What creates the queue's tables, for an administrator to run: a script for psql."""
    tables = _tables_sql()
    names = [qualified(name, schema) for name in re.findall(r"^CREATE TABLE (\w+)", tables, re.MULTILINE)]
    head = _HEAD.format(
        version=VERSION,
        place=f'"{schema}"' if schema else "public",
        tables=",\n--         ".join(names),
        sequence=qualified("rowlock_jobs_id_seq", schema),
    )
    place = f"{_create_schema(schema)}\n{_search(schema)}\n" if schema else ""
    return f"{head}\nBEGIN;\n{place}\n{tables}\nCOMMIT;\n"


def _tables_sql() -> str:
    return files("rowlock.stores.postgres").joinpath("schema.sql").read_text(encoding="utf-8")


def _create_schema(schema: str) -> str:
    return f'CREATE SCHEMA IF NOT EXISTS "{schema}";'


def _search(schema: str) -> str:
    return f'SET LOCAL search_path TO "{schema}";'


def meta(server: Server, schema: str | None) -> dict[str, str] | None:
    """The queue's own facts, or None if its tables are not there."""
    if server.execute(_THERE, {"schema": schema}).fetchone() is None:
        return None
    return dict(server.execute(qualified("SELECT key, value FROM rowlock_meta", schema).encode()).fetchall())


def create(server: Server, schema: str | None) -> None:
    """Create the tables, unless another process was faster; one transaction."""
    with server.transaction():
        server.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        if meta(server, schema) is not None:
            return
        if schema is not None:
            # Asked first: IF NOT EXISTS needs the right to create schemas, also if there is one already.
            if server.execute(_SCHEMA_THERE, {"schema": schema}).fetchone() is None:
                server.execute(_create_schema(schema).encode())
            server.execute(_search(schema).encode())
        server.execute(_tables_sql().encode())


def upgrade(server: Server, schema: str | None, steps: list[Migration] | None = None) -> tuple[int, int]:
    """Apply the migrations that are still missing, all or none; returns the version before and after."""
    with server.transaction():
        server.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        facts = meta(server, schema)
        if facts is None:
            raise StoreMissing("there is no queue to upgrade: run `rowlock init`")
        before = after = version_of(facts, "this database")
        if schema is not None:
            server.execute(_search(schema).encode())
        for version, text in migrations_in("rowlock.stores.postgres") if steps is None else steps:
            if version > after:
                server.execute(text.encode())
                server.execute("UPDATE rowlock_meta SET value = %s WHERE key = 'version'", (str(version),))
                after = version
    return before, after
