"""A user's table as the database's own catalogue describes it: columns, types, unique columns.

Reads the catalogue only; consumers, ingests and janitors check by themselves whether a table fits them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from rowlock.consumers import names
from rowlock.stores.sql.database import Database

_LENGTH = re.compile(r"char[a-z ]*\(\s*(\d+)\s*\)", re.IGNORECASE)  # of varchar(20), say


class Column(msgspec.Struct, frozen=True):
    """One column of the table."""

    name: str
    type: str
    is_key: bool = False  # it is in the primary key, perhaps with other columns
    not_null: bool = False
    length: int | None = None  # the most characters that it can hold


class Described(msgspec.Struct, frozen=True):
    """A table as it was found; without columns, the database has no table of that name."""

    columns: list[Column]
    unique: set[str]  # columns that are unique by themselves

    @property
    def primary_key(self) -> list[str]:
        """The columns of the primary key."""
        return [column.name for column in self.columns if column.is_key]


class Catalogue:
    """What the catalogue of one database says about one table."""

    def __init__(self, database: Database, table: Sequence[str]) -> None:
        self._database = database
        self._parts = table
        source = ("rowlock.consumers", f"catalogue_{database.dialect}.sql")
        self._statements = database.statements(source, words={})

    @property
    def table(self) -> str:
        """The table's name as the catalogue's queries take it."""
        is_postgresql = self._database.dialect == "postgresql"
        return ".".join(map(names.quoted, self._parts)) if is_postgresql else self._parts[-1]

    def real_name(self) -> str | None:
        """The one name of this table, however it is spelled; None: no such table. Not for DuckDB."""
        with self._database.read() as session:
            found = session.using(self._statements).row("real_name", table=self.table)
        return None if found is None else str(found[0])

    def describe(self) -> Described:
        """The table as it is now."""
        with self._database.read() as session:
            db = session.using(self._statements)
            schema = self._parts[0] if len(self._parts) == 2 else None
            columns = [_column(*row) for row in db.rows("table_columns", table=self.table, schema=schema)]
            unique = {row[0] for row in db.rows("unique_columns", table=self.table)}
        primary_key = [column.name for column in columns if column.is_key]
        return Described(columns, unique | set(primary_key) if len(primary_key) == 1 else unique)

    def index(self, name: str) -> Any:
        """The statement that created this index, or its comment, if one is kept; None: no such index."""
        with self._database.read() as db:
            return db.using(self._statements).row("index_there", table=self.table, name=name)


def _column(name: str, kind: str, is_key: Any, not_null: Any, plain: str) -> Column:
    """A row of the catalogue; `plain` is the type below a domain that the user has defined."""
    found = _LENGTH.search(plain)
    return Column(name, kind, bool(is_key), bool(not_null), int(found[1]) if found else None)
