"""Tries out which conditions an index may have: on an empty copy of the table, which is rolled back.

If an index's condition fails for a row, that row cannot be written: such a condition is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rowlock.consumers import conditions, names
from rowlock.errors import TRANSIENT, StoreError

if TYPE_CHECKING:
    from rowlock.consumers.table import Table

# Values of trial rows, by the category of a column's type: S is text, N a number, A any. Others are null.
_ROWS: tuple[Mapping[str, str], ...] = (
    {},
    {"S": "'x'", "N": "0", "A": "'x'"},
    {"S": "''", "N": "1", "A": "''"},
    {"A": "0"},
    {"A": "1"},
    {"A": "x'00'"},
)


class Trial:
    """An empty copy of one table."""

    def __init__(self, table: Table) -> None:
        self._database = table.database
        self._dialect = table.columns.dialect
        self._names = {name: table.filled(f"«{name}»") for name in ("t", "table", "key")}
        self._place = self._dialect.trial_name.format(**self._names)
        with table.database.read() as db:
            # Of each: its name, its type's category, whether it can and whether it must be set.
            self._columns = db.using(table.statements).rows("columns_to_copy", table=table.catalogue.table)

    def refusals(self, condition: str) -> dict[str, str | None]:
        """Why an index must not have each part of the condition; None: it may."""
        copy = self._copy()
        impossible = self._refusal(copy)
        rows = [row for row in map(self._row, _ROWS) if self._refusal([*copy, row]) is None]
        found: dict[str, str | None] = {}
        for part in conditions.parts(condition):
            if impossible is not None:
                found[part] = f"it could not be tried out: {impossible}"
            # SQLite lets such a condition into an index, and fails only when a row is written.
            elif self._dialect.hints and conditions.may_read_clock(part):
                found[part] = "it calls a function that may read the clock"
            else:
                index = self._dialect.trial_index.format(**self._names, part=part)
                found[part] = self._refusal([*copy, index, *rows])
        return found

    def _copy(self) -> list[str]:
        """The statements that make an empty copy of the table, in which every column may be null."""
        columns = ", ".join(names.quoted(name) for name, *_ in self._columns)
        needed = [names.quoted(name) for name, _, _, must in self._columns if must]
        made = [self._dialect.trial_table.format(**self._names, columns=columns)]
        if needed:
            changes = ", ".join(f"ALTER COLUMN {column} DROP NOT NULL" for column in needed)
            made.append(f"ALTER TABLE {self._place} {changes}")
        return made

    def _row(self, values: Mapping[str, str]) -> str:
        """The statement that inserts a row into the copy."""
        set_to = {
            names.quoted(name): values[kind] for name, kind, can, _ in self._columns if can and kind in values
        }
        if not set_to:
            return f"INSERT INTO {self._place} DEFAULT VALUES"
        return f"INSERT INTO {self._place} ({', '.join(set_to)}) VALUES ({', '.join(set_to.values())})"  # noqa: S608 - quoted names, and values from above

    def _refusal(self, statements: Sequence[str]) -> str | None:
        """The error of the first of these statements that the database refuses; None: it refuses none."""
        named = {str(n): one.replace("%", self._dialect.percent) for n, one in enumerate(statements)}
        try:
            with self._database.undone() as db:
                tx = db.using(named)
                for name in named:
                    tx.run(name)
        except TRANSIENT:  # a lost connection or a lock says nothing about the statements
            raise
        except StoreError as error:
            return str(error.__cause__ or error).partition("\n")[0]
        return None
