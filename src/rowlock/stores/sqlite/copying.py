"""One side of `rowlock copy` that is a SQLite file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rowlock.stores.sql.copying import COLUMNS, CopySide, file_url
from rowlock.stores.sql.session import Session

if TYPE_CHECKING:
    from rowlock.stores.sql.store import Store
    from rowlock.stores.sqlite.database import SqliteDatabase
    from rowlock.stores.sqlite.session import SqliteSession

# By position, which is faster than by name.
_INSERTS = {
    table: f"INSERT INTO rowlock_{table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
    for table, names in COLUMNS.items()
}
# The triggers that close a queue: their names, what they refuse, and of which table.
_CLOSED = (
    *(("insert", "INSERT", "jobs"), ("update", "UPDATE", "jobs"), ("delete", "DELETE", "jobs")),
    *(("history", "INSERT", "history"), ("logs", "INSERT", "logs"), ("progress", "INSERT", "progress")),
)


class SqliteCopySide(CopySide):
    """Rows go in by `executemany`."""

    _keys = "SELECT value FROM json_each(:keys)"
    _freezes = tuple(f"freeze_{trigger}" for trigger, _, _ in _CLOSED)
    _thaws = tuple(f"thaw_{trigger}" for trigger, _, _ in _CLOSED)

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        for trigger, event, table in _CLOSED:
            words = {"trigger": trigger, "event": event, "table": table}
            for verb in ("freeze", "thaw"):
                self._statements[f"{verb}_{trigger}"] = self._statements.write(f"{{{verb}}}", words)

    @property
    def address(self) -> str:
        """The file's URL with its whole path."""
        return file_url("sqlite", cast("SqliteDatabase", self.store.database).connections.path)

    def load(self, tx: Session, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Write the rows, one after the other."""
        cast("SqliteSession", tx).connection.executemany(_INSERTS[table], rows)
