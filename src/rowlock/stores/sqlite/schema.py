"""Creates the queue's tables in a SQLite file, and brings them from one version to the next.

Created on first use; changed only by `upgrade`, additively.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

from rowlock.stores.sql.versions import Migration, version_of

VERSION = 1


def ddl() -> str:
    """What creates the queue's tables."""
    return files("rowlock.stores.sqlite").joinpath("schema.sql").read_text(encoding="utf-8")


def meta(connection: sqlite3.Connection) -> dict[str, str] | None:
    """The queue's own facts, or None if its tables are not there."""
    there = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'rowlock_meta'"
    ).fetchone()
    return dict(connection.execute("SELECT key, value FROM rowlock_meta")) if there else None


def create(connection: sqlite3.Connection) -> None:
    """Create the tables, unless another process was faster; one transaction."""
    with _transaction(connection):
        if meta(connection) is None:
            for statement in statements(ddl()):
                connection.execute(statement)


def upgrade(connection: sqlite3.Connection, steps: list[Migration]) -> tuple[int, int]:
    """Apply the migrations that are still missing, all or none; returns the version before and after."""
    with _transaction(connection):
        facts = meta(connection)
        before = after = 0 if facts is None else version_of(facts, "this file")
        for version, text in steps:
            if version > after:
                for statement in statements(text):
                    connection.execute(statement)
                connection.execute("UPDATE rowlock_meta SET value = ? WHERE key = 'version'", (str(version),))
                after = version
    return before, after


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full or failing disk has ended it already
            connection.execute("ROLLBACK")
        raise


def statements(text: str) -> Iterator[str]:
    """The single statements of a script: `executescript` would commit the transaction around them."""
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        statement = "\n".join(lines)
        if line.split("--")[0].rstrip().endswith(";") and sqlite3.complete_statement(statement):
            yield statement
            lines = []
