"""One side of `rowlock copy` that is a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rowlock.stores.sql.copying import COLUMNS, CopySide, file_url
from rowlock.stores.sql.session import Session

if TYPE_CHECKING:
    from rowlock.stores.sqlite.database import SqliteDatabase
    from rowlock.stores.sqlite.session import SqliteSession

# By position, which is faster than by name.
_INSERTS = {
    table: f"INSERT INTO rowlock_{table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
    for table, names in COLUMNS.items()
}
_CLOSED = ("insert", "update", "delete", "history", "logs", "progress")


class SqliteCopySide(CopySide):
    """Rows go in by `executemany`."""

    _keys = "SELECT value FROM json_each(:keys)"
    _freezes = tuple(f"freeze_{name}" for name in _CLOSED)
    _thaws = tuple(f"thaw_{name}" for name in _CLOSED)

    @property
    def address(self) -> str:
        """The file's URL with its whole path."""
        return file_url("sqlite", cast("SqliteDatabase", self.store.database).connections.path)

    def load(self, tx: Session, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write the rows, one after the other."""
        cast("SqliteSession", tx).connection.executemany(_INSERTS[table], rows)
