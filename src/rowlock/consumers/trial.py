"""Tries out which conditions an index may have: on an empty copy of the table, which is rolled back.

If an index's condition fails for a row, that row cannot be written: such a condition is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rowlock.consumers import conditions, names
from rowlock.consumers.checks import refusal

if TYPE_CHECKING:
    from rowlock.consumers.table import Table

_COPY = "CREATE TEMP TABLE {t} AS SELECT * FROM {table} WHERE false"  # every column may be null there
# Values of trial rows, by the category of a column's type: S is text, N a number, * any. Others are null.
_ROWS: tuple[Mapping[str, str], ...] = (
    {},
    {"S": "'x'", "N": "0", "*": "'x'"},
    {"S": "''", "N": "1", "*": "''"},
    {"*": "0"},
    {"*": "1"},
    {"*": "x'00'"},
)


def refusals(table: Table, condition: str) -> dict[str, str | None]:
    """Why an index must not have each part of the condition; None: it may."""
    words = {name: table.filled(f"«{name}»") for name in ("t", "table", "key")}
    copy, place = _COPY.format(**words), f"{table.dialect.temporary}.{words['t']}"
    generated = table.dialect.trial_generated.format(**words)
    impossible = _refusal(table, [copy])
    rows = [_row(table, place, values) for values in _ROWS]
    rows = [row for row in rows if _refusal(table, [copy, row]) is None]
    found: dict[str, str | None] = {}
    for part in conditions.parts(condition):
        if impossible is not None:
            found[part] = f"it could not be tried out: {impossible}"
        # SQLite lets such a condition into an index, and fails only when a row is written.
        elif table.dialect.hints and conditions.may_read_clock(part):
            found[part] = "it calls a function that may read the clock"
        else:
            index = table.dialect.trial_index.format(**words, part=part)
            found[part] = _refusal(table, [copy, index, *rows])
            if found[part] is None and generated:  # which are plain columns in the first copy
                found[part] = _refusal(table, [generated, index])
    return found


def _row(table: Table, place: str, values: Mapping[str, str]) -> str:
    """The statement that inserts a row into the copy."""
    kinds = {names.quoted(name): column.category for name, column in table.columns.items()}
    set_to = {name: values[kind] for name, kind in kinds.items() if kind in values}
    if not set_to:
        return f"INSERT INTO {place} DEFAULT VALUES"
    return f"INSERT INTO {place} ({', '.join(set_to)}) VALUES ({', '.join(set_to.values())})"  # noqa: S608 - quoted names, and values from above


def _refusal(table: Table, statements: Sequence[str]) -> str | None:
    """The error of the first of these statements that the database refuses; None: it refuses none."""
    named = {str(n): one.replace("%", table.dialect.percent) for n, one in enumerate(statements)}

    def attempt() -> None:
        with table.database.undone() as db:
            tx = db.using(named)
            for name in named:
                tx.run(name)

    error = refusal(attempt)
    return None if error is None else str(error.__cause__ or error).partition("\n")[0]
