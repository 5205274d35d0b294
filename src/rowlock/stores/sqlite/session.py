"""Named statements on one SQLite connection, at one moment.

Begins and ends no transaction.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from rowlock.stores.sql.session import FileSession
from rowlock.stores.sqlite.dialect import STATEMENTS


class SqliteSession(FileSession):
    """Runs named statements on one connection."""

    def __init__(self, connection: sqlite3.Connection, now: float | None) -> None:
        super().__init__(STATEMENTS, now)
        self.connection = connection

    def execute(self, statement: str, values: dict[str, Any]) -> sqlite3.Cursor:
        values["now"] = self._now
        values["mono"] = self._mono
        return self.connection.execute(statement, values)

    def run(self, name: str, /, **values: Any) -> int:
        return self.execute(self._statements[name], values).rowcount

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        try:
            return self.execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            # Only what writes nothing is run again. A text_factory for all statements would slow them down.
            if "decode to UTF-8" not in str(error) or not statement.lstrip().startswith("SELECT"):
                raise
        self.connection.text_factory = _text_or_bytes
        try:
            return self.execute(statement, values).fetchall()
        finally:
            self.connection.text_factory = str

    def row(self, name: str, /, **values: Any) -> Any:
        cursor = self.execute(self._statements[name], values)
        row = cursor.fetchone()
        cursor.close()  # an unfinished SELECT would hold its snapshot, and with it the WAL
        return row


def _text_or_bytes(value: bytes) -> str | bytes:
    """A user's text; as bytes if it is no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
