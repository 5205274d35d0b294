"""A queue in PostgreSQL that many tests take in turn, each as if it were new.
Not the server, which is in postgres.py."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from rowlock.stores.address import store_for
from tests.servers.postgres import PostgresServer, schema_url

_LARGE = 1_000_000  # bytes of a table in which a test has left much
# What a test has added beside the queue's tables.
_OTHERS = """
SELECT CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW' WHEN 'S' THEN 'SEQUENCE'
    WHEN 'f' THEN 'FOREIGN TABLE' ELSE 'TABLE' END, quote_ident(relname)
FROM pg_class
WHERE relnamespace = CAST(%(schema)s AS regnamespace) AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    AND NOT relname = ANY(%(known)s)
UNION ALL
SELECT 'ROUTINE', quote_ident(proname) || '(' || pg_get_function_identity_arguments(oid) || ')'
FROM pg_proc WHERE pronamespace = CAST(%(schema)s AS regnamespace)
UNION ALL
SELECT CASE typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, quote_ident(typname)
FROM pg_type WHERE typnamespace = CAST(%(schema)s AS regnamespace) AND typtype IN ('e', 'd')
"""
# The queue's tables with their columns, indexes, constraints, triggers, rights and settings.
_SHAPE = """
SELECT CAST(relname AS text), CAST(relkind AS text), CAST(relacl AS text), CAST(reloptions AS text), relowner,
    relpersistence,
    (SELECT CAST(array_agg(ROW(attname, atttypid, attnotnull, atthasdef) ORDER BY attnum) AS text)
        FROM pg_attribute WHERE attrelid = pg_class.oid),
    (SELECT CAST(array_agg(ROW(conname, contype) ORDER BY conname) AS text)
        FROM pg_constraint WHERE conrelid = pg_class.oid),
    (SELECT CAST(array_agg(ROW(tgname, tgenabled) ORDER BY tgname) AS text)
        FROM pg_trigger WHERE tgrelid = pg_class.oid AND NOT tgisinternal),
    (SELECT CAST(nspacl AS text) FROM pg_namespace WHERE oid = relnamespace)
FROM pg_class WHERE relnamespace = CAST(%(schema)s AS regnamespace) ORDER BY 1
"""


class RecycledQueue:
    """A queue for many tests, one after the other: emptying it takes 20 ms, making a new one 150."""

    def __init__(self, server: PostgresServer, administrator: psycopg.Connection) -> None:
        self._server = server
        self._administrator = administrator
        self._schema = ""
        self._create()

    def emptied(self) -> str:
        """The queue's URL, after everything that was in it is gone; numbers begin at 1 again."""
        jobs = f"{self._schema}.rowlock_jobs"
        (size,) = self._query("SELECT pg_relation_size(%s)", jobs)[0]
        if size > _LARGE:  # what was deleted would be in the way until the next vacuum
            steps = [f"TRUNCATE {', '.join(map(self._qualified, self._tables))} RESTART IDENTITY"]
        else:
            steps = [f"DELETE FROM {self._qualified(name)}" for name in self._tables]
            steps += [f"SELECT setval('{self._qualified(name)}', 1, false)" for name in self._numbers]
        self._administrator.execute("; ".join(steps).encode())
        return schema_url(self._server.url, self._schema)

    def as_new(self) -> str:
        """The same under another name and with what the planner knows of new tables, in 20 ms.

        Whatever else a test has put there goes; a schema whose own tables it has changed is left alone.
        """
        try:
            if not self._renamed():
                self._create()
        except psycopg.Error:  # dropped, or something in it is still locked: not the next test's fault
            self._create()
        return schema_url(self._server.url, self._schema)

    def _renamed(self) -> bool:
        """Whether the schema is as it was when it was made, under another name."""
        name = f"test_{uuid.uuid4().hex}"
        steps = [
            f"DROP {kind} IF EXISTS {self._schema}.{what} CASCADE"
            for kind, what in self._query(_OTHERS, {"schema": self._schema, "known": self._known})
        ]
        steps.append(f"ALTER SCHEMA {self._schema} RENAME TO {name}")
        self._administrator.execute("; ".join(steps).encode())
        self._schema = name
        if self._what_it_is() != self._was_made:
            return False
        sizes = "SELECT relname FROM pg_class WHERE oid = ANY(%s::regclass[]) AND pg_relation_size(oid) > 0"
        used = self._query(sizes, list(map(self._qualified, self._tables)))
        steps = [f"TRUNCATE {', '.join(self._qualified(table) for (table,) in used)}"] if used else []
        steps += [f"SELECT setval('{self._qualified(number)}', 1, false)" for number in self._numbers]
        self._administrator.execute("; ".join(steps).encode())
        return True

    def _create(self) -> None:
        self._schema = f"test_{uuid.uuid4().hex}"
        self._administrator.execute(f"CREATE SCHEMA {self._schema}".encode())
        with closing(store_for(schema_url(self._server.url, self._schema))) as store:
            store.open()
        tables = self._query("SELECT tablename FROM pg_tables WHERE schemaname = %s", self._schema)
        self._tables = [name for (name,) in tables if name != "rowlock_meta"]
        numbers = self._query("SELECT sequencename FROM pg_sequences WHERE schemaname = %s", self._schema)
        self._numbers = [name for (name,) in numbers]
        self._known = [*self._tables, *self._numbers, "rowlock_meta"]
        self._was_made = self._what_it_is()

    def _what_it_is(self) -> tuple[Any, ...]:
        meta = self._administrator.execute(f"SELECT * FROM {self._schema}.rowlock_meta".encode()).fetchall()
        return self._query(_SHAPE, {"schema": self._schema}), meta

    def _qualified(self, name: str) -> str:
        return f"{self._schema}.{name}"

    def _query(self, query: str, values: Any) -> list[tuple[Any, ...]]:
        bound = values if isinstance(values, dict) else [values]
        return self._administrator.execute(query.encode(), bound).fetchall()


@contextmanager
def recycled_queue(server: PostgresServer) -> Iterator[RecycledQueue]:
    """A queue in a schema of its own, which goes with the server."""
    with psycopg.connect(server.url, autocommit=True) as administrator:
        # A transaction that a test left open would hold this up until the next test's own time limit.
        administrator.execute("SET lock_timeout = '10s'; SET client_min_messages = warning")
        yield RecycledQueue(server, administrator)
