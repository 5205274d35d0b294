"""Tries out which conditions an index may have: on an empty copy of the table, of which nothing is kept.

An index whose condition fails for a row keeps that row from being written: what is refused is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rowlock.consumers import conditions, names
from rowlock.errors import TRANSIENT, StoreError
from rowlock.stores.sql.store import SqlStore

Column = tuple[
    str, str, bool, bool
]  # its name, its type's category, whether it can and whether it must be set


class LeftOut(msgspec.Struct, frozen=True):
    """A part of a condition that an index must not have, and why."""

    part: str
    reason: str


class _Dialect(msgspec.Struct, frozen=True):
    copy: str
    copied: str
    index: str
    # Such conditions are let into an index, and fail only when a row is written for which they are reckoned.
    lets_clocks_in: bool
    percent: str  # how the store's driver wants a percent sign


_DIALECTS = {
    "sqlite": _Dialect(
        copy="CREATE TEMP TABLE {t} ({columns})",
        copied="temp.{t}",
        index="CREATE INDEX temp.rowlock_trial ON {t} ({key}) WHERE (\n{part}\n)",
        lets_clocks_in=True,
        percent="%",
    ),
    "postgresql": _Dialect(
        copy="CREATE TEMP TABLE {t} (LIKE {table} INCLUDING GENERATED)",
        copied="pg_temp.{t}",
        index="CREATE INDEX rowlock_trial ON pg_temp.{t} ({key}) WHERE (\n{part}\n)",
        lets_clocks_in=False,
        percent="%%",
    ),
}
# The rows, by the category of a column's type: S is text, N a number, A takes anything. All else is null.
_ROWS: tuple[Mapping[str, str], ...] = (
    {},
    {"S": "'x'", "N": "0", "A": "'x'"},
    {"S": "''", "N": "1", "A": "''"},
    {"A": "0"},
    {"A": "1"},
    {"A": "x'00'"},
)


class Trial:
    """One table, whose names are given as they stand in SQL."""

    def __init__(
        self, store: SqlStore, dialect: str, columns: Sequence[Column], *, t: str, table: str, key: str
    ) -> None:
        self._store = store
        self._dialect = _DIALECTS[dialect]
        self._columns = columns
        self._names = {"t": t, "table": table, "key": key}

    def sort(self, condition: str) -> tuple[list[str], list[LeftOut]]:
        """The parts of the condition that an index may have, and the others."""
        copy = self._copy()
        impossible = self._refusal(copy)
        rows = [row for row in map(self._row, _ROWS) if self._refusal([*copy, row]) is None]
        fit: list[str] = []
        left_out: list[LeftOut] = []
        for part in conditions.parts(condition):
            if impossible is not None:
                reason: str | None = f"it could not be tried out: {impossible}"
            elif self._dialect.lets_clocks_in and conditions.may_read_clock(part):
                reason = "it calls a function that may read the clock"
            else:
                reason = self._refusal([*copy, self._written(self._dialect.index, part=part), *rows])
            if reason is None:
                fit.append(part)
            else:
                left_out.append(LeftOut(part, reason))
        return fit, left_out

    def _copy(self) -> list[str]:
        """What makes an empty copy of the table, in which every column may be null."""
        columns = [names.quoted(name) for name, *_ in self._columns]
        needed = [names.quoted(name) for name, _, _, must in self._columns if must]
        made = [self._written(self._dialect.copy, columns=", ".join(columns))]
        if needed:
            changes = ", ".join(f"ALTER COLUMN {column} DROP NOT NULL" for column in needed)
            made.append(f"ALTER TABLE {self._written(self._dialect.copied)} {changes}")
        return made

    def _row(self, values: Mapping[str, str]) -> str:
        """What inserts a row into the copy."""
        place = self._written(self._dialect.copied)
        settable = [(names.quoted(name), kind) for name, kind, can, _ in self._columns if can]
        set_to = {column: values[kind] for column, kind in settable if kind in values}
        if not set_to:
            return f"INSERT INTO {place} DEFAULT VALUES"
        return f"INSERT INTO {place} ({', '.join(set_to)}) VALUES ({', '.join(set_to.values())})"  # noqa: S608 - quoted names, and values from above

    def _written(self, template: str, **values: str) -> str:
        return template.format(**self._names, **values)

    def _refusal(self, statements: Sequence[str]) -> str | None:
        """What the database says against these statements, one after the other; None: nothing."""
        named = {str(n): one.replace("%", self._dialect.percent) for n, one in enumerate(statements)}
        try:
            with self._store.undone() as db:
                tx = db.using(named)
                for name in named:
                    tx.run(name)
        except TRANSIENT:  # which says nothing about the statements
            raise
        except StoreError as error:
            return str(error.__cause__ or error).partition("\n")[0]
        return None
