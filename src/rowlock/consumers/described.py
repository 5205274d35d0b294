"""A user's table as its database's catalogue describes it, and how values are written into its columns.

It knows no consumer, ingest or janitor: these check by themselves whether a table fits them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from rowlock.consumers import names
from rowlock.consumers.column_times import NUMBERS, time_form, typed
from rowlock.consumers.dialects import DIALECTS
from rowlock.stores.sql.database import Database
from rowlock.stores.sql.statements import Statements

_LENGTH = re.compile(r"char[a-z ]*\(\s*(\d+)\s*\)", re.IGNORECASE)  # of varchar(20), say


class Column(msgspec.Struct, frozen=True):
    """One column of the table."""

    name: str
    type: str
    is_key: bool = False  # it is in the primary key, perhaps with other columns
    not_null: bool = False
    plain_type: str = ""  # the type below a domain that the user has defined
    category: str = ""  # of its type, for values to try out: S is text, N a number, * any

    @property
    def length(self) -> int | None:
        """The most characters that it can hold; None: as many as one likes."""
        found = _LENGTH.search(self.plain_type)
        return int(found[1]) if found else None


class DescribedTable:
    """A table as it was found; without columns, the database has no table of that name."""

    time_format: str | None = None  # how SQLite writes times; None: as the column has them

    def __init__(self, database: Database, parts: Sequence[str]) -> None:
        self.database = database
        self.dialect = DIALECTS[database.dialect]
        self.place = ".".join(map(names.quoted, parts))
        self.catalogue_name = _catalogue_name(database, parts)
        self._catalogue = _catalogue(database)
        schema = parts[0] if len(parts) == 2 else None
        with database.read() as session:
            db = session.using(self._catalogue)
            rows = db.rows("table_columns", table=self.catalogue_name, schema=schema)
            unique = db.rows("unique_columns", table=self.catalogue_name)
        self.columns = {row[0]: Column(*row) for row in rows}
        self.types = {name: column.type for name, column in self.columns.items()}
        self.primary_key = [name for name, column in self.columns.items() if column.is_key]
        # Columns that are unique by themselves.
        self.unique = {*(row[0] for row in unique), *(self.primary_key if len(self.primary_key) == 1 else ())}
        self.time_formats: dict[str, str] = {}  # of columns that times are written to, by mark («time_3»)

    def index(self, name: str) -> Any:
        """The statement that created this index, or its comment, if one is kept; None: no such index."""
        with self.database.read() as db:
            return db.using(self._catalogue).row("index_there", table=self.catalogue_name, name=name)

    # -- SQL: values as a column takes them ------------------------------------------------------

    def now_in(self, column: str) -> str:
        """The current time as that column holds it."""
        now = self.dialect.column_time(self.types[column]).now
        if "«iso»" not in now:
            return now
        mark = f"time_{list(self.types).index(column)}"
        if mark not in self.time_formats:
            self.time_formats[mark] = self.time_format or self._time_format(names.quoted(column))
        return NUMBERS.get(self.time_formats[mark]) or now.replace("iso", mark)

    def _time_format(self, name: str) -> str:
        """How times are written into a column that takes any text: in the format of a value that is there."""
        one = f"SELECT {name} FROM {self.place} WHERE {name} IS NOT NULL LIMIT 1"  # noqa: S608 - quoted names
        with self.database.read() as db:
            found = db.using({"one": one}).row("one")
        return time_form(None if found is None else found[0])

    def older(self, column: str) -> str:
        """Whether the time in that column is older than :age."""
        return self.dialect.column_time(self.types[column]).older(names.quoted(column))

    def number(self, column: str, value: str) -> str:
        """A number as that column takes it: rounded, if it has whole numbers."""
        return self.dialect.as_whole.format(value) if typed(".*INT")(self.types[column]) else value

    def json_value(self, column: str, text: str) -> str:
        """A JSON text as that column takes it; it is never cut, because a part of it would not be JSON."""
        kind = self.types[column]
        return self.dialect.as_type.format(text, kind if kind in ("json", "jsonb") else "text")

    def fitted(self, column: str, text: str) -> str:
        """A text cut to the length of that column; an empty text for NULL, if the column is NOT NULL."""
        described = self.columns[column]
        if described.length is not None:
            text = f"substr({text}, 1, {described.length})"
        return f"coalesce({text}, '')" if described.not_null else text


def real_name(database: Database, parts: Sequence[str]) -> str:
    """The one name of a table, however it is spelled; as it is if there is none. Not for DuckDB."""
    with database.read() as db:
        found = db.using(_catalogue(database)).row("real_name", table=_catalogue_name(database, parts))
    return ".".join(parts) if found is None else str(found[0])


def _catalogue_name(database: Database, parts: Sequence[str]) -> str:
    return ".".join(map(names.quoted, parts)) if database.dialect == "postgresql" else parts[-1]


def _catalogue(database: Database) -> Statements:
    return database.statements(("rowlock.consumers", f"catalogue_{database.dialect}.sql"), words={})
