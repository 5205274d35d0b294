"""Named statements on one connection to PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from rowlock.stores.postgres.connections import Connection
from rowlock.stores.postgres.prepared import Row, Value, prepared
from rowlock.stores.sql.session import Session


class PostgresSession(Session):
    """Runs named statements on one connection."""

    def __init__(self, connection: Connection, statements: Mapping[str, str], now: float | None) -> None:
        super().__init__(statements)
        self.connection = connection
        self._cursor = connection.own_cursor
        self._now = now

    @property
    def now(self) -> float:
        """The server's clock."""
        return float(self.row("clock")[0])

    def run(self, name: str, /, **values: Any) -> int:
        return max(0, self._execute(self._statements[name], values).rowcount)

    def rows(self, name: str, /, **values: Any) -> list[Any]:
        return self.take(self._statements[name], **values)

    def take(self, statement: str, /, **values: Any) -> list[Any]:
        return self._execute(statement, values).fetchall()

    def ask(self, statement: str, values: dict[str, Value]) -> list[Row]:
        """The rows of a statement that every job goes through; it is prepared, and they come as text."""
        values["now"] = self._now
        return prepared(statement).rows(self.connection, values)

    def each(self, name: str, /, values: Sequence[dict[str, Any]]) -> list[int]:
        if len(values) < 2:
            return [self.run(name, **one) for one in values]
        # In a pipeline: all are sent before the first answer is read.
        self._cursor.executemany(
            self._statements[name], [{**one, "now": self._now} for one in values], returning=True
        )
        counts = [max(0, self._cursor.rowcount)]
        while self._cursor.nextset():
            counts.append(max(0, self._cursor.rowcount))
        return counts

    def _execute(self, statement: str, values: dict[str, Any]) -> psycopg.Cursor[Any]:
        values["now"] = self._now
        cursor: psycopg.Cursor[Any] = self._cursor.execute(statement, values, binary=True)
        return cursor
