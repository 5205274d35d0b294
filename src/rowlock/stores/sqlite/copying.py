"""One side of `rowlock copy` that is a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from rowlock.stores.sql.copying import COLUMNS, SHARED, CopySide
from rowlock.stores.sql.session import Session
from rowlock.stores.sqlite import schema

if TYPE_CHECKING:
    from rowlock.stores.sql.store import Store
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

    version = schema.VERSION
    _freezes = tuple(f"freeze_{name}" for name in _CLOSED)
    _thaws = tuple(f"thaw_{name}" for name in _CLOSED)

    def __init__(self, database: SqliteDatabase, store: Store) -> None:
        words = {"keys": "SELECT value FROM json_each(:keys)"}
        super().__init__(
            store, database.statements(SHARED, ("rowlock.stores.sqlite", "copying.sql"), words=words)
        )
        self._path = database.connections.path

    @property
    def address(self) -> str:
        """The file's URL with its whole path."""
        return f"sqlite:///{quote(os.path.realpath(self._path).replace(os.sep, '/'), safe='/:')}"

    def load(self, tx: Session, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write the rows, one after the other."""
        cast("SqliteSession", tx).connection.executemany(_INSERTS[table], rows)

    def lock_numbers(self, tx: Session) -> int:
        """BEGIN IMMEDIATE has locked everything."""
        return int(tx.row("last_number")[0])

    def check_rights(self) -> None:
        """Whoever gets the write lock may write."""
        with self.store.database.write():
            pass
