"""Creates the queue's tables in a SQLite file, and brings them from one version to the next.

Created on first use; changed only by `upgrade`, additively.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files

from rowlock.errors import SchemaMismatch

VERSION = 1
_MIGRATION = re.compile(r"(\d{4})_\w+\.sql")


def meta(connection: sqlite3.Connection) -> dict[str, str] | None:
    """The queue's own facts, or None if its tables are not there."""
    there = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'rowlock_meta'"
    ).fetchone()
    return dict(connection.execute("SELECT key, value FROM rowlock_meta")) if there else None


def check(facts: dict[str, str], path: str, version: int = VERSION) -> None:
    """Raise unless code of `version` can use tables with these facts."""
    there, needed = int(facts["version"]), int(facts["compatible_from"])
    if needed > version:
        raise SchemaMismatch(
            f"the queue in {path} has schema {there} and needs code that knows schema {needed}; this rowlock "
            f"knows {version}: install a newer rowlock"
        )
    if there < version:
        raise SchemaMismatch(
            f"the queue in {path} has schema {there}, this rowlock needs {version}: run `rowlock upgrade`"
        )


def create(connection: sqlite3.Connection) -> None:
    """Create the tables, unless another process was faster; one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if meta(connection) is None:
            text = files("rowlock.stores.sqlite").joinpath("schema.sql").read_text(encoding="utf-8")
            for statement in statements(text):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def migrations() -> list[tuple[int, str]]:
    """The (version, SQL) pairs of the migrations folder, in order."""
    found = []
    for entry in files("rowlock.stores.sqlite").joinpath("migrations").iterdir():
        match = _MIGRATION.fullmatch(entry.name)
        if match:
            found.append((int(match[1]), entry.read_text(encoding="utf-8")))
    return sorted(found)


def upgrade(connection: sqlite3.Connection, steps: list[tuple[int, str]]) -> tuple[int, int]:
    """Apply the migrations that are still missing, all or none; returns the version before and after."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        facts = meta(connection) or {"version": "0"}
        before = after = int(facts["version"])
        for version, text in steps:
            if version > after:
                for statement in statements(text):
                    connection.execute(statement)
                connection.execute("UPDATE rowlock_meta SET value = ? WHERE key = 'version'", (str(version),))
                after = version
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return before, after


def statements(text: str) -> Iterator[str]:
    """The single statements of a script: `executescript` would commit the transaction around them."""
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        statement = "\n".join(lines)
        if line.split("--")[0].rstrip().endswith(";") and sqlite3.complete_statement(statement):
            yield statement
            lines = []
